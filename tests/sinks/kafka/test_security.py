"""TLS, SASL and ACLs against a real broker that refuses whatever isn't allowed, and where a
password could leak."""

from __future__ import annotations

import base64
import contextvars
import copy
import io
import json
import logging
import pickle
import re
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType
from pyspark import cloudpickle

from onceforall.common import user_functions
from onceforall.embedded import EmbeddedKafka
from onceforall.errors import (
    AttemptFailedError,
    EmbeddedServerError,
    OptionError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.sinks.kafka import KafkaSink
from onceforall.sinks.kafka.access import sasl, security
from onceforall.sinks.kafka.access.secure_connections import Access, tls_context
from onceforall.sinks.kafka.access.security import AccessError, Withheld
from onceforall.sinks.kafka.driver.broker_client import BrokerClient
from onceforall.sinks.kafka.driver.wire import _Connection, _ConnectionLostError
from onceforall.sinks.kafka.task import producers
from onceforall.task.secret_values import Handover
from sinks.kafka.conftest import rows
from support.kafka_frames import Api
from support.network_proxy import KafkaProxy
from support.reading import released
from support.secured_broker import PASSWORD, SCRAM, Secured
from support.topics import delete_topic
from support.waiting import until

SECURED = Path(__file__).parents[2] / "support" / "secured.py"
SERVERS = {"bootstrap.servers": "127.0.0.1:9092"}


# --- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sasl.username", "sasl.password", "oauth_cb"])
def test_a_function_that_hangs_is_given_up_with_its_name(monkeypatch, name):
    monkeypatch.setattr(user_functions, "ANSWERS_WITHIN_S", 0.2)
    over = threading.Event()

    def ask():
        # That which gives a token is called for each token.
        return security.resolved({name: lambda *_: over.wait(60)}, {})[name](None)

    try:
        with pytest.raises(
            AccessError, match=f"given for option '{name}' gave no answer within 0.2 s. Mend it"
        ):
            ask()
    finally:
        over.set()


def test_a_function_that_gives_a_secret_has_the_context_of_its_caller():
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("the caller's")
    assert security.resolved({"sasl.password": variable.get}, {}) == {
        "sasl.password": "the caller's"
    }


@pytest.mark.parametrize(
    ("option", "value", "remedy"),
    [
        ("sasl.jaas.config", f'x required password="{PASSWORD}";', "sasl.username"),
        ("sasl.login.callback.handler.class", "evil.Code", "sasl.username"),
        ("sasl.login.class", "evil.Code", "sasl.username"),
        ("sasl.client.callback.handler.class", "evil.Code", "sasl.username"),
        ("security.providers", "evil.Code", "sasl.username"),
        ("sasl.kerberos.kinit.cmd", "rm -rf /", "SCRAM over TLS"),
        ("sasl.mechanism", "GSSAPI", "SCRAM over TLS"),
        ("ssl.engine.location", "/evil.so", "native code"),
        ("ssl.providers", "evil", "native code"),
        ("ssl_engine_callback_data", "x", "native code"),
        ("ssl.keystore.location", "/x.p12", "openssl pkcs12"),
        ("ssl.keystore.password", PASSWORD, "openssl pkcs12"),
        ("ssl.truststore.location", "/x.jks", "ssl.ca.location"),
        ("ssl.curves.list", "P-256", "both clients"),
        ("sasl.oauthbearer.method", "oidc", "oauth_cb"),
        ("sasl.oauthbearer.client.secret", PASSWORD, "oauth_cb"),
        ("https.ca.location", "x", "oauth_cb"),
        ("enable.sasl.oauthbearer.unsecure.jwt", True, "oauth_cb"),
        ("ssl.certificate.verify_cb", print, "not supported"),
        ("ssl.no.such", "x", "not supported"),
        ("sasl.mechanism", "DIGEST-MD5", "SCRAM-SHA-256"),
        ("security.protocol", "tls", "sasl_ssl"),
        ("sasl.password", "", "function without arguments"),
        ("sasl.password", 12345678, "function without arguments"),
        ("sasl.mechanism", lambda: "PLAIN", "can't be a function"),
        ("oauth_cb", "not a function", "Give a function"),
        ("ssl.endpoint.identification.algorithm", "md5", "'https'"),
        # The driver took it for "don't", and a restart sends a password before librdkafka is asked.
        ("enable.ssl.certificate.verification", "yes", "must be true"),
        ("enable.ssl.certificate.verification", "on", "must be true"),
    ],
)
def test_what_could_run_code_or_one_client_cannot_do_is_refused_by_name_with_the_reason(
    option, value, remedy
):
    with pytest.raises(OptionError, match=remedy) as caught:
        KafkaSink({**SERVERS, **SCRAM, option: value}, topic="t")
    assert repr(option) in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "12345678" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sasl.password": None}, "'sasl.password' is missing"),
        ({"sasl.username": None}, "'sasl.username' is missing"),
        ({"sasl.mechanism": None}, "'sasl.mechanism' is missing"),
        ({"sasl.mechanisms": "PLAIN"}, "'sasl.mechanism' is given twice"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "'oauth_cb' is missing"),
        ({"oauth_cb": print}, "'oauth_cb' has no effect"),
        ({"security.protocol": "ssl"}, "security.protocol=sasl_ssl"),
        ({"security.protocol": None}, "security.protocol=sasl_ssl"),
        (
            {"security.protocol": "sasl_plaintext", "ssl.ca.location": "x"},
            "'ssl.ca.location' has no effect",
        ),
        ({"ssl.ca.location": "x", "ssl.ca.pem": "y"}, "'ssl.ca.location' and 'ssl.ca.pem'"),
        ({"ssl.certificate.location": "x"}, "'ssl.key.location'"),
        ({"ssl.key.location": "x"}, "'ssl.certificate.location'"),
    ],
)
def test_options_that_make_no_sense_together_are_named(change, named):
    options = {
        name: value for name, value in {**SERVERS, **SCRAM, **change}.items() if value is not None
    }
    with pytest.raises(OptionError, match=named) as caught:
        KafkaSink(options, topic="t")
    assert "hunter2" not in str(caught.value)


