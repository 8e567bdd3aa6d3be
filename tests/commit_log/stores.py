"""Stores for tests: in memory, counting, failing on purpose, and one whose every operation is a
step of a schedule."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable

from onceforall.commit_log import AlreadyExists, Created, LocalStore
from onceforall.commit_log.store import TooLate


class MemoryStore:
    """The guarantees of ``Store``, in a dictionary; ``ever`` remembers the first content of each
    key, deleted or not."""

    def __init__(self):
        self.contents: dict[str, bytes] = {}
        self.ever: dict[str, bytes] = {}

    def read(self, key):
        return self.contents.get(key)

    def list(self, folder):
        prefix = folder + "/"
        return sorted(
            k[len(prefix) :]
            for k in list(self.contents)
            if k.startswith(prefix) and "/" not in k[len(prefix) :]
        )

    def create(self, key, content, in_time=None):
        if key in self.contents:
            return AlreadyExists(self.contents[key])
        if in_time is not None and not in_time():
            return TooLate()
        self.contents[key] = content
        self.ever.setdefault(key, content)
        return Created()

    def delete(self, key):
        self.contents.pop(key, None)

    def describe(self, key):
        return f"memory:{key}"


class FolderedStore(MemoryStore):
    """The same with a listing that doesn't look at every key, for logs of many generations."""

    def __init__(self):
        super().__init__()
        self.folders: dict[str, set[str]] = {}

    def list(self, folder):
        return sorted(self.folders.get(folder, ()))

    def create(self, key, content):
        folder, _, name = key.rpartition("/")
        self.folders.setdefault(folder, set()).add(name)
        return super().create(key, content)

    def delete(self, key):
        folder, _, name = key.rpartition("/")
        self.folders.get(folder, set()).discard(name)
        super().delete(key)


class PoweredStore(MemoryStore):
    """A store that can lose its power: what was linked, and not synced since, goes with it; a
    ``create`` that answered stays."""

    def __init__(self):
        super().__init__()
        self.unsynced: list[str] = []
        self.losses = 0

    def link(self, key, content):
        """What a create does before its sync: everybody can read the key now."""
        answer = super().create(key, content)
        if isinstance(answer, Created):
            self.unsynced.append(key)
        return answer

    def sync(self, key):
        """Sync the key's folder, with all that is in it."""
        folder = key.rpartition("/")[0]
        synced = sorted(k for k in self.unsynced if k.rpartition("/")[0] == folder)
        self.unsynced = [k for k in self.unsynced if k not in synced]
        return synced

    def create(self, key, content):
        answer = self.link(key, content)
        self.sync(key)
        return answer

    def lose_power(self):
        for key in self.unsynced:
            self.contents.pop(key, None)
            self.ever.pop(key, None)
        self.unsynced = []
        self.losses += 1


class Wrapped:
    """Passes every operation on; subclasses look at it in ``around``."""

    def __init__(self, store):
        self.store = store

    def around(self, name: str, perform: Callable[[], object], *arguments):
        return perform()

    def read(self, key):
        return self.around("read", lambda: self.store.read(key), key)

    def list(self, folder):
        return self.around("list", lambda: self.store.list(folder), folder)

    def create(self, key, content):
        return self.around("create", lambda: self.store.create(key, content), key, content)

    def delete(self, key):
        return self.around("delete", lambda: self.store.delete(key), key)

    def describe(self, key):
        return self.store.describe(key)


class CountingStore(Wrapped):
    """Counts the operations by name."""

    def __init__(self, store):
        super().__init__(store)
        self.counts: Counter[str] = Counter()

    def around(self, name, perform, *arguments):
        self.counts[name] += 1
        return perform()

    def take(self) -> Counter[str]:
        counts, self.counts = self.counts, Counter()
        return counts


class LostAnswerError(Exception):
    """What a client library raises when the network is gone."""


