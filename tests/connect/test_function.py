"""The function that goes from a client to the server: what its pickle shows, and what is refused
where it is unpickled. No server is asked."""

import importlib
import re
import sys
import traceback
from functools import partial

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


@pytest.mark.parametrize("name", ["onceforall_jobs", "onceforalls", "onceforall-jobs"])
def test_a_module_of_a_like_name_is_not_taken_for_this_library(name):
    text = f"ModuleNotFoundError: No module named '{name}'\n SQLSTATE: XXKST"
    assert connect.plain_error(RuntimeError(text)) is None


def test_a_part_of_this_library_that_the_server_lacks_is_named_with_the_remedy():
    error = connect.plain_error(RuntimeError("No module named 'onceforall.sinks.new'"))
    assert "Install onceforall" in str(error)


def refusal_of(pickled):
    try:
        cloudpickle.loads(pickled)
    except Exception as error:
        return error
    raise AssertionError("it was unpickled")


@pytest.mark.parametrize("name", ["jobs_of_the_client", "onceforall_jobs"])
def test_what_a_user_has_not_installed_on_the_server_is_named(tmp_path, monkeypatch, name):
    (tmp_path / f"{name}.py").write_text("def same(frame):\n    return frame\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    pickled = cloudpickle.dumps(ConnectFunction(module.same, "/checkpoints/ads", {}, Settings()))
    del module.same
    refusal = refusal_of(pickled)
    assert isinstance(refusal, ofa.ExecutorCheckError)
    assert re.search(rf"'same'.*{name}.*register_pickle_by_value", str(refusal))
    sys.modules.pop(name)
    (tmp_path / f"{name}.py").unlink()
    importlib.invalidate_caches()
    refusal = refusal_of(pickled)
    assert isinstance(refusal, ofa.ExecutorCheckError)
    assert f"No module named '{name}'" in str(refusal)
    assert ofa.exit_code(refusal) is ofa.ExitCode.MEND
    told = connect.plain_error(RuntimeError("".join(traceback.format_exception(refusal))))
    assert isinstance(told, ofa.ExecutorCheckError)
    assert str(told) == str(refusal)


def test_a_relative_folder_of_files_is_refused_for_it_would_be_the_servers(tmp_path):
    with pytest.raises(ofa.OptionError, match="sink 'files', out/ads, is a relative path"):
        function_of({"files": ofa.FileSink("out/ads", format="json")})
    for path in (str(tmp_path), f"file:{tmp_path}", "s3a://bucket/ads", "hdfs://h:1/ads"):
        function_of({"files": ofa.FileSink(path, format="json")})


def test_a_text_file_that_is_open_for_reading_goes_as_its_text(tmp_path):
    (tmp_path / "names").write_text("a\nb\n")
    with (tmp_path / "names").open() as names:
        function = ConnectFunction(partial(print, names), "/checkpoints/ads", {}, Settings())
        opened = cloudpickle.loads(cloudpickle.dumps(function))
    assert opened._function.args[0].read() == "a\nb\n"
    for mode in ("rb", "w"):
        with (tmp_path / "names").open(mode) as names, pytest.raises(ofa.OptionError, match="open"):
            ConnectFunction(partial(print, names), "/checkpoints/ads", {}, Settings())


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