def test_a_secret_value_is_in_no_pickle_and_comes_back_from_the_attempt():
    sink = KafkaSink({**SERVERS, **SCRAM}, topic="t")
    assert sink.secrets() == {"sasl.password": PASSWORD}
    for dump in (pickle.dumps, cloudpickle.dumps):
        stored = dump(sink)
        assert b"hunter2" not in stored
        loaded = pickle.loads(stored)
        assert loaded._options["sasl.password"] == Withheld()
        assert loaded.secrets() == {}
        assert loaded._configuration("x", sink.secrets()) == sink._configuration("x")
        with pytest.raises(AccessError, match="'sasl.password' did not reach"):
            loaded._configuration("x")
    attempt = TaskAttempt("q", "s", 1, 1, 0, 0, 0, secrets=sink.secrets())
    for text in (
        repr(sink),
        str(sink),
        repr(attempt),
        repr(loaded._options),
        repr(sink._fingerprint(attempt)),
    ):
        assert "hunter2" not in text


NO_SECRETS = {
    "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.oauthbearer.method", "oauth_cb",
    "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location", "ssl.certificate.pem",
    "ssl.key.location", "ssl.cipher.suites", "ssl.crl.location",
    "ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification",
}  # fmt: skip


def test_every_option_of_which_nobody_said_that_it_is_none_is_a_secret():
    """``ssl.key.pem`` is one, whose name says nothing of it."""
    options = (security.TLS_OPTIONS | security._SASL_OPTIONS) - NO_SECRETS
    assert {"sasl.password", "ssl.key.pem", "ssl.key.password"} < options
    for option in options:
        given = {**SERVERS, option: "hunter2"}
        assert "hunter2" not in repr(security.without_values(given)), option
        assert security.secret_values(given) == {option: "hunter2"}
        assert "hunter2" not in repr(security.fingerprint(given, {})), option


class Context:
    """What Spark's context does with local properties."""

    def __init__(self):
        self.properties = {}

    def setLocalProperty(self, key, value):  # noqa: N802  Spark's name
        self.properties[key] = value
        if value is None:
            del self.properties[key]


def test_a_value_goes_to_the_tasks_in_halves_that_say_nothing_and_are_gone_after_the_job():
    sink, other = KafkaSink({**SERVERS, **SCRAM}, topic="t"), KafkaSink(SERVERS, topic="t")
    halves = []
    for _ in range(2):
        handover, context = Handover({"out": sink, "other": other}), Context()
        with handover.around(context):
            ((key, half),) = context.properties.items()
        assert context.properties == {}
        assert key == "onceforall.secret.out"
        pad = handover.pads["out"]
        assert list(handover.pads) == ["out"]
        assert bytes(
            a ^ b for a, b in zip(bytes.fromhex(half), pad, strict=True)
        ).decode().strip() == json.dumps({"sasl.password": PASSWORD})
        halves += [bytes.fromhex(half), pad]
        assert "hunter2" not in repr(handover)
    assert all(len(half) == 256 for half in halves), "the length tells nothing"
    assert len(set(halves)) == 4, "each job draws its own"
    with pytest.raises(ZeroDivisionError), handover.around(context):
        assert 1 / (len(context.properties) - 1)
    assert context.properties == {}
    assert not [half for half in halves if b"hunter2" in half or half.count(b" ") > 16]


def test_a_copy_within_the_process_keeps_the_values():
    sink = KafkaSink({**SERVERS, **SCRAM}, topic="t")
    assert copy.copy(sink).secrets() == sink.secrets()
    assert copy.copy(sink)._configuration("x") == sink._configuration("x")


def password_of_now():
    return PASSWORD


def test_a_function_is_pickled_as_code_and_called_where_it_is_needed():
    sink = KafkaSink(
        {**SERVERS, **SCRAM, "sasl.password": password_of_now, "sasl.username": lambda: "ads"},
        topic="t",
    )
    assert sink.secrets() == {}
    loaded = pickle.loads(cloudpickle.dumps(sink))
    assert loaded._configuration("x")["sasl.password"] == PASSWORD
    assert loaded._configuration("x")["sasl.username"] == "ads"


def fails():
    raise RuntimeError(f"the vault said no to {PASSWORD}")


@pytest.mark.parametrize(
    ("function", "said"),
    [(fails, "raised RuntimeError in line"), (lambda: b"x", "a bytes"), (str, "empty")],
)
def test_of_a_function_that_fails_the_text_is_not_told(function, said):
    sink = KafkaSink({**SERVERS, **SCRAM, "sasl.password": function}, topic="t")
    with pytest.raises(AccessError, match=f"'sasl.password'.*{said}") as caught:
        sink._configuration("x")
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


class Impostor:
    """A server that knows no password: it says what it is told to say, and accepts everybody."""

    def __init__(self, iterations=4096, last="v=AAAA"):
        self.iterations, self.last, self.heard = iterations, last, []

    def authenticate(self, message):
        self.heard.append(message.decode())
        if len(self.heard) > 1:
            return self.last.encode(), None
        nonce = self.heard[0].rpartition("r=")[2]
        return (
            f"r={nonce}more,s={base64.b64encode(b'salt').decode()},i={self.iterations}".encode(),
            None,
        )


