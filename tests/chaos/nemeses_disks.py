"""Faults of disks: full, read-only, short writes, and entries of the commit log that were
damaged."""

import contextlib
import errno
import json
import os
import subprocess

from chaos.arena import DEADLINE_S, UNNOTICED
from chaos.nemeses_siege import Siege
from support.waiting import Story, until

DISK_MB = 192
PAGE = 4096
FULL_IN_DRIVER = ("store.create.written", "store.create.linked", "file.create.written")
FULL_IN_WORKER = ("file.pre_commit.file_written", "file.write.opened")


def disk_full(arena):
    """The disk of the checkpoint, or of the output's files, is full at random moments, and has room
    again.

    Runs end with ``CommitLogError`` or ``OutcomeUnknownError``, with a failed task, or with what
    Spark says of its own logs; behind a decision the file sink waits. When there is room, all goes
    on, and nothing that was written in part is read.
    """
    _with_disk(arena, "disk full", Full, "ENOSPC")


def short_write(arena):
    """The disk has room for some pages only, so that a write is cut off in the middle of a
    record or an entry."""
    _with_disk(arena, "short write", Short, "ENOSPC")


def read_only(arena):
    """The folder of the checkpoint, or of the output's files, can only be read for a while.

    As with a full disk.
    """
    _with_disk(arena, "folder read-only", ReadOnly, "EROFS")


def _with_disk(arena, fault, trouble_of, error):
    rng = arena.rng
    world = arena.world(
        rng.choice(["all", "files"]), arena.servers(), rows_per_batch=rng.choice([2000, 4000])
    )
    disks = {"checkpoint": world.checkpoint, "files": world.folder / "files"}
    siege = Siege(arena, world, arena.watch(world))
    try:
        for folder in disks.values():
            arena.small_disk(folder, DISK_MB)
    except OSError as refused:
        if arena.mounts:
            raise
        arena.say(f"{refused}: failpoints are used instead")
        _by_failpoints(siege, error)
    else:
        # Before the disks go, what uses them goes, and before that they are copied if need be.
        arena.at_the_end(world.close)
        siege.begin()
        while arena.goes_on:
            siege.a_moment()
            siege.keep_running()
            where = rng.choice(list(disks))
            shows = _signs_of(siege.driver)
            with trouble_of(disks[where], rng):
                siege.struck(f"{fault} ({where})" + ("" if _show_in_time(shows) else UNNOTICED))
                if rng.random() < 0.3:
                    siege.kill_driver()
            siege.progress()
            _make_room(disks)
    siege.judge()


def _signs_of(driver):
    """Whether a run of a driver fails, or a commit is tried again, from now on; a function that
    tells."""
    errors, length = len(driver.errors()), len(driver.log())
    return lambda: (
        driver.process.poll() is not None
        or len(driver.errors()) > errors
        or "is tried again" in driver.log()[length:]
    )


def _show_in_time(shows):
    """Wait until a trouble shows, or until enough time has passed that it might not show at all;
    whether it did."""
    with contextlib.suppress(AssertionError):
        return until(shows, 15, "the trouble shows")
    return False


def _make_room(disks):
    """A disk that the query's own data fill up in the end is made larger."""
    for folder in disks.values():
        room = os.statvfs(folder)
        if room.f_bavail < room.f_blocks // 2:
            size = 2 * room.f_blocks * room.f_frsize
            subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


class Full:
    """No room is left, until the end of the ``with`` block."""

    def __init__(self, folder, rng):
        self._ballast = folder / ".ballast"
        self._rng = rng

    def pages_left(self):
        return 0

    def __enter__(self):
        chunk = bytes(1 << 20)
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                # The last write is a short one.
                file.write(chunk)
        with contextlib.suppress(OSError):
            os.truncate(
                self._ballast, max(0, self._ballast.stat().st_size - PAGE * self.pages_left())
            )

    def __exit__(self, *_):
        self._ballast.unlink(missing_ok=True)


class Short(Full):
    """Only some pages of room are left."""

    def pages_left(self):
        return self._rng.choice([1, 1, 2, 3, 5, 8, 30, 100])


