"""The file sink on HDFS: what is seen when, what is lost, in doubt, swept and refused."""

from __future__ import annotations

import itertools

import pytest

from onceforall import FileSink, read_files
from onceforall.errors import (
    AttemptFailedError,
    MissingExtraError,
    OptionError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sink import StartInfo, Sweep
from onceforall.sinks.files.driver import manifest_writing
from onceforall.sinks.files.places.hdfs import HdfsTarget
from onceforall.sinks.files.places.hdfs.tree import HdfsTree
from onceforall.testing.observers import FileObserver
from sinks.files.building import QUERY, attempt, commit, numbers, permit, prepared
from sinks.files_hdfs.folder import STAGING, HdfsFolder

pytestmark = pytest.mark.hdfs


def test_rows_are_seen_behind_the_commit_only_and_nothing_is_left(place):
    sink = place.checked(partition_by=["p"])
    kept = sink.confirm([prepared(sink, numbers(4, p=["a", "b", "a/..", None]))])
    assert place.data() == []
    assert place.files().rows == 0
    assert len(place.staged()) == 1
    assert len(sink.commit(permit(), kept).completed) == 1
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


def test_what_was_committed_is_a_success_when_it_is_committed_again_also_behind_later_batches(
    place,
):
    sink = place.checked()
    first = commit(sink, 0, numbers(2))
    commit(sink, 1, numbers(2, 2))
    before = place.all()
    assert place.checked().commit(permit(0), first).completed == tuple(first)
    assert place.all() == before
    assert place.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("form", "compression"),
    [
        ("parquet", None),
        pytest.param("json", "gzip", marks=pytest.mark.long),
        pytest.param("csv", "gzip", marks=pytest.mark.long),
        pytest.param("orc", None, marks=pytest.mark.long),
    ],
)
def test_each_format_is_read_back(place, form, compression):
    sink = place.checked(format=form, compression=compression, max_file_bytes=1 << 20)
    rows = numbers(60_000, t=[f"{n * 7919:0100d}" for n in range(60_000)])
    commit(sink, 0, rows)
    commit(sink, 1, numbers(2, 60_000, t=["", "ü"]))
    assert place.numbers() == list(range(60_002))
    assert len(place.data()) >= 2
    assert place.left() == []


def test_files_that_another_driver_renames_between_two_looks_are_not_taken_for_lost(
    place, armed, monkeypatch
):
    """It was killed before its manifest, so that the files alone tell."""
    place.checked()
    size = HdfsTree.size
    for number in itertools.count():
        frozen, another = place.checked(), place.checked()
        kept = frozen.confirm([prepared(frozen, numbers(2, 2 * number), number)])
        looks = itertools.count()

        def look(tree, file):
            if next(looks) == number:  # noqa: B023
                armed("file.commit.synced=raise")
                with pytest.raises(Exception, match="failpoint"):
                    another.commit(permit(number), kept)  # noqa: B023
                armed("")
            return size(tree, file)

        with monkeypatch.context() as patched:
            patched.setattr(HdfsTree, "size", look)
            report = frozen.commit(permit(number), kept)
        assert report.completed == tuple(kept), (number, report)
        if next(looks) <= number:
            break
    assert number
    assert place.numbers() == list(range(2 * number + 2))


def test_temp_files_that_somebody_deleted_are_lost_and_only_their_rows_are_written_again(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(2)), prepared(sink, numbers(2, 2), partition=1)])
    place.lose(kept[0])
    report = sink.commit(permit(), kept)
    assert [each.committable for each in report.lost] == [kept[0]]
    assert place.data() == [], "a batch that lost a file leaves no other one in the open"
    sink.retire([kept[0]])
    again = sink.confirm([prepared(sink, numbers(2), generation=1)])
    assert not sink.commit(permit(), [*again, kept[1]]).lost
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


def test_of_a_lost_transaction_that_was_published_in_part_the_rest_is_deleted(place):
    sink = place.checked(partition_by=["p"])
    (kept,) = sink.confirm([prepared(sink, numbers(2, p=["a", "b"]))])
    tree = place.tree
    staged = tree.root / STAGING / kept["name"]
    one, other = tree.names(staged)
    tree.make_folder(tree.root / "p=a")
    tree.rename(staged / one, tree.root / "p=a" / one)
    tree.unlink(staged / other)
    (lost,) = sink.commit(permit(), [kept]).lost
    assert len(place.data()) == 1
    sink.retire([lost.committable])
    assert place.data() == []
    assert place.left() == []


