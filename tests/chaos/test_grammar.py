"""The grammar draws only what may go together, and all of it; and the truth of what it draws, by
which the campaign judges, is what Spark computes."""

import random
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import numpy as np
import pytest

from chaos import contents, grammar, workload
from chaos.nemeses_grammar import points_of
from chaos.truths import Filtered, Truths
from chaos.worlds import KEYS
from onceforall.driver import doors
from onceforall.testing.checker import Rows, RunningCheck, StateTruth, check_quiet, findings

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DRAWN = [grammar.draw(random.Random(seed)) for seed in range(400)]
CONFIG = {**workload.DEFAULTS, "epoch_us": 1_790_000_000_123_456, "keys": KEYS}


def test_what_is_drawn_may_go_together():
    for drawn in DRAWN:
        config = {**workload.DEFAULTS, **drawn.config}
        mode = config["postgres"].get("mode", "staged")
        has_key = "key" in config["postgres"]
        assert 1 <= len(set(config["sinks"])) == len(config["sinks"]) <= 3
        if workload.counts(config):
            assert "files" not in config["sinks"], drawn.said
        if config["operator"] == "complete":
            assert (mode, has_key) == ("staged", False), drawn.said
        if mode == "upsert" or (config["operator"] == "count" and "postgres" in config["sinks"]):
            assert has_key, drawn.said
        if "postgres" in config["sinks"] and mode == "prepared":
            assert "spark.speculation" not in config["spark"], drawn.said
        for sink in config["sinks"]:
            arguments = {**config, "bootstrap": "127.0.0.1:9", "topic": "t", "files": "/nowhere"}
            workload.sink(sink, {**arguments, "database": "postgresql://127.0.0.1:9/x"})


def test_every_word_of_the_grammar_is_drawn():
    said = " ".join(drawn.said for drawn in DRAWN)
    words = [*grammar.OPERATORS, *grammar.ALL_SINKS, *grammar.ALL_MODES, *grammar.FORMATS]
    assert [word for word in words if word not in said] == []
    assert {drawn.config["daemon"] for drawn in DRAWN} == {
        "onceforall.worker_daemon",
        "pyspark.daemon",
    }
    settings = {name for drawn in DRAWN for name in drawn.config["spark"]}
    assert {"spark.sql.adaptive.enabled", "spark.sql.streaming.minBatchesToRetain"} < settings
    assert {"source", "rows_per_batch"} <= {name for drawn in DRAWN for name in drawn.config}


def test_the_same_seed_draws_the_same_pipeline():
    assert grammar.draw(random.Random(5)) == DRAWN[5]


def test_options_of_ours_that_are_drawn_exist():
    drawn = {name for each in DRAWN for name in each.config["options"]}
    assert drawn
    assert drawn <= set(doors._OPTIONS)
    assert "asyncProgressTrackingEnabled" not in drawn


def test_failpoints_are_those_of_the_sinks_that_were_drawn():
    world = SimpleNamespace(sinks=["files"], config={})
    assert "file.commit.renamed" in points_of(world)
    assert "append_commit.after" in points_of(world)
    assert not [name for name in points_of(world) if name.startswith(("kafka.", "postgres."))]
    world = SimpleNamespace(sinks=["postgres"], config={"postgres": {"mode": "upsert"}})
    assert "postgres.upsert.applied" in points_of(world)
    assert "postgres.merge.applied" not in points_of(world)


# --- truths ---------------------------------------------------------------------------------------