class ReadOnly:
    """Nothing can be written."""

    def __init__(self, folder, rng):
        self._folder = folder

    def __enter__(self):
        # It is refused while a file is open for writing, which is most of the time for a moment
        # only.
        until(
            lambda: self._remount("ro"),
            DEADLINE_S,
            f"a moment at which nothing writes to {self._folder}",
        )

    def __exit__(self, *_):
        assert self._remount("rw")

    def _remount(self, how):
        done = subprocess.run(
            ["mount", "-o", f"remount,{how}", str(self._folder)], capture_output=True, check=False
        )
        return done.returncode == 0


def _by_failpoints(siege, error):
    """Where nothing can be mounted: errors at the steps that write. None of them writes a part,
    as a full disk would have it."""
    assert hasattr(errno, error)
    rng = siege.arena.rng
    siege.begin()
    while siege.arena.goes_on:
        siege.end_driver()
        point = rng.choice(FULL_IN_DRIVER + FULL_IN_WORKER)
        action = f"{point}=error:{error}@{rng.randint(1, 4)}"
        # What is armed later is so in the driver only.
        if point in FULL_IN_WORKER:
            driver = siege.world.start(action, **siege.config)
        else:
            driver = siege.world.start(**siege.config, armed=action)
        siege.driver = driver
        with contextlib.suppress(AssertionError):
            until(
                lambda d=driver, p=point: d.acted(p) or d.process.poll() is not None,
                60,
                f"{point} is reached",
            )
        if driver.acted(point):
            siege.struck(f"{error} by failpoint {point}")
        siege.progress()


def torn_log(arena):
    """Entries of the commit log are truncated, or a bit of them is flipped, while no driver runs.

    A start that reads a damaged entry is refused with a ``CommitLogError`` that names the file, and
    changes nothing in any sink. With the original bytes back, the query goes on. Of the newest
    generation, a start reads the claim, and all from its last decision on; what lies before that
    decision, and older generations, only when they are needed.
    """
    arena.allow("CorruptEntryError", "ForeignEntryError", "NewerEntryError")
    rng = arena.rng
    world = arena.world(rng.choice(["all", "kafka", "files"]), arena.servers(), rows_per_batch=2000)
    siege = Siege(arena, world, arena.watch(world))
    siege.begin(2)
    while arena.goes_on:
        siege.a_moment()
        siege.kill_driver()
        file, must_be_read = _entry(world, rng)
        original = file.read_bytes()
        batches = world.spark_batches()
        file.write_bytes(_damaged(original, rng))
        siege.struck("log entry damaged")
        driver = world.start(restarts=0, until_batch=batches)
        until(lambda d=driver: d.process.poll() is not None, DEADLINE_S, Story(driver.tail))
        driver.kill()
        errors = driver.errors()
        if any(
            str(file) in error or f"{file.parent.name}/{file.name}" in error for error in errors
        ):
            siege.struck("start refused, naming the damaged entry")
            if world.spark_batches() != batches:
                arena.violation(f"batches were completed on a damaged log: {file}")
        elif errors or must_be_read:
            needed = "which each start reads" if must_be_read else "which a start may need or not"
            arena.violation(
                f"{file} ({needed}) is damaged, and the start was not refused with its name: "
                f"{errors}"
            )
        # A start that had no need of it may have cleaned it away.
        if file.exists():
            file.write_bytes(original)
        siege.progress()
    siege.judge()


def _entry(world, rng):
    """Any entry, most often the newest of all or another of its generation; the second result is
    whether each start reads it."""
    files = sorted((world.checkpoint / "onceforall" / "chains").glob("*/[0-9]*.json"))
    newest = files[-1]
    latest = [file for file in files if file.parent == newest.parent]
    decisions = [
        at for at, file in enumerate(latest) if json.loads(file.read_text())["kind"] == "COMMIT"
    ]
    read = [latest[0], *latest[max(decisions, default=0) :]]
    chosen = rng.choice(rng.choice([[newest], latest, files]))
    return chosen, chosen in read


def _damaged(original, rng):
    if rng.random() < 0.4:
        return original[: rng.choice([0, 1, len(original) // 2, len(original) - 1])]
    damaged = bytearray(original)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    # A flip of the last newline, or in white space, may leave an entry that says the same.
    with contextlib.suppress(ValueError):
        if json.loads(damaged) == json.loads(original):
            return original[:-10]
    return bytes(damaged)
