"""A full disk, a read-only one and a short write under the commit log: the error names the file,
nothing is lost, and a restart goes on."""

import resource
import signal

import pytest

from commit_log.building import CLAIM, commit, open_log, run_batches, start
from onceforall.commit_log.stores.local import LocalStore
from onceforall.errors import CommitLogError, OutcomeUnknownError
from onceforall.protocol.entries import Done

STEPS = ["before", "written", "synced", "linked", "folder_synced", "after"]


def temporary_files(root):
    return [path.name for path in root.iterdir() if path.name.startswith(".")]


def assert_goes_on(root, decided, batch):
    """A new run takes what is decided for decided, completes it, and decides more."""
    log, generation, history = start(LocalStore(root))
    assert (history.decided.commit.batch if history.decided else None) == decided
    if history.decided is not None and not history.decided.done:
        log.append(generation, Done(decided))
    log.append(generation, commit(batch))
    log.append(generation, Done(batch))
    assert start(LocalStore(root))[2].decided.commit == commit(batch)


class TestAFullDisk:
    def test_an_append_says_so_and_the_next_start_goes_on(self, disk):
        root = disk.root / "log"
        log, generation = run_batches(LocalStore(root), [0])
        disk.fill()
        with pytest.raises(OutcomeUnknownError) as caught:
            log.append(generation, commit(1))
        message = str(caught.value)
        assert str(root / "chains" / f"{generation:08d}" / "00000003.json") in message
        assert "No space left on device (ENOSPC). Free some space" in message
        assert temporary_files(root) == []
        disk.free()
        assert_goes_on(root, decided=0, batch=1)

    def test_a_start_says_so_and_the_next_one_goes_on(self, disk):
        root = disk.root / "log"
        log, generation = run_batches(LocalStore(root), [0])
        log.append(generation, commit(1))
        disk.fill()
        with pytest.raises(CommitLogError, match=rf"{root}.*ENOSPC.*Free some space"):
            open_log(LocalStore(root)).claim(CLAIM)
        disk.free()
        assert_goes_on(root, decided=1, batch=2)


class TestAReadOnlyDisk:
    def test_a_start_and_an_append_say_so_and_the_next_start_goes_on(self, disk):
        root = disk.root / "log"
        log, generation = run_batches(LocalStore(root), [0])
        with disk.read_only():
            with pytest.raises(OutcomeUnknownError, match=rf"{root}.*EROFS.*Remount"):
                log.append(generation, commit(1))
            with pytest.raises(CommitLogError, match=rf"{root}.*EROFS.*Remount"):
                open_log(LocalStore(root)).claim(CLAIM)
            assert open_log(LocalStore(root)).look().decided.commit.batch == 0
        assert_goes_on(root, decided=0, batch=1)


class TestAShortWrite:
    def test_half_an_entry_is_never_visible(self, tmp_path):
        root = tmp_path / "log"
        log, generation = run_batches(LocalStore(root), [0])
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        # The kernel writes as many bytes as fit, and refuses the rest.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            with pytest.raises(OutcomeUnknownError, match=rf"{root}.*EFBIG"):
                log.append(generation, commit(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert temporary_files(root) == []
        assert_goes_on(root, decided=0, batch=1)


@pytest.mark.parametrize("step", STEPS)
class TestAFaultAtEachStepOfACreate:
    def test_that_passes_is_overcome_and_the_entry_is_there_once(self, tmp_path, armed, step):
        log, generation = run_batches(LocalStore(tmp_path), [0])
        armed(f"store.create.{step}=error:EIO")
        assert log.append(generation, commit(1)) == 3
        assert [entry for _, entry in log.entries(generation)][3:] == [commit(1)]

    def test_that_stays_makes_the_append_unknown_and_the_next_start_finds_out(
        self, tmp_path, armed, step
    ):
        log, generation = run_batches(LocalStore(tmp_path), [0])
        armed(f"store.create.{step}=error:ENOSPC@+")
        if step in {"linked", "folder_synced", "after"}:
            # The entry stands; asked again, the store reads and syncs it, and the append has its
            # answer.
            assert log.append(generation, commit(1)) == 3
        else:
            with pytest.raises(OutcomeUnknownError, match=rf"{tmp_path}.*ENOSPC.*Free some space"):
                log.append(generation, commit(1))
        armed("")
        stands = (tmp_path / "chains" / f"{generation:08d}" / "00000003.json").exists()
        assert stands == (step in {"linked", "folder_synced", "after"})
        assert temporary_files(tmp_path) == []
        assert_goes_on(tmp_path, decided=1 if stands else 0, batch=2)
