from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commit_log.building import CLAIM, commit, open_log, run_batches, start
from commit_log.stores import race
from onceforall.commit_log import AlreadyExists, Created, LocalStore
from onceforall.commit_log.store import TooLate
from onceforall.errors import (
    CommitLogError,
    FencedError,
    OutcomeUnknownError,
    ProtocolViolationError,
)
from onceforall.protocol.entries import Done

KEY = "chains/00000000/00000000.json"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoint" / "onceforall"


@pytest.fixture
def store(root):
    return LocalStore(root)


@pytest.fixture
def calls(monkeypatch):
    """Record, in their order, what is synced, linked and unlinked, by path."""
    recorded = []
    fsync, link = os.fsync, os.link

    def path_of(descriptor):
        return Path(f"/proc/self/fd/{descriptor}").readlink()

    def recording_fsync(descriptor):
        recorded.append(("sync", path_of(descriptor)))
        fsync(descriptor)

    def recording_link(source, target, *, src_dir_fd, dst_dir_fd):
        link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        recorded.append(("link", path_of(dst_dir_fd) / target))

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "link", recording_link)
    return recorded


def names(folder):
    return sorted(child.name for child in folder.iterdir())


def failing(monkeypatch, name, code, *, times=10**9, after=0):
    """Let an os function fail with this error, for some calls, after some that work."""
    real = getattr(os, name)
    count = [0]

    def fail(*arguments, **options):
        count[0] += 1
        if after < count[0] <= after + times:
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, fail)


def test_a_key_is_created_once_and_the_loser_gets_what_won(store):
    assert store.read(KEY) is None
    assert store.create(KEY, b"first") == Created()
    assert store.create(KEY, b"second") == AlreadyExists(b"first")
    assert store.read(KEY) == b"first"
    assert store.list("chains/00000000") == ["00000000.json"]
    assert store.list("chains/00000009") == []


def test_a_deleted_key_is_gone_and_deleting_it_again_is_fine(store):
    store.create(KEY, b"first")
    store.delete(KEY)
    store.delete(KEY)
    assert store.read(KEY) is None
    assert store.list("chains/00000000") == []


def test_the_file_is_synced_before_it_is_linked_and_its_folder_after(store, root, calls):
    store.create("chains/00000000/00000000.json", b"x")
    calls.clear()
    store.create("chains/00000000/00000001.json", b"x")
    folder = root / "chains" / "00000000"
    (first, temporary), *rest = calls
    assert (first, temporary.parent) == ("sync", root)
    assert rest == [("link", folder / "00000001.json"), ("sync", folder)]
    assert names(root) == ["chains"]


def test_a_create_asks_for_the_time_when_nothing_but_the_link_is_left(store, root, calls):
    def too_late():
        assert [what for what, path in calls if path.name.endswith(".tmp")] == ["sync"], (
            "the sync may hang for long"
        )
        assert not (root / KEY).exists()
        asked.append(True)
        return False

    asked = []
    assert store.create(KEY, b"late", too_late) == TooLate()
    assert asked == [True]
    assert store.read(KEY) is None
    assert not list(root.glob(".*.tmp"))
    assert store.create(KEY, b"in time", lambda: True) == Created()
    assert store.create(KEY, b"late", lambda: False) == AlreadyExists(b"in time"), (
        "who has lost needs no time"
    )


def test_every_new_folder_is_synced_in_its_parent_before_the_entry_is_linked(store, root, calls):
    store.create(KEY, b"x")
    linked = calls.index(("link", root / KEY))
    for folder in (root.parent.parent, root.parent, root, root / "chains"):
        assert ("sync", folder) in calls[:linked]


def test_folders_that_another_process_made_are_synced_too(store, root, calls):
    (root / KEY).parent.mkdir(parents=True)
    store.create(KEY, b"x")
    linked = calls.index(("link", root / KEY))
    for folder in (root.parent, root, root / "chains"):
        assert ("sync", folder) in calls[:linked]


def test_what_another_writer_linked_is_durable_before_it_is_reported(store, root, calls):
    path = root / KEY
    path.parent.mkdir(parents=True)
    path.write_bytes(b"winner")
    assert store.create(KEY, b"loser") == AlreadyExists(b"winner")
    assert calls[-2:] == [("sync", path), ("sync", path.parent)]