def test_a_file_of_another_size_under_a_files_name_is_in_doubt_and_stays(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    tree = place.tree
    (name,) = tree.names(tree.root / STAGING / kept["name"])
    tree.create(tree.root / name, b"theirs")
    with pytest.raises(AttemptFailedError, match="is there already"):
        sink.confirm([kept])
    place.lose(kept)
    (doubt,) = sink.commit(permit(), [kept]).in_doubt
    assert "somebody changed it" in doubt.reason
    sink.retire([kept])
    assert tree.read(tree.root / name) == b"theirs"


def test_a_publication_never_overwrites(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    tree = place.tree
    (name,) = tree.names(tree.root / STAGING / kept["name"])
    tree.create(tree.root / name, b"theirs")
    (doubt,) = sink.commit(permit(), [kept]).in_doubt
    assert "isn't ours" in doubt.reason
    assert tree.read(tree.root / name) == b"theirs"


@pytest.mark.parametrize("what", ["deleted", "cut", "no folder"])
def test_confirm_refuses_what_could_not_be_committed(place, what):
    sink = place.checked(partition_by=["p"])
    committable = prepared(sink, numbers(2, p=["a", "a"]))
    tree = place.tree
    staged = tree.root / STAGING / committable["name"]
    (name,) = tree.names(staged)
    if what == "deleted":
        place.lose(committable)
    elif what == "cut":
        tree.unlink(staged / name)
        tree.create(staged / name, b"cut")
    else:
        tree.create(tree.root / "p=a", b"a file")
    with pytest.raises(AttemptFailedError, match=r"is missing|bytes instead|is no folder"):
        sink.confirm([committable])


def test_a_sweep_deletes_what_it_covers_and_nobody_elses(place):
    sink = place.checked()
    spared = prepared(sink, numbers(1))
    prepared(sink, numbers(1, 1))
    prepared(sink, numbers(1, 2), query="6f1c2d3e-0000-4000-8000-000000000002")
    prepared(sink, numbers(1, 3), generation=2)
    assert sink.recover(Sweep(QUERY, "out", 1, spared={spared["name"]})) == 1
    assert len(place.staged()) == 3
    assert sink.recover(Sweep(QUERY, "out", 3, spared={spared["name"]})) == 1
    (kept,) = sink.confirm([spared])
    assert len(sink.commit(permit(), [kept]).completed) == 1


@pytest.mark.parametrize("form", ["parquet", "json", "csv", "orc"])
def test_a_late_task_whose_folder_was_swept_ends_nothing(place, form):
    sink = place.checked(format=form)
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2))
    assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
    with pytest.raises(AttemptFailedError, match=r"lake: .*(does not|doesn't) exist"):
        sink.pre_commit(transaction)
    sink.discard(transaction)
    assert place.left() == []


def test_abort_and_discard_leave_nothing_and_may_come_again(place):
    sink = place.checked(partition_by=["p"])
    committable = prepared(sink, numbers(2, p=["a", "b"]))
    for _ in range(2):
        sink.abort([committable])
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2, p=["a", "b"]))
    for _ in range(2):
        sink.discard(transaction)
    assert place.left() == []


@pytest.mark.long
def test_manifests_are_merged_and_read_whole(place, monkeypatch):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    sink = place.checked()
    for batch in range(8):
        commit(sink, batch, numbers(1, batch))
    assert place.numbers() == list(range(8))
    assert len([key for key in place.all() if "manifests" in key and ".newest" not in key]) < 8


@pytest.mark.long
def test_another_folder_is_another_target(place):
    sink = place.checked()
    first = sink.identity(StartInfo(QUERY, "out"))
    assert place.checked().identity(StartInfo(QUERY, "out")) == first
    other = HdfsFolder(f"{place.url}-other")
    assert other.sink().identity(StartInfo(QUERY, "out")) is None
    assert other.checked().identity(StartInfo(QUERY, "out")) not in [None, first]
    kept = sink.confirm([prepared(sink, numbers(2))])
    (doubt,) = other.checked().commit(permit(), kept).in_doubt
    assert "was decided for the folder" in doubt.reason


def test_no_client_is_left_to_what_empties_itself_in_a_fork(place):
    """fsspec's hook emptied its cache in each forked process, as PySpark forks one for its JVM;
    the end of a client there waited for ever for threads that a fork doesn't have."""
    from hdfs_native.fsspec import HdfsFileSystem

    sink = place.checked()
    commit(sink, 0, numbers(2))
    assert place.numbers() == [0, 1]
    assert not HdfsFileSystem._cache


