"""Which answers of Kinesis, of gateways before it and of nobody are waited out, by source and sink,
and what an error shows of them."""

from __future__ import annotations

import http.server
import json
import pickle
import threading
import time
import traceback

import botocore.exceptions
import pyarrow as pa
import pytest
from botocore.retries.standard import ThrottledRetryableChecker, TransientRetryableChecker

import onceforall as ofa
from onceforall.common import aws
from onceforall.common.aws import Access, may_succeed, told
from onceforall.errors import (
    AttemptFailedError,
    OptionError,
    RefusedRecordError,
    SinkCheckError,
    SinkUnavailableError,
    SourceError,
    SourceUnavailableError,
)
from onceforall.sink import StartInfo, TaskAttempt
from onceforall.sinks.kinesis.writing import KinesisWriting
from onceforall.sources.kinesis.client import Shards
from support.patching import replace_here

ATTEMPT = TaskAttempt("9f2b1c1e-1111-4222-8333-444455556666", "out", 0, 0, 0, 0, 0)
START = StartInfo("", "out")
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "hunter2"}
DESCRIBED = json.dumps(
    {
        "StreamDescriptionSummary": {
            "StreamARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/s",
            "StreamCreationTimestamp": 1.0,
            "RetentionPeriodHours": 24,
            "StreamName": "s",
            "StreamStatus": "ACTIVE",
            "EnhancedMonitoring": [],
            "OpenShardCount": 1,
        }
    }
)
TAKEN = json.dumps({"Records": [{"SequenceNumber": "1", "ShardId": "shardId-0"}]})


class Server(http.server.ThreadingHTTPServer):
    """Gives answers in their order, and then those of a stream that is there; its port refuses
    everybody until it listens."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.server_bind()
        self.url, self.answers = f"http://127.0.0.1:{self.server_port}", []

    def listen(self):
        self.server_activate()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        fine = TAKEN if "PutRecords" in self.headers["x-amz-target"] else DESCRIBED
        status, body = self.server.answers.pop(0) if self.server.answers else (200, fine)
        # As AWS does: the headers of the request are in the message.
        body = body.replace("HEADERS", json.dumps(str(self.headers))[1:-1])
        self.send_response(status)
        self.send_header("content-type", "application/x-amz-json-1.1")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def listening():
    with Server() as server:
        server.listen()
        yield server
        server.shutdown()


@pytest.fixture
def answering(listening):
    """A server, and the answers that it is to give."""
    listening.answers.clear()
    return listening.url, listening.answers


@pytest.fixture
def away():
    """A server that nobody can connect to."""
    with Server() as server:
        yield server


def ends(url, retry_s=20.0):
    """What asks: the source, a task of the sink, and the sink's check."""
    shards = Shards(Access(region="eu-west-1", endpoint_url=url, retry_s=retry_s))
    sink = ofa.KinesisSink("s", region="eu-west-1", endpoint_url=url, retry_s=retry_s)

    def put():
        writing = sink.begin_transaction(ATTEMPT)
        sink.invoke(writing, pa.RecordBatch.from_pydict({"data": [b"x"], "partitionKey": ["k"]}))
        sink.pre_commit(writing)

    return lambda: shards.describe("s"), put, lambda: sink.check(START)


@pytest.mark.parametrize("which", [0, 1], ids=["source", "sink"])
def test_nobody_listens_and_then_somebody_does(away, monkeypatch, which):
    replace_here(
        monkeypatch, time, "sleep", lambda _: away.listen() if not pauses.append(1) else None
    )
    pauses = []
    ends(away.url)[which]()
    assert pauses == [1]
    away.shutdown()


def test_nobody_who_can_be_connected_to_is_unavailable_in_the_end(away):
    source, put, check = ends(away.url, retry_s=0.3)
    with pytest.raises(SourceUnavailableError, match="in 0 s: EndpointConnectionError. Check the"):
        source()
    words = r"taken nothing for 0 s: EndpointConnectionError. Check the network and the address\."
    with pytest.raises(AttemptFailedError, match=words) as raised:
        put()
    assert "shards" not in str(raised.value)
    with pytest.raises(SinkUnavailableError, match="did not answer about .* EndpointConnection"):
        check()


AGAIN = [
    (500, ""),
    (502, "<html>"),
    (503, ""),
    (504, "<html>Gateway Time-out</html>"),
    (429, ""),
    (408, ""),
    (404, "404 page not found"),
    (500, '{"__type": "SomethingNew"}'),
    (400, '{"__type": "com.amazonaws.kinesis#KMSThrottlingException"}'),
    *((400, json.dumps({"__type": code})) for code in ("Throttling", "RequestTimeoutException")),
]
ENDS = [
    (403, ""),
    (400, ""),
    (413, "<html>"),
    *(
        (400, json.dumps({"__type": code, "message": "HEADERS"}))
        for code in ("InvalidSignatureException", "AccessDeniedException", "ValidationException")
    ),
]