@pytest.mark.parametrize(("server", "said"), [(Impostor(), "may be somebody else"), (Impostor(last="x"), "may be somebody else"), (Impostor(100), "iterations"), (Impostor(10**8), "iterations")])  # fmt: skip
def test_a_server_that_does_not_know_the_password_is_found_out(server, said):
    with pytest.raises(sasl.SaslError, match=said):
        sasl.scram(server, "a,b=c", "secret", "SCRAM-SHA-256")
    assert server.heard[0].startswith("n,,n=a=2Cb=3Dc,r=")
    assert "secret" not in "".join(server.heard)


def test_certificates_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "bad.pem").write_text("no certificate")
    for options, named in [
        ({"ssl.ca.location": str(tmp_path / "none.pem")}, "ssl.ca.location"),
        ({"ssl.ca.location": str(tmp_path / "bad.pem")}, "ssl.ca.location"),
        ({"ssl.ca.pem": "hunter2"}, "ssl.ca.pem"),
        ({"ssl.certificate.pem": "hunter2", "ssl.key.pem": "hunter2"}, "ssl.key"),
    ]:
        with pytest.raises(AccessError, match=named) as caught:
            tls_context(options)
        assert "hunter2" not in str(caught.value)


def test_librdkafka_refuses_a_key_without_showing_it():
    options = {
        **SERVERS,
        "security.protocol": "ssl",
        "ssl.certificate.pem": "hunter2",
        "ssl.key.pem": "hunter2",
    }
    sink = KafkaSink({**options, "ssl.key.password": "hunter2"}, topic="t")
    with pytest.raises(OptionError, match="librdkafka refuses") as caught:
        sink.check(StartInfo("q", "s"))
    assert "hunter2" not in str(caught.value)


def test_a_broker_without_users_has_no_secure_listeners():
    broker = EmbeddedKafka()
    for ask in (lambda: broker.sasl_servers, lambda: broker.tls_servers):
        with pytest.raises(EmbeddedServerError, match="users="):
            ask()


# --- a real broker --------------------------------------------------------------------------------


def test_the_time_of_a_function_for_a_secret_is_none_that_the_broker_took(broker):
    """Somebody's vault may take longer than an answer of a broker may."""

    class Slow(Access):
        calls = 0

        def called(self):
            self.calls += 1
            time.sleep(1.0)
            return super().called()

    access = Slow({})
    with KafkaProxy(broker.port) as proxy:
        proxy.delay(Api.API_VERSIONS, 0.3)
        client = BrokerClient(proxy.address, access=access, deadline_s=0.8, answer_timeout_s=0.8)
        try:
            assert client.metadata().brokers
        finally:
            client.close()
    assert access.calls == 1


@pytest.fixture(scope="module")
def secured():
    with EmbeddedKafka(users={"ads": PASSWORD}) as kafka:
        yield Secured(kafka)


@pytest.fixture
def prefix():
    return f"p{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make(query, secured, prefix):
    """Make a query with a sink at the secured broker: ``make(options, topic)``."""

    def made(options, topic=None, **more):
        more = (
            {"transactional_id_prefix": prefix, **more}
            if more.get("delivery", "exactly_once") == "exactly_once"
            else more
        )
        one = query(topic, servers=options["bootstrap.servers"], options=options, **more)
        sink, plain_attempt = one.sink, one.attempt
        # As Spark does it: the task has an unpickled copy, and the values in its attempt.
        one.attempt = lambda *a, **m: TaskAttempt(
            **{**vars(plain_attempt(*a, **m)), "secrets": sink.secrets()}
        )
        one.in_task = pickle.loads(cloudpickle.dumps(sink))
        return one

    return made


def written(one, values, batch_of, batch=1, slot=0):
    transaction = one.in_task.begin_transaction(one.attempt(batch, slot))
    try:
        one.in_task.invoke(transaction, batch_of(values))
        return one.in_task.pre_commit(transaction)
    except BaseException:
        one.in_task.discard(transaction)
        raise


def written_to(transaction, batch_of):
    transaction.write(batch_of(["x"]))
    return transaction


def unsecured_token(user, lifetime_s=3600, **claims):
    def part(data):
        return base64.urlsafe_b64encode(json.dumps(data).encode()).rstrip(b"=").decode()

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': user, 'iat': now, 'exp': now + lifetime_s, **claims})}."


def token_for_ads(config):
    assert config == "scope=ads"
    return unsecured_token("ads"), time.time() + 3600, "ads", {"extension": "x"}


ALL_WAYS = [
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER",
    "certificate",
    "certificate as text",
    "encrypted key",
]


def encrypted_key(secured):
    path = secured.kafka.tls_dir / "encrypted.key"
    command = [
        "openssl",
        "pkcs8",
        "-topk8",
        "-in",
        "client.key",
        "-out",
        path.name,
        "-passout",
        "stdin",
    ]
    subprocess.run(
        command, cwd=secured.kafka.tls_dir, input=PASSWORD.encode(), check=True, capture_output=True
    )
    return str(path)


def way(secured, kind):
    """Return options and principal."""
    if kind == "OAUTHBEARER":
        options = secured.scram(
            **{
                "sasl.mechanism": kind,
                "oauth_cb": token_for_ads,
                "sasl.oauthbearer.config": "scope=ads",
            }
        )
        del options["sasl.username"], options["sasl.password"]
        return options, "ads"
    if kind == "certificate":
        return secured.mutual(), "CN=client"
    if kind == "encrypted key":
        return {
            **secured.mutual(),
            "ssl.key.location": encrypted_key(secured),
            "ssl.key.password": PASSWORD,
        }, "CN=client"
    if kind == "certificate as text":
        options = {
            name: value
            for name, value in secured.mutual().items()
            if not name.endswith(".location")
        }
        for part, file in (("ca", "ca.pem"), ("certificate", "client.pem"), ("key", "client.key")):
            options[f"ssl.{part}.pem"] = (secured.kafka.tls_dir / file).read_text()
        return options, "CN=client"
    return secured.scram(**{"sasl.mechanism": kind}), "ads"


