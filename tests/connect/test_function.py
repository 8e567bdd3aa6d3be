"""The function that goes from a client to the server: what its pickle shows, and what is refused
where it is unpickled. No server is asked."""

import pytest
from pyspark import cloudpickle

import onceforall as ofa
from onceforall.driver import connect
from onceforall.driver.connect import ConnectFunction
from onceforall.driver.settings import Settings
from onceforall.sink import TwoPhaseCommitSink
from support.connect_server import PASSWORD


def told(partitions):
    return None


def function_of(sinks, location="/checkpoints/ads", **settings):
    return ConnectFunction(print, location, sinks, Settings(**settings))


def kafka(**options):
    return ofa.KafkaSink(
        {
            "bootstrap.servers": "broker:9092",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "ads",
            "sasl.password": PASSWORD,
            **options,
        },
        topic="t",
    )


def test_secret_values_of_sinks_and_stores_reach_the_server_and_do_not_stand_in_the_pickle():
    sinks = {
        "kafka": kafka(),
        "postgres": ofa.PostgresSink("postgresql://ads@db/ads", table="t", password=PASSWORD),
        "url": ofa.PostgresSink(f"postgresql://ads:{PASSWORD}@db/ads", table="t"),
        "s3": ofa.FileSink(
            "s3a://bucket/lake",
            storage={"access_key_id": "id", "secret_access_key": PASSWORD, "region": "r"},
        ),
    }
    pickled = cloudpickle.dumps(function_of(sinks, store={"secret_access_key": PASSWORD}))
    assert PASSWORD.encode() not in pickled
    opened = cloudpickle.loads(pickled)
    for name, sink in sinks.items():
        assert PASSWORD in sink.secrets().values()
        assert opened._sinks[name].secrets() == sink.secrets(), name
    assert opened._sinks["kafka"]._configuration("x")["sasl.password"] == PASSWORD
    assert opened._settings.store == {"secret_access_key": PASSWORD}
    assert cloudpickle.dumps(function_of(sinks)) != cloudpickle.dumps(function_of(sinks))


def test_what_only_the_drivers_side_of_a_sink_needs_reaches_the_server(tmp_path):
    sink = ofa.FileSink(str(tmp_path), format="json", on_new_partitions=told)
    opened = cloudpickle.loads(cloudpickle.dumps(function_of({"files": sink})))
    assert opened._sinks["files"]._on_new_partitions is told


def test_another_version_on_the_server_is_refused_before_anything_is_unpickled():
    with pytest.raises(
        ofa.ExecutorCheckError, match=r"has onceforall \S+, and the client has 0\.0"
    ):
        connect.opened("0.0", b"not a pickle", b"")


def test_a_server_without_this_library_is_named_with_the_remedy():
    error = connect.plain_error(
        RuntimeError("ModuleNotFoundError: No module named 'onceforall'\n SQLSTATE: XXKST")
    )
    assert isinstance(error, ofa.ExecutorCheckError)
    assert "Install onceforall" in str(error)
    assert connect.plain_error(RuntimeError("no error of ours")) is None


class SecretSink(TwoPhaseCommitSink):
    """Keeps a value out of its pickle, and doesn't say how to get it back."""

    begin_transaction = invoke = pre_commit = discard = commit = abort = recover = None

    def secrets(self):
        return {"token": PASSWORD}


def test_a_sink_that_cannot_get_its_secret_values_back_is_refused_by_name():
    with pytest.raises(ofa.UnsupportedQueryError, match="SecretSink keeps token out"):
        SecretSink().restored({"token": PASSWORD}, {})


@pytest.mark.parametrize("location", ["checkpoints/ads", "./ads"])
def test_a_relative_checkpoint_is_refused_on_the_client(location):
    with pytest.raises(ofa.OptionError, match="relative path"):
        function_of({}, location)


def test_the_function_refuses_to_be_called_on_the_client():
    with pytest.raises(ofa.UnsupportedQueryError, match="outside a streaming query"):
        function_of({})(None, 0)