@pytest.mark.parametrize(("status", "body"), AGAIN, ids=range(len(AGAIN)))
def test_what_a_later_request_may_get_through_is_sent_again(answering, monkeypatch, status, body):
    replace_here(monkeypatch, time, "sleep", lambda _: None)
    url, answers = answering
    source, put, check = ends(url)
    for ask in (source, put):
        answers[:] = [(status, body)] * 2
        ask()
        assert answers == []
    answers.append((status, body))
    with pytest.raises(SinkUnavailableError, match=f"HTTP {status} of DescribeStreamSummary"):
        check()


@pytest.mark.parametrize(("status", "body"), ENDS, ids=range(len(ENDS)))
def test_what_stays_refused_is_told_at_once_without_the_services_message(answering, status, body):
    url, answers = answering
    for ask, kind in zip(ends(url), (SourceError, AttemptFailedError, SinkCheckError), strict=True):
        answers[:] = [(status, body), (status, body)]
        with pytest.raises(kind, match=f"HTTP {status} of") as raised:
            ask()
        assert len(answers) == 1
        # Also not with what a traceback shows of causes.
        shown = "".join(traceback.format_exception(raised.value))
        assert "hunter2" not in shown
        assert "x-amz" not in shown.lower()


def test_every_code_that_botocore_sends_again_is_sent_again_here():
    theirs = {
        *ThrottledRetryableChecker._THROTTLED_ERROR_CODES,
        *TransientRetryableChecker._TRANSIENT_ERROR_CODES,
    }
    assert len(theirs) > 10
    assert theirs <= aws._AGAIN
    assert all(map(may_succeed, (one(**NAMED) for one in of_botocore(*FAMILIES))))


NAMED = {"endpoint_url": "http://u:hunter2@h", "error": "hunter2", "proxy_url": "p"}
NAMED |= {"error_msg": "hunter2", "provider": "p", "actual_bytes": 1, "expected_bytes": 2}
FAMILIES = ["ConnectionError", "HTTPClientError", "MetadataRetrievalError"]
FAMILIES += ["CredentialRetrievalError", "IncompleteReadError"]


def of_botocore(*families):
    kinds = tuple(getattr(botocore.exceptions, name) for name in families)
    found = [
        one
        for one in vars(botocore.exceptions).values()
        if isinstance(one, type) and issubclass(one, kinds)
    ]
    assert len(found) > len(families) or len(families) == 1
    return found


