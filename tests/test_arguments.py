"""Every public function says of a wrong value which argument it is and what is expected, in an
error of ours, and shows no secret."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import onceforall as ofa
from onceforall import embedded, operators, sources
from onceforall.commit_log import binding
from onceforall.common import arguments
from onceforall.driver import doors as stream
from onceforall.driver.doors import StreamWriter
from onceforall.embedded.jars import KAFKA_VERSION
from onceforall.operators import _checks
from onceforall.sink import StartInfo
from onceforall.sinks.files import CommittedFiles
from onceforall.sinks.files.reading.sources import LocalSource
from onceforall.spark import hadoop_paths
from onceforall.task.projections import Projections

WRONG = [
    None,
    7,
    -7,
    True,
    1.5,
    "",
    "x",
    [],
    [7],
    ["x", None],
    {},
    {7: 7},
    b"x",
    object(),
    object,
    lambda: 7,
    "a\0b",
    "x" * 5000,
]
SERVERS = {"bootstrap.servers": "broker:9092"}
DATABASE = "postgresql://ads@127.0.0.1:1/ads"  # nobody listens there


class Frames:
    """A streaming frame and a batch, of a session with the RocksDB state store."""

    def __init__(self, spark, folder):
        schema = (
            "id BIGINT, word STRING, at TIMESTAMP, deduplication STRING, attribution STRING, "
            "click STRING, kind STRING, late STRUCT<id BIGINT>"
        )
        (folder / "input").mkdir()
        self.plain = spark.readStream.schema(schema).json(str(folder / "input"))
        self.bare = self.plain.select("id", "word", "at")
        self.marked = self.bare.withWatermark("at", "1 minute")
        self.spark, self.folder = spark, folder
        ofa.FileSink(folder / "out").check(StartInfo("", "files", None))


@pytest.fixture(scope="module")
def frames(spark, tmp_path_factory):
    before = spark.conf.get(_checks._PROVIDER)
    spark.conf.set(_checks._PROVIDER, _checks._ROCKSDB)
    yield Frames(spark, tmp_path_factory.mktemp("frames"))
    spark.conf.set(_checks._PROVIDER, before)


def sink():
    return ofa.FileSink("/nowhere", format="json")


def batch_transaction(_):
    sinks = {"files": sink()}
    return ofa.BatchTransaction(sinks, Projections(sinks)).write


def writer(method):
    return lambda frames: getattr(ofa.write_stream(frames.bare), method)


def committed_files(_):
    return CommittedFiles(LocalSource(Path("/nowhere")), ()).to_spark


class HastyLookup(operators.PostgresLookup):
    _PATIENCE_AT_START_S = 0.0


def lookup():
    return HastyLookup(DATABASE, "t", key="id", columns={"v": "string"})


WINDOW = {
    "frame": "marked",
    "key": "id",
    "time": "at",
    "order_by": "word",
    "aggregates": {"n": operators.Count("word")},
    "trigger": None,
    "name": "n",
}

# Of each callable: how to get it, and arguments that are right (names of frames stand for these).
CALLABLES = {
    "EmbeddedHdfs": (lambda _: embedded.EmbeddedHdfs, {"data_dir": None, "port": 0}),
    "EmbeddedKafka": (lambda _: embedded.EmbeddedKafka, {
        "data_dir": None, "port": 0, "config": None, "jars": None, "version": KAFKA_VERSION, "users": None,
    }),
    "EmbeddedKafkaCluster": (lambda _: embedded.EmbeddedKafkaCluster, {"nodes": 3, "version": KAFKA_VERSION, "config": None, "jars": None}),
    "EmbeddedPostgres": (lambda _: embedded.EmbeddedPostgres, {
        "data_dir": None, "port": 0, "settings": None, "users": None, "tls": False, "bin_dir": None,
    }),
    "EmbeddedPravega": (lambda _: embedded.EmbeddedPravega, {"port": 0}),
    "EmbeddedS3": (lambda _: embedded.EmbeddedS3, {"port": 0}),
    "KafkaSink": (lambda _: ofa.KafkaSink, {"options": SERVERS, "topic": "t", "delivery": "exactly_once", "transactional_id_prefix": "p", "timestamp_column": None}),
    "FileSink": (lambda _: ofa.FileSink, {
        "path": "/nowhere", "format": "json", "partition_by": (), "time_bucket": "{at:%Y}", "time_bucket_zone": None, "max_file_bytes": 1, "compression": None,
        "options": None, "max_open_files": 1, "spark_metadata": "refuse", "on_new_partitions": None, "storage": None,
    }),
    "PostgresSink": (lambda _: ofa.PostgresSink, {
        "conninfo": DATABASE, "table": "t", "key": None, "mode": "staged", "on_conflict": "update", "accumulate": None, "create_table": False, "password": None,
        "staging_schema": "s", "lock_timeout_s": 1, "retry_for_s": 1,
    }),
    "exactly_once": (lambda _: ofa.exactly_once, {
        "checkpoint": "/nowhere", "sinks": {"files": sink()}, "on_divergence": "warn", "min_batches_to_retain": 1, "decision_reserve_ms": None,
        "adopt_checkpoint": False, "takeover": None, "commit_log": None, "redo": "auto", "in_doubt": None, "lost_rows": None, "adopt_target": (), "store": None,
    }),
    "exactly_once(…)": (lambda frames: ofa.exactly_once(frames.folder / "checkpoint", sinks={"files": sink()}), {"decorates": print}),
    "detach": (lambda _: ofa.detach, {
        "checkpoint": "/nowhere", "sinks": {"files": sink()}, "commit_log": None, "adopt_checkpoint": False, "adopt_target": (), "timeout_s": 1, "dry_run": False, "settings": None,
    }),
    "KinesisSink": (lambda _: ofa.KinesisSink, {
        "stream": "clicks", "region": "us-east-1", "endpoint_url": None, "profile": None, "role_arn": None, "credentials_function": None, "record_id": "record_id",
        "ordered": True, "max_record_bytes": 1024, "retry_s": 1,
    }),
    "PravegaSink": (lambda _: ofa.PravegaSink, {"controller": "tcp://h:9090", "scope": "s", "stream": "t", "lease_s": 60}),
    "sources.register": (lambda _: sources.register, {"spark": "spark"}),
    "read_files": (lambda _: ofa.read_files, {"path": "/nowhere", "query_id": None, "sink": None, "from_batch": None, "to_batch": None, "skip_deleted": False, "storage": None}),
    "to_spark": (committed_files, {"spark": "spark"}),
    "error_of": (lambda _: ofa.error_of, {"query_or_exception": None}),
    "exit_code": (lambda _: ofa.exit_code, {"query_or_exception": None}),
    "progress_of": (lambda _: ofa.progress_of, {"query": SimpleNamespace(runId="x")}),
    "write_stream": (lambda _: ofa.write_stream, {"frame": "bare"}),
    "StreamWriter.to": (writer("to"), {"sink": sink(), "name": None, "transform": None}),
    "StreamWriter.queryName": (writer("queryName"), {"queryName": "ads"}),
    "StreamWriter.outputMode": (writer("outputMode"), {"outputMode": "append"}),
    "StreamWriter.option": (writer("option"), {"key": "checkpointLocation", "value": "/nowhere"}),
    **{f"StreamWriter.option {name}": (lambda f, name=name: lambda value: ofa.write_stream(f.bare).option(f"onceforall.{name}", value), {"value": right}) for name, right in {
        "onDivergence": "warn", "minBatchesToRetain": 1, "decisionReserveMs": 1, "adoptCheckpoint": True, "takeover": "accept", "commitLog": "/nowhere", "redo": "auto",
        "inDoubt": "aborted", "lostRows": "giveUp:1", "adoptTarget": "a",
    }.items()},
    "StreamWriter.trigger": (writer("trigger"), {"processingTime": "1 second"}),
    "StreamWriter.trigger(availableNow)": (writer("trigger"), {"availableNow": True}),
    "BatchTransaction.write": (batch_transaction, {"name": "files", "frame": "bare"}),
    **{f"operators.{name}": (lambda _, name=name: getattr(operators, name), {"column": "id"}) for name in ("Count", "Sum", "Min", "Max", "First", "Last")},
    "operators.Rows": (lambda _: lambda columns: operators.Rows("word", columns), {"columns": "id"}),
    "operators.Trigger": (lambda _: operators.Trigger, {"count": 1, "every": "1 second"}),
    "operators.PostgresLookup": (lambda _: operators.PostgresLookup, {
        "conninfo": DATABASE, "table": "t", "key": "id", "columns": ["v"], "valid_from": None, "valid_to": None, "password": None, "timeout_s": 1,
        "retry_for_s": 1, "keys_per_query": 1,
    }),
    "operators.attribute": (lambda _: operators.attribute, {
        "orders": "marked", "clicks": "marked", "user": "id", "order_time": "at", "click_time": "at", "window": "1 hour", "tie": None,
    }),
    "operators.deduplicate": (lambda _: operators.deduplicate, {"frame": "bare", "id": "id", "event_time": "at", "horizon": "1 hour", "late": "keep"}),
    "operators.enrich": (lambda _: operators.enrich, {
        "frame": "bare", "lookup": lookup(), "keys": "id", "missing": "null", "defaults": None, "status": None, "as_of": None, "pin": False, "pin_schema": "s",
        "cache_keys": 1, "cache_for_s": 1,
    }),
    "operators.count_window": (lambda _: operators.count_window, {**WINDOW, "size": 2, "slide": None}),
    "operators.tumbling_window": (lambda _: operators.tumbling_window, {**WINDOW, "size": "1 hour"}),
    "operators.session_window": (lambda _: operators.session_window, {**WINDOW, "gap": "1 hour", "max_events": 7, "max_duration": "1 day"}),
    "operators.rocksdb_state": (lambda _: operators.rocksdb_state, {"memory_mb": None}),
    "operators.record_id": (lambda _: lambda column, namespace: operators.record_id("word", column, namespace=namespace), {"column": "id", "namespace": "n"}),
    "operators.with_record_id": (
        lambda _: lambda frame, name, column, namespace: operators.with_record_id(frame, name, column, namespace=namespace),
        {"frame": "bare", "name": "record", "column": "id", "namespace": "n"},
    ),
    "operators.record_uuid": (lambda _: operators.record_uuid, {"values": ["a"], "namespace": "n"}),
    **{
        f"operators.{name}": (lambda _, name=name: getattr(operators, name), {"frame": "plain"})
        for name in ("attributed_orders", "late_duplicates", "late_orders", "late_rows", "results", "unique_rows", "unmatched_orders")
    },
}  # fmt: skip
NO_ARGUMENTS = {"memory_state"}
ABSTRACT = {"TwoPhaseCommitSink", "Lookup"}


def right_arguments(callable_, frames):
    return {
        name: getattr(frames, value) if isinstance(value, str) and hasattr(frames, value) else value
        for name, value in callable_[1].items()
    }


def outcome(function, given):
    """The error that comes out; None: none."""
    try:
        function(**given)
    except Exception as error:
        return error
    return None


def test_every_public_callable_is_in_the_table():
    public = {
        name for name in ofa.__all__ if callable(getattr(ofa, name)) and not name.endswith("Error")
    } - {
        "BatchProgress",
        "BatchTransaction",
        "ExitCode",
    }
    public |= {"sources.register"}
    public |= {f"operators.{name}" for name in operators.__all__}
    public |= {
        f"StreamWriter.{name}"
        for name, _ in inspect.getmembers(StreamWriter, callable)
        if not name.startswith("_")
    }
    left_out = {
        *ABSTRACT,
        *(f"operators.{name}" for name in {*ABSTRACT, *NO_ARGUMENTS}),
        "StreamWriter.options",
        "StreamWriter.start",
        "stop_on_sigterm",
    }
    assert public - left_out <= set(CALLABLES)


@pytest.mark.parametrize("name", CALLABLES)
def test_the_table_has_every_argument_of_a_callable(name):
    if name.startswith("StreamWriter") or name in {
        "exactly_once(…)",
        "to_spark",
        "BatchTransaction.write",
        "operators.Rows",
    }:
        return
    function = CALLABLES[name][0](SimpleNamespace())
    if function.__name__ != "<lambda>":
        assert set(CALLABLES[name][1]) == set(inspect.signature(function).parameters)


@pytest.mark.spark
@pytest.mark.parametrize("name", CALLABLES)
def test_a_wrong_value_is_an_error_of_ours_that_names_its_argument(name, frames):
    get, _ = entry = CALLABLES[name]
    right = right_arguments(entry, frames)
    bad = []
    for argument in right:
        # Operators hand half a character to Spark, which says in its own words what is wrong.
        for value in [*WRONG, *([] if name.startswith("operators.") else ["ü\ud800"])]:
            given = {**right, argument: value}
            if name == "exactly_once(…)":
                given = {"function": value}
            error = outcome(get(frames), given)
            if error is not None and not isinstance(error, ofa.OnceForAllError):
                bad.append(f"{argument}={value!r}: {type(error).__name__}: {str(error)[:200]}")
            if type(value) is object and (
                error is None
                or (argument not in str(error) and argument != "value")
                or " object at 0x" in str(error)
            ):
                bad.append(f"{argument} is not named: {error!r:.300}")
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: ofa.KafkaSink("host:9092"), (r"^options is 'host:9092'. Give a dictionary of "
                                             r"librdkafka's options, such as")),
        (lambda: ofa.KafkaSink({7: 7}), r"^options has the key 7, which is no text"),
        (lambda: ofa.FileSink("/a", format=["json"]), (r"^format=a value of the type list is "
                                                      r"unknown. FileSink writes parquet")),
        (lambda: ofa.PostgresSink(DATABASE, "t", mode=7), r"^mode=7 is none of 'staged'"),
        (lambda: ofa.exactly_once("/a", sinks=[sink()]), (r"^sinks is a value of the type list. "
                                                         r"Give a dictionary")),
        (lambda: ofa.exactly_once("/a", sinks={"a": ofa.FileSink}), (r"^sinks\['a'\] is the class "
                                                                    r"FileSink. Give a sink, made "
                                                                    r"by calling it")),
        (lambda: ofa.exactly_once("/a", sinks={"a": sink()}, redo="later"), (r"^redo is 'later'. "
                                                                            r"Give 'auto', "
                                                                            r"'replay' or "
                                                                            r"'durable'\.$")),
        (lambda: ofa.exactly_once("/a", sinks={"a": sink()}, in_doubt=1), (r"^in_doubt is 1. Give "
                                                                          r"'committed' or "
                                                                          r"'aborted' or leave it "
                                                                          r"out\.$")),
        (lambda: ofa.exactly_once("/a", sinks={"a": sink()}, min_batches_to_retain=True), r"^min_batches_to_retain is True. Give a whole number of at least 1"),
        (lambda: ofa.exactly_once("/a", sinks={"a": sink()})(lambda rows, *, key="s3cret": None), (
            r"^What exactly_once decorates takes \(rows, key\), and is called with \(batch, "
            r"batch_id, transaction\)\.")),
    ],
    ids=range(10),
)  # fmt: skip
def test_the_message_has_what_was_given_and_what_is_expected(made, words):
    with pytest.raises(ofa.OptionError, match=words):
        made()


@pytest.mark.spark
def test_what_spark_says_of_a_frame_is_not_told_of_the_trigger(frames, monkeypatch):
    def refusing(_):
        raise RuntimeError("this frame can't be written")

    monkeypatch.setattr(type(frames.bare), "writeStream", property(refusing))
    with pytest.raises(RuntimeError, match="this frame can't be written"):
        ofa.write_stream(frames.bare).trigger(availableNow=True)


@pytest.mark.spark
def test_an_option_that_is_no_number_names_itself_and_says_what_it_must_be(frames):
    with pytest.raises(
        ofa.OptionError,
        match=r"^onceforall.minBatchesToRetain='many' can't be read. Give a whole number",
    ):
        ofa.write_stream(frames.bare).option("onceforall.minBatchesToRetain", "many")
    with pytest.raises(
        ofa.OptionError,
        match=r"^onceforall.adoptCheckpoint='yes' can't be read. Give true or false",
    ):
        ofa.write_stream(frames.bare).option("onceforall.adoptCheckpoint", "yes")
    with pytest.raises(ofa.OptionError, match=r"^Spark refuses trigger\(processingTime=''\)"):
        ofa.write_stream(frames.bare).trigger(processingTime="")


SECRET = "hunter2"


@pytest.mark.parametrize(
    "made",
    [
        lambda: ofa.PostgresSink("spend", f"postgresql://ads:{SECRET}@db/ads"),
        lambda: ofa.PostgresSink([f"postgresql://ads:{SECRET}@db/ads"], "spend"),
        lambda: ofa.PostgresSink({"host": "db", "password": SECRET, "port": object()}, "spend"),
        lambda: ofa.PostgresSink(DATABASE, "spend", password={"value": SECRET}),
        lambda: ofa.KafkaSink(f"sasl.password={SECRET}"),
        lambda: ofa.KafkaSink([SERVERS, SECRET]),
        lambda: ofa.KafkaSink(
            {**SERVERS, "security.protocol": "SASL_SSL", "sasl.password": SECRET.encode()}
        ),
        lambda: ofa.KafkaSink(SERVERS, topic={"password": SECRET}),
        lambda: operators.PostgresLookup(
            DATABASE, f"postgresql://ads:{SECRET}@db/ads", key="a", columns="b"
        ),
        lambda: ofa.exactly_once("/a", sinks={f"postgresql://ads:{SECRET}@db/ads": 7}),
        lambda: ofa.PostgresSink(DATABASE, "t", mode=f"postgresql://ads:a/{SECRET}@db/ads"),
        lambda: ofa.FileSink("/a", format=f"https://h/?api_key={SECRET}"),
    ],
    ids=range(12),
)
def test_no_message_shows_what_may_be_a_secret(made):
    with pytest.raises(ofa.OptionError) as raised:
        made()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "location", ["s3a://KEY:{}@bucket/cp", "s3a://KEY:a/{}@bucket/cp", "file://u:{}@host/cp"]
)
@pytest.mark.parametrize(
    "used",
    [
        hadoop_paths.local_folder,
        binding.log_location,
        ofa.FileSink,
    ],
    ids=["a checkpoint", "a log", "a sink's folder"],
)
def test_no_message_shows_the_password_of_a_location(location, used):
    with pytest.raises((ofa.OptionError, ofa.UnsupportedQueryError)) as raised:
        used(location.format(SECRET))
    assert SECRET not in str(raised.value)
    assert location.rpartition("@")[2] in str(raised.value)


@pytest.mark.parametrize(
    "path",
    [
        "https://acct.blob.core.windows.net/lake/ads?sv=1&sig={}",
        "https://storage.googleapis.com/lake/ads?X-Goog-Signature={}",
        "wasbs://lake@acct.blob.core.windows.net/ads?sig={}",
        "abfss://lake@acct.dfs.core.windows.net/ads?sig={}",
        "abfss://lake@acct.dfs.core.windows.net/ads#sig={}",
        "gs://lake/ads?X-Goog-Signature={}",
        "s3a://lake/ads?X-Amz-Signature={}",
        "ftp://host/lake?sig={}",
    ],
)
@pytest.mark.parametrize("used", [ofa.FileSink, ofa.read_files])
def test_no_message_shows_the_signature_of_a_url_that_was_copied(path, used):
    with pytest.raises((ofa.ConfigurationError, ofa.UnsupportedQueryError)) as raised:
        used(path.format(SECRET))
    assert SECRET not in str(raised.value)
    assert re.search("ads|lake", str(raised.value))
    if path.startswith(("https", "wasb")):
        assert "abfss://container@account" in str(raised.value)


def test_what_is_shown_of_a_value_is_short_and_the_same_in_every_process():
    assert [arguments.shown(value) for value in (None, True, 7, "a", object(), b"x", {})] == [
        "None", "True", "7", "'a'", *(f"a value of the type {name}" for name in ("object", "bytes", "dict")),
    ]  # fmt: skip
    assert len(arguments.shown("x" * 1000)) < 100
    assert not re.search("0x", arguments.shown(lambda: 7))


# --- Spark Connect --------------------------------------------------------------------------------
# These stand-ins have of its classes what is looked at, the modules' names. tests/connect asks a real server.


class Remote:
    """Whatever is asked of it that needs a JVM, it refuses, as Connect's own classes do."""

    isStreaming = True  # noqa: N815  Spark's name
    columns = ("id", "word", "at", "kind", "late")

    def __getattr__(self, name):
        raise AttributeError(f"[JVM_ATTRIBUTE_NOT_SUPPORTED] {name}")


