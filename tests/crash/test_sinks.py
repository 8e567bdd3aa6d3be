"""kill -9 at every step, for each kind of sink alone and for all of them in one decision; then the
outputs are right and equal.

A chain of kills: each driver is killed at the next point, and the one after it recovers from what
was left, and goes on until its own.
Points in recovery come behind a kill right after a decision, so that there is something to
complete.
"""

import itertools
import signal
from collections import Counter

import pytest

from onceforall.embedded import EmbeddedPostgres
from support.driver import ROWS_PER_BATCH, Pipeline
from support.sinks import left, make_table, shown
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

ALL = ("kafka", "files", "postgres")

IN_A_BATCH = [
    "write.after",
    "append_commit.before",
    "append_commit.after",
    "commit.after",
    "append_done.before",
    "append_done.after",
]
IN_RECOVERY = [
    "claim.after",
    "seal.after",
    "recover.after",
    "append_done.before",
    "append_done.after",
]

FILES = [
    "file.confirm.after",
    "file.commit.renamed",
    "file.commit.synced",
    "file.manifest.after",
    "file.commit.before_clearing",
]
STAGED = [
    "postgres.merge.marked",
    "postgres.confirm.merged",
    "postgres.commit.before",
    "postgres.commit.after",
]
PREPARED = ["postgres.commit_prepared.before", "postgres.commit_prepared.after"]


@pytest.fixture
def pipeline_to(tmp_path, broker, topic, database):
    """Make a pipeline to these kinds of sinks."""
    made = []

    def make(*kinds, **postgres):
        make_table(database)
        folder = tmp_path / "files"
        config = {
            "sinks": list(kinds),
            "files": str(folder),
            "database": database,
            "postgres": postgres,
        }
        made.append(
            Pipeline(
                tmp_path,
                broker.bootstrap_servers,
                topic(partitions=3),
                until_batch=10_000,
                **config,
            )
        )
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


def chain(in_a_batch, in_recovery):
    """Return the failpoints of the drivers in turn."""
    second = itertools.chain.from_iterable(
        ("append_commit.after=kill@3", f"{point}=kill") for point in in_recovery
    )
    return [*(f"{point}=kill@3" for point in in_a_batch), *second]


def run_through(pipeline, failpoints):
    assert failpoints
    for failpoint in failpoints:
        pipeline.start(failpoint).wait_until_killed()
    finish(pipeline)


def finish(pipeline):
    pipeline.run(until_batch=pipeline.batches() + 2)


def assert_right_everywhere(pipeline):
    """Every row of every batch that Spark committed is in every sink once, and nothing is left
    over."""
    kinds = pipeline.config["sinks"]
    assert pipeline.batches() > 2
    expected = Counter(str(row) for row in range(ROWS_PER_BATCH * pipeline.batches()))
    for kind in kinds:
        found = Counter(shown(pipeline, kind))
        assert (kind, expected - found, found - expected) == (kind, Counter(), Counter())
    assert {kind: left(pipeline, kind) for kind in kinds} == {kind: [] for kind in kinds}


class TestAllTogether:
    @pytest.mark.long  # tests/chaos/test_campaign.py does the same in make test, and looks harder
    def test_they_agree_through_kills_in_a_batch_and_in_recovery(self, pipeline_to):
        pipeline = pipeline_to(*ALL)
        run_through(
            pipeline,
            chain(
                ["append_commit.before", "file.commit.renamed"],
                ["postgres.commit.merged_again", "recover.after"],
            ),
        )
        assert_right_everywhere(pipeline)

    @pytest.mark.long
    @pytest.mark.timeout(900)
    @pytest.mark.parametrize(
        "points",
        [
            pytest.param(chain(IN_A_BATCH, []), id="in-a-batch"),
            pytest.param(chain([], IN_RECOVERY), id="in-recovery"),
            pytest.param(chain([*FILES, *STAGED, "kafka.end_txn.after"], []), id="at-each-sink"),
            pytest.param(
                chain(
                    [],
                    [
                        *FILES[1:],
                        "postgres.commit.merged_again",
                        "postgres.commit.after",
                        "kafka.end_txn.after",
                    ],
                ),
                id="at-each-sink-in-recovery",
            ),
        ],
    )
    def test_they_agree_through_a_kill_at_each_step(self, pipeline_to, points):
        pipeline = pipeline_to(*ALL)
        run_through(pipeline, points)
        assert_right_everywhere(pipeline)

    @pytest.mark.long
    @pytest.mark.timeout(900)
    def test_they_agree_with_prepared_transactions_as_well(self, pipeline_to):
        pipeline = pipeline_to(*ALL, mode="prepared")
        run_through(
            pipeline,
            chain(
                ["append_commit.before", "append_commit.after", *PREPARED],
                ["recover.after", *PREPARED],
            ),
        )
        assert_right_everywhere(pipeline)

    @pytest.mark.long  # the short part of the campaign kills a worker there, too
    def test_a_worker_that_is_killed_between_the_sinks_pre_commits_aborts_the_batch_on_all(
        self, pipeline_to
    ):
        pipeline = pipeline_to(*ALL)
        driver = pipeline.start("postgres.task.staged=kill@5")
        driver.wait()
        assert driver.status()["error"] is not None
        finish(pipeline)
        assert_right_everywhere(pipeline)

    @pytest.mark.long
    @pytest.mark.parametrize("point", ["postgres.confirm.merged", "append_commit.after"])
    def test_a_driver_that_is_frozen_and_wakes_behind_its_successor_changes_nothing(
        self, pipeline_to, point
    ):
        """While it merges its connection holds locks on what the successor needs: that may take
        a moment, but not for ever."""
        pipeline = pipeline_to(*ALL)
        frozen = pipeline.start(f"{point}=freeze@3")
        frozen.wait_for_failpoint(point)
        finish(pipeline)
        frozen.signal(signal.SIGCONT)
        frozen.wait()
        # Past the decision, Spark's own log may stop it before its next request does.
        assert frozen.status()["error"] is not None
        assert "FencedError" in frozen.log()
        assert_right_everywhere(pipeline)