@pytest.mark.parametrize(
    "name", ["NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "NoRegionError"]
)
def test_what_is_missing_here_is_not_waited_for(name):
    error = getattr(botocore.exceptions, name)(provider="p", cred_var="c", profile="p")
    assert not may_succeed(error)
    assert told(error) == name
    assert "Check" not in aws.remedy(error, "Check it.")


def test_no_error_of_botocores_shows_what_it_says():
    for one in of_botocore(*FAMILIES):
        assert "hunter2" not in told(one(**NAMED))


def test_credentials_that_cannot_be_fetched_for_a_moment_are_asked_for_again(
    answering, monkeypatch
):
    replace_here(monkeypatch, time, "sleep", lambda _: None)
    url, _ = answering
    monkeypatch.setattr(aws, "_made", {})
    real, failures = aws.make_client, []

    def make(access, service="kinesis"):
        if failures:
            raise failures.pop()
        return real(access, service)

    monkeypatch.setattr(aws, "make_client", make)
    failure = botocore.exceptions.CredentialRetrievalError(provider="p", error_msg="hunter2")
    source, put, check = ends(url)
    for ask in (source, put):
        aws._made.clear()
        failures[:] = [failure, failure]
        ask()
        assert failures == []
    aws._made.clear()
    failures[:] = [failure]
    with pytest.raises(SinkUnavailableError, match="CredentialRetrievalError"):
        check()
    aws._made.clear()
    failures[:] = [failure] * 1000
    with pytest.raises(AttemptFailedError, match="can't get credentials .*RetrievalE") as raised:
        ends(url, retry_s=0.1)[1]()
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_a_client_that_cannot_be_made_for_now_is_no_wrong_option(monkeypatch):
    """Credentials of a container are fetched when the client is made."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/")
    monkeypatch.setattr(
        "botocore.utils.ContainerMetadataFetcher.retrieve_full_uri",
        lambda *_, **__: (_ for _ in ()).throw(
            botocore.exceptions.MetadataRetrievalError(error_msg="hunter2")
        ),
    )
    with pytest.raises(botocore.exceptions.CredentialRetrievalError):
        aws.make_client(Access(region="eu-west-1"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endpoint_url": "https://user:hunter2@host"}, "endpoint_url is"),
        ({"endpoint_url": "https://host/?token=hunter2"}, "endpoint_url is"),
        ({"endpoint_url": "host:443"}, "as https://host:port"),
        ({"endpoint_url": 7}, "endpoint_url is 7"),
        ({"endpoint_url": "https://kinesis..example"}, "endpoint_url is 'https://kinesis"),
        ({"endpoint_url": "https://.a:1"}, "as https://host:port"),
        ({"endpoint_url": f"https://{'a' * 64}.b:1"}, "as https://host:port"),
        ({"endpoint_url": "http://my_moto:5000"}, "as https://host:port"),
        ({"endpoint_url": "http://moto:70000"}, "as https://host:port"),
        ({"credentials_function": "hunter"}, "module:function"),
        ({"stream": "clicks of today"}, "the name or the ARN of a Kinesis stream"),
        ({"stream": "arn:aws:sqs:us-east-1:123456789012:a"}, "the name or the ARN"),
    ],
    ids=range(12),
)
def test_the_sink_refuses_what_the_source_refuses(given, words):
    with pytest.raises(OptionError, match=words) as raised:
        ofa.KinesisSink(**{"stream": "s", **given})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("host", ["127.0.0.1:5000", "[::1]:5000", "a-b.c", "a.b.", "A", "a" * 63])
def test_an_address_that_boto3_takes_is_taken(host):
    aws.make_client(
        Access(
            region="eu-west-1", endpoint_url=aws.checked_endpoint("endpoint_url", f"http://{host}")
        )
    )


def test_an_address_with_a_path_is_one():
    given = "https://gateway.example:8443/kinesis/v1"
    assert given.encode() in pickle.dumps(ofa.KinesisSink("s", endpoint_url=given))


@pytest.mark.parametrize(
    "key", ["0" * 5000, "9" * 5000, "007", "\u0667", "-1", "1.0", "", str(2**128)]
)
def test_a_hash_key_that_is_none_is_a_refused_record(key):
    writing = KinesisWriting(None, "s", ordered=True, max_record_bytes=1 << 20, retry_s=5)
    rows = {"data": [b"x"], "partitionKey": ["k"], "explicitHashKey": [key]}
    with pytest.raises(RefusedRecordError, match="below 2\\^128"):
        writing.write(pa.RecordBatch.from_pydict(rows))


def test_the_largest_hash_key_is_one():
    writing = KinesisWriting(None, "s", ordered=True, max_record_bytes=1 << 20, retry_s=5)
    rows = {"data": [b"x", b"y"], "partitionKey": ["k", "k"]}
    rows["explicitHashKey"] = [str(2**128 - 1), "0"]
    writing.write(pa.RecordBatch.from_pydict(rows))


@pytest.mark.parametrize("which", range(3), ids=["source", "sink", "check"])
def test_credentials_that_are_over_are_asked_for_again(answering, monkeypatch, tmp_path, which):
    """A file of credentials that somebody writes again each hour, under a process that lives on."""
    for name in KEYS:
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setattr(aws, "_made", {})
    url, answers = answering

    def write(key):
        file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=b\n")

    write("old")
    ask = ends(url)[which]
    ask()
    write("new")
    refusal = json.dumps({"__type": "ExpiredTokenException"})
    answers[:] = [(400, refusal)]
    ask()
    assert [one._request_signer._credentials.access_key for one in aws._made.values()] == ["new"]
    answers[:] = [(400, refusal)] * 3
    with pytest.raises(Exception, match="ExpiredTokenException .* Renew the credentials"):
        ask()
    assert len(answers) == 1


@pytest.mark.parametrize("which", range(3), ids=["source", "sink", "check"])
def test_keys_that_are_wrong_are_asked_for_again_by_the_next_request(answering, monkeypatch, which):
    monkeypatch.setattr(aws, "_made", {})
    url, answers = answering
    ask = ends(url)[which]
    answers[:] = [(400, json.dumps({"__type": "UnrecognizedClientException"}))] * 2
    with pytest.raises(Exception, match="UnrecognizedClientException .* Give the right"):
        ask()
    assert len(answers) == 1
    assert aws._made == {}