RemoteFrame = type("DataFrame", (Remote,), {"__module__": "pyspark.sql.connect.dataframe"})
RemoteSession = type("SparkSession", (Remote,), {"__module__": "pyspark.sql.connect.session"})
MyFrame = type("MyFrame", (RemoteFrame,), {"__module__": "mine"})

DOORS = {
    "read_files": lambda _: CommittedFiles(LocalSource(Path("/nowhere")), ()).to_spark(
        RemoteSession()
    ),
    "exactly_once": lambda frame: ofa.exactly_once("/nowhere", sinks={"files": sink()})(print)(
        frame, 0
    ),
    "count_window": lambda frame: operators.count_window(frame, key="id", size=2, aggregates={}),
    "tumbling_window": lambda frame: operators.tumbling_window(
        frame, key="id", size="1 hour", aggregates={}
    ),
    "session_window": lambda frame: operators.session_window(
        frame, key="id", gap="1 hour", aggregates={}
    ),
    "deduplicate": lambda frame: operators.deduplicate(frame, "id", "at", "1 hour", late="keep"),
    "attribute": lambda frame: operators.attribute(
        frame, frame, user="id", order_time="at", click_time="at", window="1 hour"
    ),
    "enrich": lambda frame: operators.enrich(frame, lookup(), "id"),
}