@pytest.mark.parametrize(
    ("kind", "settings", "points"),
    [
        pytest.param(
            "files",
            {},
            chain(["append_commit.before"], ["file.manifest.after"]),
            marks=pytest.mark.long,
        ),
        pytest.param(
            "postgres",
            {},
            chain(["append_commit.before"], ["postgres.commit.after"]),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *(
                "postgres",
                {"mode": "prepared"},
                chain(["append_commit.before"], ["postgres.commit_prepared.after"]),
            ),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *(
                "postgres",
                {"mode": "prepared", "key": ["value"]},
                chain(["append_commit.before", "commit.after"], []),
            ),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *(
                "postgres",
                {"mode": "upsert", "key": ["value"]},
                chain(["append_commit.before", "append_commit.after"], []),
            ),
            marks=pytest.mark.long,
        ),
    ],
    ids=["files", "staged", "prepared", "prepared-with-key", "upsert"],
)
def test_a_sink_alone_is_right_through_kills(pipeline_to, kind, settings, points):
    pipeline = pipeline_to(kind, **settings)
    run_through(pipeline, points)
    assert_right_everywhere(pipeline)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "settings", "points"),
    [
        ("files", {}, chain([*IN_A_BATCH, *FILES], [])),
        ("files", {}, chain([], [*IN_RECOVERY, *FILES[1:]])),
        ("postgres", {"key": ["value"]}, chain([*IN_A_BATCH, *STAGED], [])),
        (
            "postgres",
            {},
            chain([], [*IN_RECOVERY, "postgres.commit.merged_again", "postgres.commit.after"]),
        ),
        ("postgres", {"mode": "prepared"}, chain([*IN_A_BATCH, *PREPARED], [])),
        ("postgres", {"mode": "prepared"}, chain([], [*IN_RECOVERY, *PREPARED])),
    ],
    ids=[
        "files",
        "files-in-recovery",
        "staged-with-key",
        "staged-in-recovery",
        "prepared",
        "prepared-in-recovery",
    ],
)
def test_a_sink_alone_is_right_through_a_kill_at_each_step(pipeline_to, kind, settings, points):
    pipeline = pipeline_to(kind, **settings)
    run_through(pipeline, points)
    assert_right_everywhere(pipeline)


@pytest.mark.long  # test_kills.py has that of Kafka
@pytest.mark.parametrize("kind", ["files", "postgres"])
def test_a_task_that_wakes_behind_its_drivers_successor_leaves_nothing_for_good(pipeline_to, kind):
    """Like one on another machine: it finishes its part of a batch that nobody can decide any
    more."""
    pipeline = pipeline_to(kind)
    driver = pipeline.start("task.pre_commit.before=freeze@3")
    driver.wait_for_failpoint("task.pre_commit.before")
    workers = driver.workers()
    assert workers
    driver.signal(9)
    driver.wait_until_killed()
    successor = pipeline.start(until_batch=12)
    successor.wait_for("pids.json")
    for worker in workers:
        if worker.is_running():
            worker.resume()
    until(
        lambda: not any(worker.is_running() for worker in workers), 60, "the end of the woken tasks"
    )
    successor.wait()
    assert successor.status()["error"] is None
    # What they left after the successor's last look is found by the next start.
    finish(pipeline)
    assert_right_everywhere(pipeline)


class TestAServerThatGoesAway:
    @pytest.fixture
    def server(self):
        with EmbeddedPostgres() as running:
            yield running

    @pytest.fixture
    def pipeline(self, tmp_path, broker, topic, server):
        make_table(server.conninfo)
        config = {
            "sinks": list(ALL),
            "files": str(tmp_path / "files"),
            "database": server.conninfo,
            "postgres": {},
        }
        made = Pipeline(
            tmp_path, broker.bootstrap_servers, topic(partitions=3), until_batch=10_000, **config
        )
        yield made
        made.close()

    @pytest.mark.long
    def test_behind_the_decision_it_is_waited_for_and_the_query_goes_on(self, pipeline, server):
        driver = pipeline.start("append_commit.after=freeze@3")
        driver.wait_for_failpoint("append_commit.after")
        server.kill()
        driver.signal(signal.SIGCONT)
        # The others are committed meanwhile.
        until(lambda: len(shown(pipeline, "kafka")) == 3 * ROWS_PER_BATCH, 60, "the batch in Kafka")
        until(
            lambda: len(shown(pipeline, "files")) == 3 * ROWS_PER_BATCH,
            60,
            "the batch in the files",
        )
        assert driver.process.poll() is None, driver.log()
        server.restart()
        until(
            lambda: len(shown(pipeline, "postgres")) > 3 * ROWS_PER_BATCH,
            90,
            "the batch in PostgreSQL, and the next one",
        )
        driver.kill()
        finish(pipeline)
        assert_right_everywhere(pipeline)

    @pytest.mark.long
    def test_while_tasks_write_the_batch_fails_cleanly_and_a_restart_writes_it(
        self, pipeline, server
    ):
        driver = pipeline.start("postgres.task.copied=freeze@5")
        driver.wait_for_failpoint("postgres.task.copied")
        server.kill()
        for worker in driver.workers():
            worker.resume()
        driver.wait()
        assert "PostgreSQL" in str(driver.status()["error"]), driver.status()
        server.restart()
        finish(pipeline)
        assert_right_everywhere(pipeline)