def test_an_observer_sees_rows_and_leftovers(place):
    observer = FileObserver(place.url, column="n", key_column=None)
    assert len(observer.rows()) == 0
    assert observer.leftovers() == []
    sink = place.checked(partition_by=["p"])
    commit(sink, 0, numbers(2, p=["a", "b"]))
    assert sorted(observer.rows().ids.tolist()) == [0, 1]
    assert observer.leftovers() == []
    name = prepared(sink, numbers(1, p=["a"]), 1)["name"]
    place.tree.create(place.tree.root / "p=a" / "part-x.parquet", b"x")
    assert observer.leftovers() == [f"staging folder {name}", "file p=a/part-x.parquet"]


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("hdfs:///lake", {}),
        ("hdfs://cluster", {}),
        ("hdfs://cluster/", {}),
        ("hdfs://cluster/a/../b", {}),
        ("hdfs://user@cluster/lake", {}),
        ("hdfs://cluster/lake?x=1", {}),
        ("hdfs://cluster/la\nke", {}),
        ("hdfs://cluster/lake", {"storage": {"region": "x"}}),
        ("hdfs://cluster/lake", {"spark_metadata": "continue"}),
    ],
)
def test_arguments_that_do_not_fit_are_refused(path, options):
    with pytest.raises(OptionError):
        FileSink(path, **options)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "hdfs_native", None)
    with pytest.raises(MissingExtraError, match=r"onceforall\[hdfs\]"):
        read_files("hdfs://cluster/lake")
    sink = FileSink("hdfs://cluster/lake")
    assert sink.task_imports == {"hdfs_native": "onceforall[hdfs]"}
    with pytest.raises(MissingExtraError, match=r"onceforall\[hdfs\]"):
        sink.check(StartInfo(QUERY, "out"))


def test_a_name_node_that_is_away_is_named_with_a_remedy(monkeypatch):
    settings = (("dfs.client.failover.max.attempts", "1"),)
    monkeypatch.setattr(
        "onceforall.sinks.files.sink.HdfsTarget", lambda root: HdfsTarget(root, settings)
    )
    sink = FileSink("hdfs://127.0.0.1:9/lake")
    with pytest.raises((SinkCheckError, SinkUnavailableError), match="Start the NameNode"):
        sink.check(StartInfo(QUERY, "out"))


@pytest.mark.parametrize("name", ["", "_onceforall", "_onceforall/staging"])
def test_a_file_in_a_folders_place_is_refused(place, name):
    tree = place.tree
    path = f"{place.url}/{name}".rstrip("/")
    tree.make_folder(tree.root.parent if not name else (tree.root / name).parent)
    tree.create(tree.root / name, b"a file")
    with pytest.raises(SinkCheckError, match="is a file") as caught:
        place.checked()
    assert path in str(caught.value)


def test_what_others_have_put_under_our_names_is_refused(place):
    place.checked()
    tree = place.tree
    tree.create(tree.root / "_onceforall" / "theirs", b"")
    with pytest.raises(SinkCheckError, match="was not written by FileSink"):
        place.checked()


def test_a_log_of_sparks_own_sink_is_refused_also_while_the_query_runs(place):
    sink = place.checked()
    committable = prepared(sink, numbers(1))
    place.tree.make_folder(place.tree.root / "_spark_metadata")
    with pytest.raises(SinkCheckError, match="_spark_metadata"):
        place.checked()
    with pytest.raises(SinkCheckError, match="_spark_metadata"):
        sink.confirm([committable])


def test_a_folder_without_rights_is_refused_with_a_remedy(hdfs_server, place, tmp_path):
    import os
    import subprocess
    import sys

    tree = place.tree
    tree.make_folder(tree.root)
    program = (
        "import sys\nfrom onceforall import FileSink\nfrom onceforall.sink import StartInfo\n"
        "FileSink(sys.argv[1]).check(StartInfo('6f1c2d3e-0000-4000-8000-000000000001', 'out'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, place.url],
        env={**os.environ, "HADOOP_USER_NAME": "somebody"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "SinkCheckError" in done.stderr
    assert "user=somebody" in done.stderr
    assert "Grant the user of driver and executors rights there" in done.stderr


def test_a_batch_whose_folder_is_another_users_is_not_decided(hdfs_server, place):
    import os
    import subprocess
    import sys

    place.checked()
    tree = place.tree
    for name in ("", "_onceforall", STAGING, "_onceforall/manifests"):
        tree.client.set_permission((tree.root / name).path, 0o777)
    tree.client.mkdirs((tree.root / "p=a").path, 0o755, True)
    program = (
        "import sys\n"
        "from sinks.files.building import checked, commit, numbers\n"
        "sink = checked(sys.argv[1], partition_by=['p'])\n"
        "commit(sink, 0, numbers(1, p=['b']))\n"
        "commit(sink, 1, numbers(1, p=['a']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, place.url],
        env={**os.environ, "HADOOP_USER_NAME": "somebody", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "AttemptFailedError: Nothing of this batch is decided" in done.stderr
    assert "user=somebody" in done.stderr
    assert place.numbers() == [0]