@pytest.mark.parametrize("frame", [RemoteFrame(), MyFrame()], ids=["theirs", "a subclass"])
@pytest.mark.parametrize("door", DOORS)
def test_each_door_refuses_spark_connect_at_once_in_one_sentence(door, frame, monkeypatch):
    monkeypatch.setattr(stream, "_session", lambda: None)
    monkeypatch.setattr(stream, "check_start", lambda *_: None)
    with pytest.raises(
        ofa.UnsupportedQueryError,
        match=r"^\S+ does not work with Spark Connect, [^.]*: give it a classic session",
    ) as raised:
        DOORS[door](frame)
    assert door in str(raised.value)


def test_a_classic_session_whose_class_has_another_name_is_no_connect_session():
    assert not arguments.is_connect(type("X", (), {"__module__": "pyspark.sql.connectors"})())
    assert not arguments.is_connect(None)


def test_names_of_sinks_may_stand_in_one_text_and_a_name_may_have_a_comma():
    def told(value, known):
        return arguments.sinks("adopt_target", value, known)

    assert told("a, b", ["a", "b"]) == told(["a", "b"], ["a", "b"]) == ("a", "b")
    assert told("a,b", ["a,b"]) == told(["a,b"], ["a,b"]) == ("a,b",)
    assert told("a,b, c", ["a,b", "c"]) == told(["c,a,b"], ["a,b", "c"])[::-1] == ("a,b", "c")
    assert told("a,b,c", ["a,b", "a", "b,c"]) == ("a,b", "c")
    assert told("x,,y,", ["a"]) == ("x", "y")
    assert told((), ()) == ()


