"""A sink's target that is another one at a restart, or an older copy: it is refused, and nothing
is created there. Whole queries on real Spark."""

import json
import re
import shutil

import pytest
from pyspark.errors import StreamingQueryException

import onceforall as ofa
from onceforall.embedded import EmbeddedKafka
from onceforall.errors import CheckpointMismatchError, OptionError
from onceforall.failpoints import points as failpoints
from support.disks import volume
from support.reading import values

pytestmark = pytest.mark.spark


class Pipeline:
    """One query from a folder of files into a folder of a FileSink."""

    def __init__(self, source, folder):
        self.source = source
        self.checkpoint = folder / "cp"
        self.out = folder / "out"
        self.written = []

    def writer(self, name="out", **options):
        made = ofa.write_stream(self.source.stream()).to(
            ofa.FileSink(self.out, format="json"), name=name
        )
        named = {f"onceforall.{option}": value for option, value in options.items()}
        return made.options(**named).option("checkpointLocation", str(self.checkpoint))

    def add(self):
        number = len(self.written)
        self.source.add({"key": "k", "value": f"v{number}"})
        self.written.append(f"v{number}")

    def run(self, **options):
        query = self.writer(**options).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    def batches(self):
        return [each.files.batch for each in ofa.read_files(self.out).batches]

    def values(self):
        return sorted(ofa.read_files(self.out).to_arrow()["value"].to_pylist())

    def decisions(self):
        files = sorted(self.checkpoint.glob("onceforall/chains/*/0*.json"))
        entries = [json.loads(file.read_text()) for file in files]
        return [entry["body"] for entry in entries if entry["kind"] == "COMMIT"]


@pytest.fixture
def pipeline(source, tmp_path):
    return Pipeline(source, tmp_path)


@pytest.mark.parametrize(
    "really",
    [pytest.param(True, id="mounted", marks=pytest.mark.long), pytest.param(False, id="renamed")],
)
def test_a_volume_that_is_not_mounted_at_a_restart_is_missed_and_nothing_is_lost(
    pipeline, tmp_path, really
):
    with volume(tmp_path, really=really) as disk:
        pipeline.add()
        pipeline.run()
        pipeline.add()
        disk.go_away()
        with pytest.raises(CheckpointMismatchError, match=r"(?s)out'.*volume.*adoptTarget=out"):
            pipeline.run()
        assert list(disk.mount_point.iterdir()) == []
        disk.mount()
        pipeline.run()
        pipeline.add()
        pipeline.run()
        assert pipeline.batches() == [0, 1, 2]
        assert pipeline.values() == pipeline.written


def test_a_missing_folder_is_not_made_anew(pipeline, tmp_path):
    pipeline.add()
    pipeline.run()
    pipeline.add()
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointMismatchError, match="not there"):
        pipeline.run()
    assert not (tmp_path / "out").exists()


def test_another_folder_under_the_same_path_is_told_from_the_one_before(pipeline, tmp_path):
    pipeline.add()
    pipeline.run()
    before = pipeline.decisions()[-1]["targets"]["out"]
    assert before["position"] == {"batch": 0}
    (tmp_path / "out").rename(tmp_path / "elsewhere")
    pipeline.checkpoint.rename(tmp_path / "kept")
    pipeline.run()
    pipeline.checkpoint.rename(tmp_path / "another")
    (tmp_path / "kept").rename(pipeline.checkpoint)
    pipeline.add()
    with pytest.raises(CheckpointMismatchError) as raised:
        pipeline.run()
    here = json.loads((tmp_path / "out" / "_onceforall" / "folder.json").read_text())["id"]
    assert before["identity"]["folder"] in str(raised.value)
    assert here in str(raised.value)


