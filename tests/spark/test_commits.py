"""Entries of Spark's commit log that a detachment writes: durable like everything that a
decision rests on."""

from onceforall.spark import commits as spark_commits
from support.syncing import Recorder


def test_an_entry_is_synced_before_it_has_its_name_and_its_folder_behind_that(
    tmp_path, monkeypatch
):
    """The log is set aside next: without the folder's sync, a loss of power takes the entry, and
    the plain query writes its batch again."""
    (tmp_path / "commits").mkdir()
    recorder = Recorder(monkeypatch)
    spark_commits.enter(tmp_path, 0)
    linked = recorder.linked(tmp_path / "commits" / "0")
    assert any(
        what == "sync" and path.name.startswith(".0.") for what, path in recorder.calls[:linked]
    )
    assert recorder.synced(tmp_path / "commits") > linked


def test_no_checksum_of_an_entry_that_is_gone_stays_beside_ours(tmp_path):
    """Spark would take ours for damaged, at each start."""
    folder = tmp_path / "commits"
    folder.mkdir()
    (folder / ".0.crc").write_bytes(b"crc")
    spark_commits.enter(tmp_path, 0)
    assert sorted(path.name for path in folder.iterdir()) == ["0"]
    (folder / ".0.crc").write_bytes(b"crc")
    spark_commits.enter(tmp_path, 0)
    assert sorted(path.name for path in folder.iterdir()) == [".0.crc", "0"], "Spark's own stays"