@pytest.mark.parametrize("value", [",", " , ", ["a", ","]])
def test_a_text_that_names_no_sink_is_refused(value):
    with pytest.raises(ofa.OptionError, match="in it, which names none. Give"):
        arguments.sinks("adopt_target", value, ["a"])


def test_a_wrapper_is_called_as_it_is_and_not_as_what_it_wraps():
    """One that gives its function more than it gets, such as a connection."""

    def inner(batch, connection):
        return batch, connection

    @functools.wraps(inner)
    def wrapper(batch):
        return inner(batch, "connection")

    assert arguments.function("transform", wrapper, "batch") is wrapper
    with pytest.raises(ofa.OptionError, match="is called with"):
        arguments.function("transform", inner, "batch")


def test_what_a_wrapper_says_of_itself_may_be_said_of_what_it_wraps():
    """So do some libraries of decorators, for the sake of help()."""

    def inner(connection, batch):
        return batch, connection

    @functools.wraps(inner)
    def wrapper(batch):
        return inner("connection", batch)

    wrapper.__signature__ = inspect.signature(inner)
    assert arguments.function("transform", wrapper, "batch") is wrapper


def test_a_function_whose_own_attributes_fail_is_taken_as_it_is():
    class Broken:
        def __call__(self, batch):
            return batch

        def __getattr__(self, name):
            raise RuntimeError(name)

    function = Broken()
    assert arguments.function("transform", function, "batch") is function
