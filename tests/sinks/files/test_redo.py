"""A batch that is decided and lost a part is written again by a run with another format: each
file is read as it was written."""

import datetime as dt
import json
import shutil
from contextlib import contextmanager, suppress

import pytest
from pyspark.errors import StreamingQueryException

import onceforall as ofa
from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.driver import staged_files
from onceforall.sinks.files.reading.mending import check_files
from sinks.files.building import checked, commit, left_in_staging, numbers, permit, prepared

ROWS = 60
TEN = dt.datetime(2026, 11, 21, 10, tzinfo=dt.UTC)
COLUMNS = "n BIGINT, p STRING, d DECIMAL(10,2), t TIMESTAMP"


def rows():
    return [
        {"n": n, "p": f"p{n % 2}", "d": f"{n % 3}.50", "t": f"2026-11-21T1{n % 4}:00:00Z"}
        for n in range(ROWS)
    ]


@contextmanager
def failing(specification):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "_failpoints", failpoints._Failpoints(specification, None))
        yield


class Job:
    """A query of one batch with three tasks, each of which has rows."""

    def __init__(self, spark, folder):
        self.spark, self.folder, self.out = spark, folder, folder / "out"
        (folder / "in").mkdir()
        (folder / "in" / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows()))

    def run(self, options):
        frame = (
            self.spark.readStream.schema(COLUMNS).json(str(self.folder / "in")).repartition(3, "n")
        )
        writer = ofa.write_stream(frame).to(ofa.FileSink(self.out, **options), name="out")
        query = (
            writer.option("checkpointLocation", str(self.folder / "c"))
            .trigger(availableNow=True)
            .start()
        )
        with suppress(StreamingQueryException):
            query.awaitTermination(120)
        return query.exception()

    def decide(self, options):
        with failing("append_commit.after=raise"):
            assert "failpoint" in str(self.run(options))
        assert len(self.decided()) == 3

    def decided(self):
        entries = [
            json.loads(path.read_text())
            for path in sorted((self.folder / "c" / "onceforall" / "chains").glob("*/0*.json"))
        ]
        return [entry for entry in entries if entry["kind"] == "COMMIT"][-1]["body"][
            "committables"
        ]["out"]

    def lose(self, which):
        shutil.rmtree(self.out / "_onceforall" / "staging" / self.decided()[which]["name"])

    def assert_whole(self, names=("d", "n", "p", "t")):
        files = ofa.read_files(self.out)
        wanted = sorted(
            map(
                tuple,
                self.spark.read.schema(COLUMNS)
                .json(str(self.folder / "in"))
                .select(*names)
                .collect(),
            ),
            key=repr,
        )
        assert len(wanted) == ROWS
        assert (
            sorted(map(tuple, files.to_spark(self.spark).select(*names).collect()), key=repr)
            == wanted
        )
        table = files.to_arrow().select(list(names))
        told = [
            [str(row["d"]), row["n"], row["p"], row["t"].timestamp()] for row in table.to_pylist()
        ]
        assert sorted(told, key=lambda row: row[1]) == [
            [f"{n % 3}.50", n, f"p{n % 2}", TEN.timestamp() + 3600 * (n % 4)] for n in range(ROWS)
        ]
        assert check_files(self.out) == []
        assert left_in_staging(self.out) == []
        in_the_open = {
            str(path) for path in self.out.rglob("part-*") if "_onceforall" not in path.parts
        }
        assert in_the_open == set(files.paths)


LOST = {"which told the layout": 0, "another": 2}
CHANGES = {
    "the format": ({"format": "parquet", "partition_by": ["p"]}, {"format": "json"}),
    "to parquet": ({"format": "json"}, {"format": "parquet"}),
    "to orc": ({"format": "parquet"}, {"format": "orc"}),
    "partition_by": ({"partition_by": ["p"]}, {"partition_by": ["d"]}),
    "partition_by in csv": (
        {"format": "csv", "partition_by": ["p"]},
        {"format": "csv", "partition_by": ["d"]},
    ),
    "the delimiter": ({"format": "csv"}, {"format": "csv", "options": {"delimiter": "|"}}),
    "the header": ({"format": "csv"}, {"format": "csv", "options": {"header": False}}),
    "the bucket": (
        {"time_bucket": "hour={t:%H}"},
        {"time_bucket": "{t:%Y}", "compression": "gzip"},
    ),
}