def test_the_truth_of_a_filter_is_what_a_plain_filter_gives():
    rows, batches, tasks = 24, 5, 2
    truth = Filtered(rows, keys=KEYS, tasks=tasks)
    left = [n for n in range(rows * batches) if n % workload.FILTERED != 0]
    ordinals = np.arange(len(left))
    assert truth.ids_at(ordinals).tolist() == left
    assert truth.batches_at(ordinals).tolist() == [n // rows for n in left]
    assert truth.keys_at(ordinals).tolist() == [n % KEYS for n in left]
    assert truth.tasks_at(ordinals).tolist() == [n % rows % tasks for n in left]
    everything = np.arange(-2, rows * batches)
    known = {n: at for at, n in enumerate(left)}
    assert truth.locate(everything).tolist() == [known.get(n, -1) for n in everything.tolist()]
    view = Rows(np.asarray(left), keys=np.asarray(left) % KEYS)
    assert check_quiet(truth, {"out": view}, range(batches)).ok
    more = Rows(np.asarray([*left, 3]), keys=np.asarray([*left, 3]) % KEYS)
    assert check_quiet(truth, {"out": more}, range(batches)).kinds() == {findings.ALIEN}


def world(**config):
    config = {**CONFIG, "rows_per_batch": 12, **config}
    return SimpleNamespace(
        config=config,
        sinks=config["sinks"],
        counts=workload.counts(config),
        rows_per_batch=config["rows_per_batch"],
    )


def test_a_table_of_mode_complete_has_a_state_for_each_batch_and_a_topic_has_rows():
    truths = Truths(world(operator="complete", sinks=["kafka", "postgres"])).while_running()
    assert isinstance(truths["postgres"], StateTruth)
    counts = truths["postgres"].at(1)
    assert counts.ids_at(np.arange(4)).tolist() == ["0:6:20", "1:6:21", "2:6:22", "3:6:23"]
    assert truths["kafka"].ids_at(np.arange(4, 8)).tolist() == counts.ids_at(np.arange(4)).tolist()


def test_records_without_headers_and_times_have_no_contents_but_a_partition():
    config = {**CONFIG, "sinks": ["kafka", "files"], "plain": True}
    plain = contents.Expected(config, int)
    assert (plain.asked_of("kafka"), plain.of("kafka")) == ([], None)
    assert "headers" not in plain.asked_of("files")
    there = contents.Expected({**config, "partitioned": True}, int)
    assert there.asked_of("kafka") == ["partition"]
    expected = contents.contents_of([[n % KEYS % 2 for n in range(9)]])
    assert there.of("kafka")(np.arange(9)).tolist() == expected.tolist()


def test_rows_of_an_unknown_kind_are_not_compared():
    assert Truths(world(diverging=True, sinks=["files"])).expected is None


def test_a_table_of_mode_complete_whose_state_goes_back_is_reported():
    truths = Truths(world(operator="complete", sinks=["postgres"]))
    states = truths.while_running()["postgres"]

    def shown(batch):
        at = np.arange(4)
        truth = states.at(batch)
        return Rows(truth.ids_at(at), keys=truth.keys_at(at), contents=truth.contents_at(at))

    check = RunningCheck({"postgres": states})
    for second, (batch, decided) in enumerate([(0, 1), (2, 3), (1, 4)]):
        check.observe({"postgres": shown(batch)}, range(decided), at_s=second)
    assert {each.kind for each in check.violations} <= {findings.WENT_BACK, findings.BEHIND}
    assert check.violations


@pytest.mark.spark
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.long
def test_spark_computes_the_values_that_the_judge_expects(spark, partitioned):
    config = {**CONFIG, "sinks": ["kafka", "files"], "partitioned": partitioned}
    ids = np.arange(0, 3000)
    frame = spark.range(3000).repartition(1)
    frame = frame.select("id", *contents.columns(frame["id"], config)).orderBy("id")
    found = frame.toArrow()
    expected = contents.Expected(config, int)
    named = expected.asked_of("files")
    values = [found.column(name).to_pylist() for name in named]
    assert contents.contents_of(values).tolist() == expected.of("files")(ids).tolist()
    headers = [
        [(each["key"], each["value"]) for each in row or []]
        for row in values[named.index("headers")]
    ]
    times = [(time - EPOCH) // timedelta(milliseconds=1) for time in values[named.index("at")]]
    records = [headers, times]
    if partitioned:
        records.append(found.column("partition").to_pylist())
        assert {0, 1} == set(records[-1])
    assert contents.contents_of(records).tolist() == expected.of("kafka")(ids).tolist()
    for name in [*contents.NAMES, "headers"]:
        nulls = found.column(name).null_count
        assert (nulls > 0) == (name not in {"at", "ratio"}), name