def test_of_racing_processes_one_creates_each_key_and_all_see_the_same(root):
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    numbers = range(100)
    processes = [
        context.Process(target=race, args=(root, numbers, barrier, answers)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    got = [answers.get(timeout=60) for _ in range(2 * len(numbers))]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    for number in numbers:
        created = [content for n, content, _ in got if n == number and content is not None]
        assert len(created) == 1
        assert {seen for n, _, seen in got if n == number} == {created[0]}
    assert names(root) == ["chains"]


@pytest.mark.parametrize(
    "key",
    [
        "../x",
        "chains/../../x",
        "/etc/x",
        "",
        "chains//x",
        "chains/.x",
        "chains/x\n",
        "chains/ä",
        "a\0b",
        "chains/x/",
    ],
)
def test_a_key_cannot_leave_the_folder(store, key):
    operations = [store.read, store.delete, lambda k: store.create(k, b"")]
    if key:
        operations.append(store.list)
    for operation in operations:
        with pytest.raises(ProtocolViolationError, match="not a key"):
            operation(key)


def test_a_folder_that_may_not_be_looked_into_is_named(store, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(store._root), "is_symlink", refused)
    for operation in (store.read, store.list, lambda key: store.create(key, b"x")):
        with pytest.raises(CommitLogError, match="cannot look at .* Permission denied"):
            operation(KEY)


def test_an_empty_name_lists_the_root(store):
    assert store.list("") == []
    store.create(KEY, b"x")
    store.create("binding.json", b"x")
    assert store.list("") == ["binding.json", "chains"]


@pytest.mark.parametrize("link", ["chains", "chains/00000000", KEY])
def test_a_symbolic_link_in_the_log_is_refused(store, root, tmp_path, link):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (root / link).parent.mkdir(parents=True)
    (root / link).symlink_to(elsewhere)
    for operation in (store.read, store.delete, lambda k: store.create(k, b"")):
        with pytest.raises(CommitLogError, match="is a symbolic link.*Replace it"):
            operation(KEY)
    assert list(elsewhere.iterdir()) == []


def test_a_checkpoint_behind_a_symbolic_link_is_fine(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    LocalStore(tmp_path / "link" / "onceforall").create(KEY, b"x")
    assert LocalStore(tmp_path / "real" / "onceforall").read(KEY) == b"x"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named(store, root, monkeypatch, code):
    failing(monkeypatch, "link", code)
    with pytest.raises(
        CommitLogError,
        match=rf"{root}.*hard link.*Put the checkpoint on a file system with hard links",
    ):
        store.create(KEY, b"x")
    assert store.read(KEY) is None


@pytest.mark.parametrize(
    ("function", "code", "remedy"),
    [
        ("fsync", errno.ENOSPC, "Free some space"),
        ("fsync", errno.EIO, "Check the disk"),
        ("link", errno.EDQUOT, "quota"),
        ("link", errno.EROFS, "Remount"),
        ("open", errno.EACCES, "Grant the user"),
        ("open", errno.EMFILE, "Mend the cause"),
    ],
)
def test_an_error_of_the_disk_names_file_reason_and_remedy(
    store, root, monkeypatch, function, code, remedy
):
    failing(monkeypatch, function, code)
    with pytest.raises(CommitLogError) as caught:
        store.create(KEY, b"x")
    message = str(caught.value)
    assert str(root / KEY) in message
    assert os.strerror(code) in message
    assert remedy in message


def test_a_read_that_fails_is_not_taken_for_an_absent_key(store, monkeypatch):
    store.create(KEY, b"x")
    failing(monkeypatch, "open", errno.EIO)
    with pytest.raises(CommitLogError, match="cannot read"):
        store.read(KEY)


def test_a_folder_in_place_of_an_entry_is_an_error(store, root):
    (root / KEY).mkdir(parents=True)
    with pytest.raises(CommitLogError, match="cannot read"):
        store.read(KEY)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_no_file_in_place_of_an_entry_is_an_error_and_nobody_waits_for_it(root, kind):
    """In a process of its own, which is ended when it waits for the pipe's writer."""
    (root / KEY).parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(root / KEY)
    else:
        os.mknod(root / KEY, stat.S_IFSOCK | 0o600)
    for call in (f"read({KEY!r})", f"create({KEY!r}, b'x')"):
        code = (
            "import pathlib; from onceforall.commit_log.stores.local import LocalStore; "
            f"LocalStore(pathlib.Path({str(root)!r})).{call}"
        )
        ended = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 1
        last = ended.stderr.strip().splitlines()[-1]
        assert "EntryError" in last or "CommitLogError" in last
        assert str(root / KEY) in last
        assert "put back the file" in last


def test_every_failing_system_call_leaves_a_log_that_a_retry_completes(root, monkeypatch):
    # Fail the Nth call, for N = 1, 2, …, until nothing fails any more.
    for name in ("fsync", "link", "open"):
        for nth in range(100):
            store = LocalStore(root / name / str(nth))
            with monkeypatch.context() as patch:
                failing(patch, name, errno.EIO, times=1, after=nth)
                try:
                    store.create(KEY, b"mine")
                except CommitLogError:
                    failed = True
                else:
                    failed = False
            assert store.create(KEY, b"again") in (
                Created(),
                AlreadyExists(b"mine"),
                AlreadyExists(b"again"),
            )
            assert store.read(KEY) in (b"mine", b"again")
            assert names(root / name / str(nth)) == ["chains"]
            # Folders above the log are synced as far as possible; without that the create still
            # works.
            if not failed and nth > 30:
                break
        else:
            pytest.fail("it never stopped failing")


def test_an_append_whose_folder_could_not_be_synced_is_repeated(root, monkeypatch):
    log, generation, _ = start(LocalStore(root))
    failing(monkeypatch, "fsync", errno.EIO, times=1, after=1)
    assert log.append(generation, commit(0)) == 1
    assert log.append(generation, Done(0)) == 2


def test_a_full_disk_makes_an_append_unknown_and_the_next_start_finds_out(root, monkeypatch):
    log, generation, _ = start(LocalStore(root))
    with monkeypatch.context() as patch:
        failing(patch, "fsync", errno.ENOSPC)
        with pytest.raises(OutcomeUnknownError, match="No space left on device"):
            log.append(generation, commit(0))
    assert start(LocalStore(root))[2].decided is None


def test_leftovers_of_crashed_writers_are_cleaned_and_those_of_live_ones_are_not(store, root):
    store.create(KEY, b"x")
    old, young = (root / f".00000001.json.{digit * 32}.tmp" for digit in "ab")
    foreign = root / ".DS_Store"
    for file in (old, young, foreign):
        file.write_bytes(b"half")
        os.utime(file, (time.time() - 3600,) * 2)
    os.utime(young)
    assert store.list("chains") == ["00000000"]
    assert store.clean_temporary_files() == 1
    assert names(root) == sorted([".DS_Store", young.name, "chains"])


def test_cleaning_before_the_first_entry_finds_nothing(store):
    assert store.clean_temporary_files() == 0


def test_a_writer_whose_temporary_file_was_cleaned_away_tries_again(root, monkeypatch):
    log, generation, _ = start(LocalStore(root))
    link = os.link
    taken = []

    def slow_link(source, target, **folders):
        if not taken:
            taken.append(source)
            (root / source).unlink()
        link(source, target, **folders)

    monkeypatch.setattr(os, "link", slow_link)
    assert log.append(generation, commit(0)) == 1
    assert taken


def test_runs_on_a_disk_hand_their_decisions_on(root):
    run_batches(LocalStore(root), range(3))
    log, generation = run_batches(LocalStore(root), range(3, 6), retain_commits=1)
    (root / ".00000001.json.0123456789abcdef0123456789abcdef.tmp").write_bytes(b"")
    os.utime(root / ".00000001.json.0123456789abcdef0123456789abcdef.tmp", (0, 0))
    log, generation, history = start(LocalStore(root), retain_commits=1)
    assert (history.decided.commit, history.decided.generation, history.decided.done) == (
        commit(5, "g1"),
        1,
        True,
    )
    assert log.clean(generation) == 6 + 4
    assert names(root) == ["chains"]
    assert start(LocalStore(root))[2] == history


def test_a_run_whose_log_was_renamed_is_fenced_and_never_writes_into_the_log_that_took_its_place(
    root,
):
    zombie, generation, _ = start(LocalStore(root))
    zombie.append(generation, commit(0))
    log, successor, _ = start(LocalStore(root))
    assert successor == generation + 1
    root.rename(root.with_name("set-aside"))
    new, new_generation, history = start(LocalStore(root))
    assert (new_generation, history.decided) == (generation, None)
    before = sorted(file.relative_to(root) for file in root.rglob("*"))
    with pytest.raises(FencedError):
        zombie.append(generation, Done(0))
    assert zombie.is_sealed(generation)
    log.clean(successor)
    assert sorted(file.relative_to(root) for file in root.rglob("*")) == before
    assert new.append(new_generation, commit(0)) == 1


def test_a_log_that_is_dropped_leaves_nothing_open(root, monkeypatch):
    """A volume whose query has ended can be unmounted at once, and a process that starts many
    keeps no descriptor of each."""
    gc.collect()
    gc.disable()
    try:
        run_batches(LocalStore(root), range(3))
        log = open_log(LocalStore(root))
        assert log.look().decided is not None
        refusing = LocalStore(root)
        with monkeypatch.context() as patch:
            patch.setattr(refusing, "create", lambda *_: (_ for _ in ()).throw(OSError("gone")))
            with pytest.raises(CommitLogError):
                open_log(refusing).claim(CLAIM)
        del log, refusing
        assert [
            str(each)
            for each in map(os.path.realpath, Path("/proc/self/fd").iterdir())
            if str(root) in each
        ] == []
    finally:
        gc.enable()