@pytest.mark.spark
@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ("the format", "which told the layout"),
        ("the format", "another"),
        ("partition_by", "another"),
        ("the delimiter", "which told the layout"),
        *(
            pytest.param(change, lost, marks=pytest.mark.long)
            for change in (
                "to parquet",
                "to orc",
                "partition_by in csv",
                "the header",
                "the bucket",
            )
            for lost in LOST
        ),
    ],
)
@pytest.mark.sample(2)
def test_what_stays_of_a_batch_is_read_as_it_was_written(spark, tmp_path, change, lost):
    job, (before, now) = Job(spark, tmp_path), CHANGES[change]
    job.decide(before)
    job.lose(LOST[lost])
    assert job.run(now) is None
    job.assert_whole()
    layouts = {each["layout"] for each in job.decided()}
    assert len(layouts) == (1 if change == "the bucket" else 2), "the test is of nothing"


@pytest.mark.spark
def test_each_of_three_runs_has_its_own_format(spark, tmp_path):
    job = Job(spark, tmp_path)
    job.decide({"format": "csv", "partition_by": ["p"]})
    job.lose(0)
    job.decide({"format": "parquet"})
    job.lose(0)
    assert job.run({"format": "json", "partition_by": ["d"]}) is None
    assert len({each["layout"] for each in job.decided()}) == 3
    job.assert_whole()


# --- logs of earlier releases ---------------------------------------------------------------------


def as_before(committables):
    """Return committables as earlier releases left them: with the layout on the first one of a
    write."""
    seen, slim = set(), []
    for committable in committables:
        write = committable["name"].split(".")[5]
        slim.append(
            {k: v for k, v in committable.items() if k != "layout"}
            if write in seen
            else committable
        )
        seen.add(write)
    return slim


@pytest.mark.spark
def test_what_an_earlier_release_told_of_no_file_that_stays_is_written_again(
    spark, tmp_path, monkeypatch
):
    job = Job(spark, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(staged_files, "with_shared_layouts", as_before)
        job.decide({"format": "csv"})
    assert ["layout" in each for each in job.decided()] == [True, False, False]
    job.lose(0)
    now = {"format": "csv", "options": {"delimiter": "|"}}
    error = str(job.run(now))
    assert "how to read them stood in another transaction" in error
    assert ofa.read_files(job.out).rows == 0
    assert job.run(now) is None
    job.assert_whole()


@pytest.mark.spark
def test_a_decision_of_an_earlier_release_is_committed(spark, tmp_path, monkeypatch):
    job = Job(spark, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(staged_files, "with_shared_layouts", as_before)
        job.decide({"format": "csv"})
    job.lose(2)
    assert job.run({"format": "json", "partition_by": ["p"]}) is None
    job.assert_whole()


def test_what_is_given_up_for_its_layout_is_not_seen_by_anybody(tmp_path):
    sink = checked(tmp_path)
    decided = as_before(
        sink.confirm(
            [prepared(sink, numbers(2, 2 * i), 1, partition=i, write=i % 2) for i in range(4)]
        )
    )
    decided = [{k: v for k, v in each.items() if k not in {"layout", "shared"}} for each in decided]
    report = sink.commit(permit(1), decided)
    assert [lost.committable["name"] for lost in report.lost] == [each["name"] for each in decided]
    assert not report.in_doubt
    assert ofa.read_files(tmp_path).rows == 0
    sink.retire([json.loads(json.dumps(lost.committable)) for lost in report.lost])
    assert left_in_staging(tmp_path) == []
    assert not list(tmp_path.rglob("part-*"))
    commit(sink, 2, numbers(1))