def test_a_folder_from_an_older_backup_is_found_to_be_behind_and_can_be_adopted(pipeline, tmp_path):
    pipeline.add()
    pipeline.run()
    shutil.copytree(pipeline.out, tmp_path / "backup")
    pipeline.add()
    pipeline.run()
    shutil.rmtree(pipeline.out)
    (tmp_path / "backup").rename(pipeline.out)
    pipeline.add()
    with pytest.raises(CheckpointMismatchError, match="behind the commit log: batch 1 is complete"):
        pipeline.run()
    with pytest.raises(OptionError, match="no sink of this query"):
        pipeline.run(adoptTarget="other")
    pipeline.run(adoptTarget="out")
    assert pipeline.decisions()[-1]["targets"]["out"]["adopted"]["position"] == {
        "batch": 1,
        "after": 0,
    }
    pipeline.add()
    pipeline.run()
    assert pipeline.batches() == [0, 2, 3]
    assert pipeline.values() == ["v0", "v2", "v3"]
    assert pipeline.decisions()[-1]["targets"]["out"]["position"] == {"batch": 3, "after": 2}


def test_a_new_folder_is_adopted_by_a_users_word_and_known_from_then_on(pipeline, tmp_path):
    name = "east,west"  # It is one sink: the option is for several, with commas between them.
    pipeline.add()
    pipeline.run(name=name)
    (tmp_path / "out").rename(tmp_path / "old")
    pipeline.add()
    pipeline.run(name=name, adoptTarget=name)
    pipeline.add()
    pipeline.run(name=name)
    assert pipeline.batches() == [1, 2]
    (tmp_path / "out").rename(tmp_path / "new")
    (tmp_path / "old").rename(tmp_path / "out")
    pipeline.add()
    with pytest.raises(
        CheckpointMismatchError, match="the last decision that names it wrote to folder"
    ):
        pipeline.run(name=name)


@pytest.mark.long
def test_a_sink_that_was_left_out_for_some_batches_still_knows_its_folder(pipeline, tmp_path):
    pipeline.add()
    pipeline.run()
    folder, pipeline.out = pipeline.out, tmp_path / "another"
    pipeline.add()
    pipeline.run(name="another")
    folder.rename(tmp_path / "gone")
    pipeline.out = folder
    pipeline.add()
    with pytest.raises(CheckpointMismatchError, match="Sink out"):
        pipeline.run()
    (tmp_path / "gone").rename(folder)
    pipeline.run()
    assert pipeline.batches() == [0, 2]


# --- another cluster ------------------------------------------------------------------------------


@pytest.fixture
def cluster():
    made = ReplacedCluster()
    yield made
    made.stop()


class ReplacedCluster:
    """A cluster that another one follows under the same address, with a topic of the same name."""

    def __init__(self):
        self._running = self._started(0)
        self._port = self._running.port
        self.servers = self._running.bootstrap_servers

    @staticmethod
    def _started(port):
        made = EmbeddedKafka(port=port)
        made.start()
        made.create_topic("events")
        return made

    def replace(self):
        self._running.stop()
        self._running = self._started(self._port)

    def stop(self):
        self._running.stop()


@pytest.mark.long
@pytest.mark.kafka
def test_a_decided_batch_is_not_looked_for_in_the_cluster_that_has_replaced_its_own(
    source, tmp_path, cluster
):
    def run(**options):
        sink = ofa.KafkaSink({"bootstrap.servers": cluster.servers}, topic="events")
        named = {f"onceforall.{option}": value for option, value in options.items()}
        made = ofa.write_stream(source.stream()).to(sink, name="out").options(**named)
        query = (
            made.option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    source.add({"key": "k", "value": "v0"})
    run()
    source.add({"key": "k", "value": "v1"})
    failpoints.arm("append_commit.after=raise")
    try:
        with pytest.raises(StreamingQueryException):
            run()
    finally:
        failpoints.arm("")
    decision = Pipeline(source, tmp_path).decisions()[-1]
    expected = decision["targets"]["out"]["identity"]["cluster"]
    assert decision["committables"]["out"][0]["cluster"] == expected
    cluster.replace()
    with pytest.raises(CheckpointMismatchError, match=f"cluster {re.escape(expected)}"):
        run()
    with pytest.raises(StreamingQueryException) as raised:
        run(adoptTarget="out")
    assert "InDoubtError" in str(raised.value)
    assert expected in str(raised.value)
    assert values(cluster.servers, "events") == []
    # The old cluster is gone for ever: a person says so, and the batch is written in the new one.
    run(adoptTarget="out", inDoubt="aborted")
    source.add({"key": "k", "value": "v2"})
    run()
    assert values(cluster.servers, "events") == ["v1", "v2"]