@pytest.mark.kafka
@pytest.mark.parametrize("kind", ALL_WAYS)
def test_one_configuration_serves_both_clients(secured, make, prefix, batch_of, committed, kind):
    options, user = way(secured, kind)
    topic = secured.topic()
    secured.grant(secured.for_topic(topic, user), secured.for_ids(prefix, user))
    one = make(options, topic)
    one.check()
    committable = written(one, ["a", "b"], batch_of)
    assert one.commit(committable).completed == (committable,)
    assert sorted(m.value() for m in committed(topic, secured.kafka.bootstrap_servers)) == [
        b"a",
        b"b",
    ]


@pytest.mark.kafka
def test_a_wrong_password_of_a_key_is_said_and_nobody_is_asked_for_another(secured, make):
    options, _ = way(secured, "encrypted key")
    without = {name: value for name, value in options.items() if name != "ssl.key.password"}
    for wrong in ({**without, "ssl.key.password": "wrong-hunter2"}, without):
        with pytest.raises(AccessError, match=r"is ssl\.key\.password right"):
            tls_context(wrong)
        with pytest.raises((OptionError, SinkCheckError), match=r"ssl\.key") as caught:
            make(wrong, "t").check()
        assert "hunter2" not in str(caught.value)


@pytest.mark.kafka
@pytest.mark.parametrize("kind", ["SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize("delivery", ["at_least_once", "none"])
def test_the_other_deliveries_need_the_topic_alone(
    secured, make, batch_of, committed, delivery, kind
):
    options, user = way(secured, kind)
    topic = secured.topic()
    secured.grant(secured.for_topic(topic, user))
    one = make(options, topic, delivery=delivery)
    one.check()
    assert written(one, ["a"], batch_of) is None
    until(
        lambda: [m.value() for m in committed(topic, secured.kafka.bootstrap_servers)] == [b"a"],
        20,
        "the record",
    )


def wrong_ways(secured):
    plain = {"bootstrap.servers": secured.kafka.sasl_servers}
    no_ca = secured.scram()
    del no_ca["ssl.ca.location"]
    localhost = secured.kafka.sasl_servers.replace("127.0.0.1", "localhost")
    return {
        "wrong password": (secured.scram(password="wrong"), "Check sasl.username and sasl.password"),
        "unknown user": (secured.scram(user="who"), "Check sasl.username and sasl.password"),
        "wrong password, plain": (secured.scram(password="x", **{"sasl.mechanism": "PLAIN"}), "Check sasl.username"),
        "unknown authority": (no_ca, "Check ssl.ca.location"),
        "wrong host name": (secured.scram(**{"bootstrap.servers": localhost}), ("certificate is "
                                                                               "not for 'localhost'")),
        "no TLS at a TLS port": (plain, "set security.protocol"),
        "TLS at a plaintext port": (
            {**secured.scram(), "bootstrap.servers": secured.kafka.bootstrap_servers},
            "doesn't speak TLS.*security.protocol",
        ),
        "no SASL at a SASL port": ({**plain, "security.protocol": "ssl", **secured.ca}, ("Set "
                                                                                        "security.protocol=sasl_ssl")),
        "SASL at a port without": ({**secured.scram(), **secured.certificate, "bootstrap.servers": secured.kafka.tls_servers}, "doesn't use SASL"),
        "no certificate": (
            {"bootstrap.servers": secured.kafka.tls_servers, "security.protocol": "ssl", **secured.ca},
            "ssl.certificate.location",
        ),
    }  # fmt: skip


@pytest.mark.kafka
@pytest.mark.parametrize("wrong", ["wrong password", "unknown user", "wrong password, plain", "unknown authority", "wrong host name", "no TLS at a TLS port", "TLS at a plaintext port", "no SASL at a SASL port", "SASL at a port without", "no certificate"])  # fmt: skip
def test_what_cannot_connect_is_said_at_check_at_once_with_the_option_to_mend(secured, make, wrong):
    options, named = wrong_ways(secured)[wrong]
    one = make(options, "t")
    start = time.monotonic()
    with pytest.raises(SinkCheckError, match=named) as caught:
        one.check()
    assert time.monotonic() - start < 5
    assert "hunter2" not in str(caught.value)


@pytest.mark.kafka
def test_a_user_that_the_token_endpoint_refuses_is_told_so(secured, make):
    options, _ = way(secured, "OAUTHBEARER")
    for function, said in [
        (lambda _: ("planted-hunter2", time.time() + 60), "Check oauth_cb"),
        (lambda _: fails(), "'oauth_cb' raised RuntimeError"),
        (lambda _: "token", "'oauth_cb' returned a str"),
        (lambda _: ("token", 5), "has expired"),
    ]:
        one = make({**options, "oauth_cb": function}, "t")
        with pytest.raises(SinkCheckError, match=said) as caught:
            one.check()
        assert "hunter2" not in str(caught.value)


@pytest.mark.kafka
@pytest.mark.parametrize(("wrong", "named"), [("wrong password", "Check sasl.mechanism, sasl.username and sasl.password"), ("unknown authority", "ssl.ca.location")])  # fmt: skip
def test_what_cannot_connect_in_a_task_fails_the_attempt_soon_and_names_the_option(
    secured, make, batch_of, wrong, named
):
    options, _ = wrong_ways(secured)[wrong]
    start = time.monotonic()
    with pytest.raises(AttemptFailedError, match=named):
        written(make(options, "t"), ["a"], batch_of)
    assert time.monotonic() - start < 10


# --- rights ---------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_two_acls_are_all_that_is_needed(secured, make, prefix, batch_of, committed):
    topic = secured.topic()
    secured.grant(secured.for_topic(topic), secured.for_ids(prefix))
    one = make(secured.scram(), topic)
    one.check()
    prepared = [written(one, [v], batch_of, slot=i) for i, v in enumerate("abc")]
    done, _, aborted = one.sink.confirm(prepared)
    one.commit(done)
    one.sink.abort([aborted])
    one.sink.retire([done])
    assert one.sink.recover(one.sweep()) == 1, (
        "the undecided transaction is found, which needs DESCRIBE on its id"
    )
    released(secured.kafka.bootstrap_servers, topic)
    assert [m.value() for m in committed(topic, secured.kafka.bootstrap_servers)] == [b"a"]


COMMAND = (
    r"kafka-acls\.sh --bootstrap-server {servers} --add --allow-principal User:ads "
    r"--operation Write {resource}"
)


def named(secured, resource, operation="Write"):
    command = COMMAND.replace("Write", operation)
    return command.format(servers=secured.kafka.sasl_servers, resource=resource)


@pytest.mark.kafka
@pytest.mark.parametrize("granted", [AclOperation.DESCRIBE, None])
@pytest.mark.parametrize("missing", ["topic", "ids"])
def test_each_acl_that_is_missing_is_named_with_the_command_that_grants_it(
    secured, make, prefix, batch_of, missing, granted
):
    topic = secured.topic()
    acls = {"topic": secured.for_topic(topic), "ids": secured.for_ids(prefix)}
    resources = {
        "topic": f"--topic {topic}",
        "ids": f"--transactional-id {prefix}: --resource-pattern-type prefixed",
    }
    wanted = acls.pop(missing)
    secured.grant(*acls.values())
    if granted is not None:
        secured.grant(
            secured.for_topic(topic, operation=granted)
            if missing == "topic"
            else secured.for_ids(prefix, operation=granted)
        )
    one = make(secured.scram(), topic)
    with pytest.raises(SinkCheckError, match=named(secured, resources[missing])):
        one.check()
    start = time.monotonic()
    with pytest.raises(AttemptFailedError, match=named(secured, resources[missing])):
        written(one, ["a"], batch_of)
    assert time.monotonic() - start < 10
    secured.grant(wanted)
    one.check()


@pytest.mark.kafka
def test_a_right_that_is_lost_after_the_decision_is_asked_for_and_nothing_is_lost(
    secured, make, prefix, batch_of, committed
):
    topic = secured.topic()
    ids = secured.for_ids(prefix)
    secured.grant(secured.for_topic(topic), ids)
    one = make(secured.scram(), topic)
    one.check()
    committable = written(one, ["a"], batch_of)
    secured.revoke(ids)
    start = time.monotonic()
    resource = f"--transactional-id {prefix}: --resource-pattern-type prefixed"
    with pytest.raises(SinkUnavailableError, match=named(secured, resource)):
        one.commit(committable)
    assert time.monotonic() - start < 5
    secured.grant(ids)
    report = one.commit(committable)
    assert (report.lost, report.in_doubt) == ((), ())
    assert [m.value() for m in committed(topic, secured.kafka.bootstrap_servers)] == [b"a"]


@pytest.mark.kafka
@pytest.mark.parametrize("how", ["commit", "abort", "recover"])
def test_nothing_is_ended_whose_partitions_its_coordinator_hides(
    secured, make, prefix, batch_of, how
):
    """A coordinator leaves out the partitions of topics that the user may not DESCRIBE, and says
    nothing of it. One of them may have no leader: Kafka leaves its marker out (KAFKA-20734).
    """
    topic = secured.topic()
    acl = secured.for_topic(topic)
    secured.grant(acl, secured.for_ids(prefix))
    one = make(secured.scram(), topic)
    one.check()
    committable = written(one, ["a"], batch_of)
    do = {
        "commit": lambda: one.commit(committable),
        "abort": lambda: one.sink.abort([committable]),
        "recover": lambda: one.sink.recover(one.sweep()),
    }[how]
    secured.revoke(acl)
    with pytest.raises(
        SinkUnavailableError, match=r"doesn't tell all the partitions.* User:ads may not DESCRIBE"
    ):
        do()
    assert one.sink._connected().open_transactions() == [committable["name"]]
    secured.grant(acl)
    do()
    assert not one.sink._connected().open_transactions()


@pytest.mark.kafka
def test_nothing_is_ended_of_which_one_topic_of_two_is_hidden(secured, make, prefix):
    seen, hidden = secured.topic(), secured.topic()
    acl = secured.for_topic(hidden)
    secured.grant(acl, secured.for_topic(seen), secured.for_ids(prefix))
    one = make(secured.scram())
    one.check()
    committable = written(
        one, ["a", "b"], lambda values: rows(values, topic=pa.array([seen, hidden], pa.string()))
    )
    secured.revoke(acl)
    right = named(secured, f"--topic {hidden}", "Describe")
    for end in (one.sink.abort, one.sink.confirm):
        with pytest.raises(SinkUnavailableError, match=right):
            end([committable])
    secured.grant(acl)
    (confirmed,) = one.sink.confirm([committable])
    assert one.commit(confirmed).completed


@pytest.mark.kafka
@pytest.mark.parametrize("is_made_again", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_topic_that_goes_together_with_the_right_on_it_is_not_taken_for_the_old_one(
    secured, make, prefix, batch_of, is_made_again
):
    """The batch would be complete, and its rows nowhere."""
    topic = secured.topic()
    acl = secured.for_topic(topic)
    secured.grant(acl, secured.for_ids(prefix))
    one = make(secured.scram(), topic)
    one.check()
    (committable,) = one.sink.confirm([written(one, ["a"], batch_of)])
    delete_topic(secured.kafka.bootstrap_servers, topic)
    if is_made_again:
        secured.kafka.create_topic(topic)
    secured.revoke(acl)
    one.sink._just_confirmed = frozenset()
    with pytest.raises(SinkUnavailableError, match=named(secured, f"--topic {topic}", "Describe")):
        one.commit(committable)
    secured.grant(acl)
    (doubt,) = one.commit(committable).in_doubt
    assert doubt.is_open
    one.sink.abort([committable])


@pytest.mark.kafka
def test_a_right_that_is_taken_away_before_the_decision_is_named(secured, make, prefix, batch_of):
    topic = secured.topic()
    acl = secured.for_topic(topic)
    secured.grant(acl, secured.for_ids(prefix))
    one = make(secured.scram(), topic)
    one.check()
    prepared = written(one, ["a"], batch_of)
    secured.revoke(acl)
    start = time.monotonic()
    with pytest.raises(SinkUnavailableError, match=named(secured, f"--topic {topic}", "Describe")):
        one.sink.confirm([prepared])
    assert time.monotonic() - start < 5, "nobody looks for leaders first"
    with pytest.raises(SinkUnavailableError, match=named(secured, f"--topic {topic}", "Describe")):
        one.sink._connected_reader().end_offsets({topic}, {}, again=True)
    secured.grant(acl)
    assert one.sink.confirm([prepared])
    one.sink.abort([prepared])


@pytest.mark.kafka
def test_a_proof_in_a_topic_that_is_hidden_by_now_names_the_right(secured, make, prefix, batch_of):
    """It is not called gone: a person would look for rows, find none, and write them twice."""
    topic, new = secured.topic(), secured.topic()
    acl = secured.for_topic(topic)
    secured.grant(acl, secured.for_topic(new), secured.for_ids(prefix))
    one = make(secured.scram(), topic)
    one.check()
    (committable,) = one.sink.confirm([written(one, ["a"], batch_of)])
    one.sink.abort([committable])
    secured.revoke(acl)
    again = make(secured.scram(), new)
    (doubt,) = again.commit(committable).in_doubt
    assert re.search(named(secured, f"--topic {topic}", "Describe"), doubt.reason)
    assert "not there any more" not in doubt.reason


@pytest.mark.kafka
def test_a_loss_that_may_not_be_proved_names_the_right_and_is_proved_once_it_is_granted(
    secured, make, prefix, batch_of
):
    topic = secured.topic()
    secured.grant(secured.for_topic(topic), secured.for_ids(prefix))
    one = make(secured.scram(), topic)
    one.check()
    (committable,) = one.sink.confirm([written(one, ["a"], batch_of)])
    # Twice, or the state alone would tell.
    for _ in range(2):
        one.sink._connected().fence([committable["name"]])
    (doubt,) = one.commit(committable).in_doubt
    assert re.search(rf"may not READ topic.*--operation Read --topic {topic}", doubt.reason)
    secured.grant(secured.acl(ResourceType.TOPIC, topic, AclOperation.READ, "ads"))
    (lost,) = one.commit(committable).lost
    assert lost.committable == committable


# --- rotation -------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_a_new_password_is_taken_at_the_next_connection_and_the_old_one_asks_for_mending(
    secured, make, prefix, batch_of, sees, tmp_path
):
    user = f"u{uuid.uuid4().hex[:6]}"
    secured.kafka.set_password(user, "first")
    topic = secured.topic()
    secured.grant(secured.for_topic(topic, user), secured.for_ids(prefix, user))
    file = tmp_path / "password"
    file.write_text("first")
    path = str(file)
    one = make(secured.scram(user, lambda: Path(path).read_text()), topic)
    stale = make(secured.scram(user, "first"), topic)
    one.check()
    stale.check()
    decided = written(one, ["a"], batch_of)
    secured.kafka.set_password(user, "second")
    stale.sink.close()
    with pytest.raises(SinkUnavailableError, match="Check sasl.username and sasl.password"):
        stale.commit(decided)
    one.sink.close()
    with pytest.raises(SinkUnavailableError, match="Check sasl.username and sasl.password"):
        one.commit(decided)
    file.write_text("second")
    assert one.commit(decided).completed == (decided,)
    sees(topic, ["a"], secured.kafka.bootstrap_servers)
    # Another start of the query: other producers.
    later = TaskAttempt(**{**vars(one.attempt(batch=2)), "generation": 2})
    transaction = one.in_task.begin_transaction(later)
    one.in_task.invoke(transaction, batch_of(["b"]))
    assert one.commit(one.in_task.pre_commit(transaction)).completed
    sees(topic, ["a", "b"], secured.kafka.bootstrap_servers)


@pytest.mark.kafka
def test_a_live_producer_takes_the_password_of_now_for_its_next_connections(
    secured, make, prefix, batch_of, monkeypatch
):
    topic = secured.topic()
    secured.grant(secured.for_topic(topic), secured.for_ids(prefix))
    calls = []
    one = make(secured.scram(), topic)
    one.in_task._options["sasl.password"] = lambda: calls.append(1) or PASSWORD
    one.reusable = [{**c, "batch": 1} for c in one.commit(written(one, ["a"], batch_of)).completed]
    assert len(calls) == 1
    transaction = one.in_task.begin_transaction(one.attempt(2))
    assert len(calls) == 1, "a producer that is used again at once asks nobody"
    assert transaction.producer.name == one.reusable[0]["name"]
    transaction.producer.configured_s -= 60
    one.reusable = [
        {**c, "batch": 2}
        for c in one.commit(one.in_task.pre_commit(written_to(transaction, batch_of))).completed
    ]
    again = one.in_task.begin_transaction(one.attempt(3))
    assert again.producer is transaction.producer
    assert len(calls) == 2
    again.producer.configured_s -= 60
    one.reusable = [
        {**c, "batch": 3}
        for c in one.commit(one.in_task.pre_commit(written_to(again, batch_of))).completed
    ]
    one.in_task._options["sasl.password"] = fails
    with pytest.raises(AccessError, match="RuntimeError"):
        one.in_task.begin_transaction(one.attempt(4))
    assert again.producer not in [
        p for made in producers.POOL._producers.values() for _, p in made
    ], "it would be held for ever"


# --- a planted password ---------------------------------------------------------------------------


def planted(secured, kind):
    """Return options, principal, the same options with something that is refused, and what of
    all that may be nowhere."""
    options, user = way(secured, kind)
    if kind == "OAUTHBEARER":
        right, expires = unsecured_token("ads", note=PASSWORD), time.time() + 3600
        wrong = f"{right}no-signature"
        taken = {**options, "oauth_cb": lambda _: (right, expires, "ads", {})}
        # The claims of both; what comes before them is in every token.
        return (
            taken,
            user,
            {**options, "oauth_cb": lambda _: (wrong, expires, "ads", {})},
            [right.split(".")[1]],
        )
    if kind == "encrypted key":
        return options, user, {**options, "ssl.key.password": "wrong-hunter2"}, []
    return options, user, {**options, "sasl.username": "who"}, []


@pytest.mark.kafka
@pytest.mark.parametrize("kind", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "encrypted key"])
def test_a_planted_secret_is_in_no_log_even_where_everything_is_logged(
    secured, make, prefix, batch_of, capfd, kind
):
    options, user, refused, needles = planted(secured, kind)
    said = {"OAUTHBEARER": "Check oauth_cb", "encrypted key": r"ssl\.key"}.get(
        kind, "Check sasl.username"
    )
    needles += ["hunter2", base64.b64encode(PASSWORD.encode()).decode()]
    topic = secured.topic()
    secured.grant(secured.for_topic(topic, user), secured.for_ids(prefix, user))
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    root = logging.getLogger()
    levels = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        one = make({**options, "debug": "all"}, topic)
        one.check()
        committable = written(one, ["a"], batch_of)
        assert one.commit(committable).completed == (committable,)
        with pytest.raises((OptionError, SinkCheckError), match=said) as caught:
            make({**refused, "debug": "all"}, topic).check()
    finally:
        root.setLevel(levels)
        root.removeHandler(handler)
    printed = capfd.readouterr()
    text = heard.getvalue() + printed.out + printed.err
    # Of a token, the configuration has only the function.
    shown = "sasl.mechanisms = OAUTHBEARER" if kind == "OAUTHBEARER" else "[redacted]"
    assert shown in text, "librdkafka's configuration was not logged, so this shows nothing"
    assert "Sending request" in text, (
        "kafka-python's requests were not logged, so this shows nothing"
    )
    marks = [str(mark) for made in producers.POOL._producers.values() for mark, _ in made]
    assert marks
    for place in (text, str(caught.value), json.dumps(committable), *marks):
        assert not [needle for needle in needles if needle in place]


@pytest.mark.kafka
def test_a_renewed_certificate_is_read_and_the_settings_are_kept_otherwise(secured, tmp_path):
    file = tmp_path / "ca.pem"
    file.write_text((secured.kafka.tls_dir / "ca.pem").read_text())
    options = {"security.protocol": "ssl", "ssl.ca.location": str(file)}
    access = Access(options)
    first = access._context(options)
    assert access._context(options) is first
    until(
        lambda: file.touch() or access._context(options) is not first, 5, "the new file to be read"
    )
    file.write_text("no certificate")
    with pytest.raises(AccessError, match=r"ssl\.ca\.location"):
        access._context(options)


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.long
def test_a_query_leaves_its_password_nowhere(secured, prefix, tmp_path, committed):
    topic = secured.topic()
    secured.grant(secured.for_topic(topic), secured.for_ids(prefix))
    wrong = "planted-wrong-hunter2"
    work = tmp_path / "work"
    work.mkdir()
    config = {
        "work": str(work),
        "topic": topic,
        "options": secured.scram(),
        "wrong_password": wrong,
        "prefix": prefix,
    }
    with (work / "log.txt").open("wb") as log:
        done = subprocess.run(
            [sys.executable, str(SECURED)],
            input=json.dumps(config).encode(),
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=180,
            check=False,
        )
    text = (work / "log.txt").read_text(errors="replace")
    assert done.returncode == 0, text[-3000:]
    status = json.loads((work / "status.json").read_text())
    assert status["left"] == []
    assert "Check sasl.username and sasl.password" in status["refused"]
    assert len(committed(topic, secured.kafka.bootstrap_servers)) >= 10 * status["batches"] >= 30
    # Each place is really searched: it has what belongs there.
    events = "".join(file.read_text() for file in (work / "events").rglob("*") if file.is_file())
    assert '"onceforall.secret.out":"' in events
    assert "Command to send" in text, "py4j's commands were not logged"
    assert list((work / "good" / "onceforall" / "chains").rglob("*.json"))
    assert "onceforall.secret." not in text, "py4j's log has the one half and may have the other"
    encoded = [
        PASSWORD.encode().hex().encode(),
        base64.b64encode(PASSWORD.encode())[:-4],
        b"hunter2",
    ]
    for file in (file for file in work.rglob("*") if file.is_file()):
        data = file.read_bytes()
        assert not [needle for needle in encoded if needle in data], file


def _leaders_told(one):
    leaders, reason = one.sink._connected()._transaction_leaders(time.monotonic() + 10)
    assert not reason
    return leaders


def documented_acls():
    """The ACLs of the commands in docs/kafka.md, in their order."""
    page = (Path(__file__).parents[3] / "docs" / "kafka.md").read_text()
    resources = {"transactional-id": ResourceType.TRANSACTIONAL_ID, "topic": ResourceType.TOPIC}
    found = []
    for command in re.findall(r"^kafka-acls\.sh (.*)$", page, re.MULTILINE):
        words = dict(re.findall(r"--([a-z-]+)(?: ([^-\s]\S*))?", command))
        assert words["allow-principal"] == "User:ads"
        kind = next((k for k in resources if k in words), None)
        pattern = ResourcePatternType[words.get("resource-pattern-type", "literal").upper()]
        operation = AclOperation[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", words["operation"]).upper()]
        resource = (
            (ResourceType.BROKER, "kafka-cluster")
            if kind is None
            else (resources[kind], words[kind])
        )
        found.append(Secured.acl(*resource, operation, "ads", pattern))
    return found


@pytest.mark.kafka
def test_the_commands_of_the_documentation_grant_what_is_needed(secured, make, batch_of, caplog):
    needed, optional = documented_acls()[:2], documented_acls()[2:]
    assert len(optional) == 4
    secured.kafka.create_topic("attributed")
    one = make(secured.scram(), "attributed", transactional_id_prefix="ads")
    with pytest.raises(SinkCheckError):
        one.check()
    secured.grant(*needed)
    try:
        one.check()
        assert "transaction.max.timeout.ms could not be read" in caplog.text
        assert one.sink._topic_max_bytes is None
        assert one.commit(written(one, ["a"], batch_of)).completed
        assert _leaders_told(one) == {}
        caplog.clear()
        secured.grant(*optional)
        one.check()
        assert "could not be read" not in caplog.text
        assert one.sink._topic_max_bytes
        assert _leaders_told(one)
    finally:
        secured.revoke(*needed, *optional)


def is_ended(connection):
    """Tell whether the broker takes no request on a connection any more; it ends one that is too
    old at its next request only."""
    # What the connection has imported without the warnings of kafka-python.
    from kafka.protocol.metadata import ApiVersionsRequest

    try:
        connection.send([ApiVersionsRequest(version=0)])
        connection.receive(time.monotonic() + 20)
    except _ConnectionLostError as error:
        if "no answer in time" in str(error):
            raise
        return True
    return False


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
def test_authentication_that_runs_out_costs_no_doubt(query, batch_of, mechanism):
    """Connections that are older than what the broker accepts are not used, and no request goes
    unanswered for it."""
    lifetime_s = 3
    config = {"connections.max.reauth.ms": str(1000 * lifetime_s)}
    with EmbeddedKafka(users={"ads": PASSWORD}, config=config) as kafka:
        broker = Secured(kafka)
        topic = broker.topic()
        broker.grant(broker.for_topic(topic), broker.for_ids("p"))
        options, _ = way(broker, mechanism)
        one = query(topic, servers=kafka.sasl_servers, options=options, transactional_id_prefix="p")
        for batch in range(1, 4):
            committable = one.prepare([str(batch)], batch=batch)
            assert one.commit(committable).completed == (committable,)
            wire = one.sink._connected()._wire
            idle = [c for made in wire._idle.values() for c in made]
            assert idle
            assert all(c.is_usable() for c in idle)
            # Authenticated after all of them: once the broker ends this one, it would end each of
            # them at its next request.
            youngest = _Connection(idle[0].address, time.monotonic() + 20, wire._access)
            assert not is_ended(youngest)
            until(lambda last=youngest: is_ended(last), 10 * lifetime_s, "the broker's limit")
            youngest.close()
            assert not any(c.is_usable() for c in idle)


@pytest.mark.kafka
@pytest.mark.long
def test_a_password_is_rotated_over_a_restart_of_the_query_and_of_the_broker(
    query, committed, uncommitted
):
    with EmbeddedKafka(users={"ads": PASSWORD}) as kafka:
        broker = Secured(kafka)
        topic = broker.topic()
        broker.grant(broker.for_topic(topic), broker.for_ids("p"))
        before = query(
            topic, servers=kafka.sasl_servers, options=broker.scram(), transactional_id_prefix="p"
        )
        before.check()
        decided = before.prepare(["a"])
        before.prepare(["b"], slot=1)
        kafka.set_password("ads", "second")
        kafka.restart()
        after = query(
            topic,
            servers=kafka.sasl_servers,
            options=broker.scram(password="second"),
            transactional_id_prefix="p",
        )
        after.id = before.id
        after.check()
        assert after.commit(decided).completed == (decided,)
        assert after.sink.recover(after.sweep()) == 1
        after.sink.close()
        released(kafka.bootstrap_servers, topic)
        assert [m.value() for m in committed(topic, kafka.bootstrap_servers)] == [b"a"]
        written = sorted(m.value() for m in uncommitted(topic, kafka.bootstrap_servers))
        assert written == [b"a", b"b"], (
            "what nobody decided was not there, so that it can't be seen shows nothing"
        )
        with pytest.raises(SinkCheckError, match="Check sasl.username and sasl.password"):
            query(
                topic,
                servers=kafka.sasl_servers,
                options=broker.scram(),
                transactional_id_prefix="p",
            ).check()


@pytest.mark.kafka
def test_a_right_that_is_taken_away_while_a_producer_lives_is_named_by_the_next_batch(
    secured, make, prefix, batch_of
):
    topic = secured.topic()
    acls = {"topic": secured.for_topic(topic), "ids": secured.for_ids(prefix)}
    resources = {
        "topic": f"--topic {topic}",
        "ids": f"--transactional-id {prefix}: --resource-pattern-type prefixed",
    }
    secured.grant(*acls.values())
    one = make(secured.scram(), topic)
    one.check()
    for batch, taken in ((1, "topic"), (3, "ids")):
        one.reusable = [
            {**c, "batch": batch}
            for c in one.commit(written(one, ["a"], batch_of, batch)).completed
        ]
        assert one.reusable
        secured.revoke(acls[taken])
        with pytest.raises(AttemptFailedError, match=named(secured, resources[taken])):
            written(one, ["b"], batch_of, batch + 1)
        secured.grant(acls[taken])
