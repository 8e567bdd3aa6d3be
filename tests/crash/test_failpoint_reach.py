"""The catalogue of failpoints says the truth: real runs record what they pass, first ones and
those that recover."""

import pytest

from onceforall.failpoints.catalogue import CATALOGUE
from onceforall.failpoints.points import RECORD_VARIABLE
from support.driver import Pipeline
from support.sinks import make_table

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long]

KINDS = {
    "kafka": ("kafka", {}),
    "files": ("files", {}),
    "postgres-staged": ("postgres", {"mode": "staged"}),
    "postgres-prepared": ("postgres", {"mode": "prepared"}),
    "postgres-upsert": ("postgres", {"mode": "upsert", "key": ["value"]}),
}
IN_THE_BACKGROUND = {"sweeper.before", "sweeper.after", "sweeper.cleaned", "log.clean.before"}
"""Passed soon after a start, on a thread of its own: where the run is killed early, perhaps not
yet."""
BEHIND_RECOVERY = "write.before"
"""Where the recovering run is ended: the first step behind its recovery."""


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Run a driver, and return the failpoints that it passed, each with the kind of process."""

    def run(pipeline, name, failpoints):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv(RECORD_VARIABLE, str(folder))
        pipeline.start(
            failpoints, spark={f"spark.executorEnv.{RECORD_VARIABLE}": str(folder)}
        ).wait_until_killed()
        monkeypatch.delenv(RECORD_VARIABLE)
        passed = [path.name.rpartition("@") for path in folder.iterdir()]
        assert passed
        return {(name, kind) for name, _, kind in passed}

    return run


def assert_agree(kind, passed, must, may=()):
    names = {name for name, _ in passed}
    here = {name for name, point in CATALOGUE.items() if not point.sinks or kind in point.sinks}
    wanted = {name for name in here if must(CATALOGUE[name])}
    allowed = wanted | {name for name in here if any(m(CATALOGUE[name]) for m in may)}
    assert len(wanted) > 20
    assert sorted(wanted - names - IN_THE_BACKGROUND) == [], "the catalogue promises them"
    assert sorted(names - allowed - {BEHIND_RECOVERY}) == [], (
        "the catalogue doesn't know that they are reached"
    )
    wrong = {
        (name, process)
        for name, process in passed
        if CATALOGUE[name].where not in {process, "both"}
    }
    assert wrong == set()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_catalogue_says_of_a_sink_is_what_runs_pass(
    tmp_path, broker, topic, database, record, kind
):
    sink, options = KINDS[kind]
    make_table(database)
    config = {
        "sinks": [sink],
        "files": str(tmp_path / "files"),
        "database": database,
        "postgres": options,
        "until_batch": 10_000,
    }
    pipeline = Pipeline(tmp_path, broker.bootstrap_servers, topic(partitions=3), **config)
    try:
        # Ended before a decision, so that nothing is aborted on the way out; the DONE of the
        # batches before has been written.
        first = record(pipeline, "first", "append_commit.before=kill@5")
        assert_agree(kind, first, lambda p: p.first and not p.needs)
        # It died undecided.
        undecided = record(pipeline, "undecided", f"{BEHIND_RECOVERY}=kill")
        plain, older = (
            (lambda p: p.recovery and not p.recovery_needs),
            (lambda p: p.recovery_needs == "older"),
        )
        assert_agree(
            kind, undecided, lambda p: plain(p) or p.recovery_needs == "undecided", [older]
        )
        pipeline.start("append_commit.after=kill@3").wait_until_killed()
        decided = record(pipeline, "decided", f"{BEHIND_RECOVERY}=kill")
        assert_agree(kind, decided, lambda p: plain(p) or older(p) or p.recovery_needs == "decided")
        pipeline.start("append_done.before=kill@3").wait_until_killed()
        completed = record(pipeline, "completed", f"{BEHIND_RECOVERY}=kill")
        assert {
            name
            for name, p in CATALOGUE.items()
            if kind in p.sinks and p.recovery_needs == "completed"
        } <= {name for name, _ in completed}
        pipeline.run(until_batch=pipeline.batches() + 1)
    finally:
        pipeline.close()
