"""A query with state whose whole checkpoint was moved goes on where it stood, also when the old
place is gone."""

import shutil
from datetime import datetime, timezone

import pytest

import onceforall as ofa
from onceforall.operate.moving_checkpoint import move_checkpoint
from onceforall.operators.deduplication import deduplicate, unique_rows

pytestmark = pytest.mark.spark
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def rocks_db(spark):
    """What transformWithState asks for; it has schema files, which its metadata names."""
    key = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(key)
    spark.conf.set(key, ROCKS_DB)
    yield
    spark.conf.set(key, before)


@pytest.fixture
def deduplicating(spark, source, run, tmp_path, rocks_db):
    """Starts a query with state on some keys, and returns the keys that it has written."""

    def go(checkpoint, *keys, **options):
        at = datetime(2026, 1, 1, tzinfo=timezone.utc).isoformat()
        source.add(*({"key": key, "at": at} for key in keys))
        rows = source.stream("key string, at timestamp")
        unique = unique_rows(deduplicate(rows, "key", "at", "1 day", late="keep"))
        writer = ofa.write_stream(unique).to(ofa.FileSink(str(tmp_path / "out"), format="json"))
        for name, value in options.items():
            writer = writer.option(f"onceforall.{name}", value)
        run(writer.option("checkpointLocation", str(checkpoint)))

    def keys():
        rows = ofa.read_files(str(tmp_path / "out")).to_spark(spark)
        return sorted(row.key for row in rows.collect())

    return go, keys


@pytest.mark.long
@pytest.mark.parametrize("how", ["adopted", "moved"])
def test_a_query_with_state_goes_on_where_its_folder_was_renamed(deduplicating, tmp_path, how):
    """Adopted there, or moved on by the command."""
    go, keys = deduplicating
    old, renamed = tmp_path / "old", tmp_path / "renamed"
    go(old, "a", "b")
    go(old, "b", "c")
    old.rename(renamed)
    if how == "moved":
        move_checkpoint(str(renamed), str(tmp_path / "new"), adopt_checkpoint=True)
        renamed = tmp_path / "new"
    go(renamed, "a", "c", "d", **({"adoptCheckpoint": "true"} if how == "adopted" else {}))
    go(renamed, "d", "e")
    assert keys() == list("abcde")


@pytest.mark.long
def test_a_query_with_state_goes_on_in_the_new_place(deduplicating, source, tmp_path):
    go, keys = deduplicating
    old, new = tmp_path / "old", tmp_path / "a folder" / "new"
    go(old, "a", "b")
    go(old, "b", "c")
    move_checkpoint(str(old), str(new))
    source.add({"key": "x", "at": "2026-01-01T00:00:00Z"})
    with pytest.raises(ofa.CheckpointMismatchError, match="this checkpoint was moved to"):
        go(old)
    named = [
        file for file in old.glob("state/*/_metadata/v2/[0-9]*") if str(old) in file.read_text()
    ]
    shutil.rmtree(old)
    go(new, "a", "c", "d")
    go(new, "d", "e")
    assert keys() == list("abcdex")
    assert named, "the metadata of state names no folder any more: it needn't be changed"