class FlakyStore(Wrapped):
    """Creates fail as told: each of ``faults`` (``before``, ``after`` or None) is for one
    create; ``reads_fail`` is for all reads."""

    def __init__(self, store, faults=()):
        super().__init__(store)
        self.faults = deque(faults)
        self.reads_fail = False

    def around(self, name, perform, *arguments):
        if name != "create":
            if self.reads_fail:
                raise LostAnswerError("read: connection reset")
            return perform()
        fault = self.faults.popleft() if self.faults else None
        if fault == "before":
            raise LostAnswerError("create: connection reset")
        answer = perform()
        if fault == "after":
            raise LostAnswerError("create: connection reset")
        return answer


class Killed(BaseException):
    """Ends an actor's thread in the middle of a store operation, as kill -9 would."""


MOST_STEPS = 5000
"""Far more than a run of a test has; whoever takes them goes round in circles."""


class Actor(Wrapped):
    """Runs a function in a thread that does one store operation per ``step``, so that a test owns
    the schedule.

    Between steps the thread stands in front of its next operation. ``facing`` is its name. Only one
    thread ever runs, so a schedule can be replayed.
    """

    def __init__(self, store, name=""):
        super().__init__(store)
        self.name = name
        self.outcome: object = None
        self.running = False
        self.steps = 0
        self._mine = threading.Semaphore(0)
        self._yours = threading.Semaphore(0)
        self._fault: str | None = None
        self._killed = False
        self.facing: str | None = None
        self._arguments: tuple[object, ...] = ()
        self.late: list[Callable[[], object]] = []

    def start(self, function: Callable[[], object]) -> None:
        """Run the function up to its first store operation."""
        assert not self.running
        self.running, self.outcome = True, None

        def run():
            try:
                self.outcome = function()
            except Killed:
                self.outcome = "killed"
            except Exception as error:
                self.outcome = error
            self.running = False
            self._yours.release()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        self._yours.acquire()

    def step(self, fault: str | None = None) -> None:
        """Let it do the operation it stands in front of.

        Faults: ``before``, ``after``, ``late`` (it raises, and happens some day), ``visible`` (a
        create stands before its sync).
        """
        self.steps += 1
        assert self.steps < MOST_STEPS or self._killed, f"{self.name} goes on for ever"
        self._fault = fault
        self._mine.release()
        self._yours.acquire()

    def kill(self) -> None:
        if self.running:
            self._killed = True
            self.step()
            self._thread.join()

    def finish(self):
        while self.running:
            self.step()
        return self.outcome

    def about(self, key: str) -> bool:
        """Whether the operation it stands in front of is for this key."""
        return self._arguments[:1] == (key,)

    def _stand(self, name: str) -> str | None:
        self.facing = name
        self._yours.release()
        self._mine.acquire()
        if self._killed:
            raise Killed
        fault, self._fault = self._fault, None
        return fault

    def around(self, name, perform, *arguments):
        if not self.running:
            return perform()
        self._arguments = arguments
        fault = self._stand(name)
        if fault == "visible" and name == "create":
            answer, losses = self.store.link(*arguments), self.store.losses
            fault = self._stand("sync")
            if fault in {"before", "late"} or self.store.losses > losses:
                raise LostAnswerError(f"{name}: connection reset")
            self.store.sync(arguments[0])
            if fault == "after":
                raise LostAnswerError(f"{name}: connection reset")
            return answer
        if fault == "before":
            raise LostAnswerError(f"{name}: connection reset")
        if fault == "late":
            self.late.append(perform)
            raise LostAnswerError(f"{name}: timed out")
        if fault == "lag" and name == "list":
            return perform()[:-1]
        if fault == "empty" and name == "list":
            return []
        answer = perform()
        if fault == "after":
            raise LostAnswerError(f"{name}: connection reset")
        return answer


def race(root, numbers, barrier, answers):
    """What each of several processes does; here, and not in a test's module, so that a spawned
    one finds it by its name."""
    store = LocalStore(root)
    for number in numbers:
        barrier.wait()
        content = f"{os.getpid()}".encode() * 1000
        answer = store.create(f"chains/00000000/{number:08d}.json", content)
        answers.put(
            (
                number,
                content if isinstance(answer, Created) else None,
                getattr(answer, "content", content),
            )
        )
