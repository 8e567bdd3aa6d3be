"""A store with the guarantees of ``commit_log.store.Store`` and no others; its every call is an
operation of the schedule.

A call may raise with or without having happened, a create may happen long after it raised, a short
write may leave a temporary file behind, a listing may lag, a request may arrive twice (where the
log keeps its ends, as on an object store), and until a create returns, its entry is
there for readers and yet lost when the power fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from onceforall.commit_log import AlreadyExists, CommitLog, Created
from onceforall.commit_log.chains import Chains
from onceforall.commit_log.envelope import Envelope
from onceforall.commit_log.store import TooLate
from onceforall.protocol.entries import Entry, entry_from_body
from simulator.strands import Strand, point, running

if TYPE_CHECKING:
    from simulator.world import SimulatedWorld

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=timezone.utc)
RETRY_PAUSES_MS = (50,)
LONGEST_SYNC = 8
"""Of so many operations at the most is what a sync takes."""

_ENTRY = re.compile(r"chains/(\d+)/(\d+)\.json")


class LostAnswerError(Exception):
    """What a client library raises when the network is gone."""


class SimulatedStore:
    """The store that all drivers of a world share.

    Attributes:
        contents: what readers see.
        late: creates whose callers have given up, and which may happen yet.
        temporary: how many temporary files short writes have left.
        unsynced: the keys that readers see and a loss of power takes.
        losses: how often the power has gone.
        syncs_are_slow: whether each create stands before its sync, and not only at a whim.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.contents: dict[str, bytes] = {}
        self.temporary = 0
        self.late: list[tuple[str, bytes]] = []
        self._ever: set[str] = set()
        self.unsynced: dict[str, None] = {}
        self.losses = 0
        self.syncs_are_slow = False
        self._creators: dict[str, Strand | None] = {}

    def read(self, key: str) -> bytes | None:
        """Return the content, or None when the key does not exist."""
        point()
        if self.world.take("read") is not None:
            raise LostAnswerError(f"read {key}")
        return self.contents.get(key)

    def list(self, folder: str) -> list[str]:
        """Return the names directly in the folder, sorted; it may lag."""
        point()
        fault = self.world.take("listing")
        if fault == "before":
            raise LostAnswerError(f"list {folder}")
        prefix = folder + "/"
        names = [
            k[len(prefix) :]
            for k in self.contents
            if k.startswith(prefix) and "/" not in k[len(prefix) :]
        ]
        # In the order of their creation here: a lagging listing lacks the newest.
        return sorted(names[: len(names) // 2] if fault == "lag" else names)

    def create(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None = None
    ) -> Created | AlreadyExists | TooLate:
        """Create the key if it is absent: two operations, the second of which makes it durable."""
        point()
        if in_time is not None and key not in self.contents and not in_time():
            self.world.count("a decision is too late")
            return TooLate()
        match = _ENTRY.fullmatch(key)
        if in_time is not None and match and key not in self.contents:
            self.world.check_in_time(int(match[1]), int(match[2]), content)
        fault = self.world.take("create")
        if fault == "twice":
            # The network has a copy of the request, which arrives at any time.
            self.late.append((key, content))
            fault = None
        if fault in {None, "after", "again"}:
            answer = self._create(key, content)
            if self.syncs_are_slow or self.world.whims("stands before its sync"):
                self._stand_before_sync(key)
            self._sync(key)
            if fault == "again":
                # The first answer is lost, and somebody between repeats the request: its answer is
                # the one that the caller gets, after whatever time.
                point()
                answer, fault = self._create(key, content), None
            if fault is None:
                return answer
        elif fault == "late":
            self.late.append((key, content))
        elif fault == "short":
            self.temporary += 1
        raise LostAnswerError(f"create {key} ({fault})")

    def delete(self, key: str) -> None:
        """Delete the key if it is there."""
        point()
        fault = self.world.take("delete")
        if fault != "before":
            self.contents.pop(key, None)
        if fault is not None:
            raise LostAnswerError(f"delete {key} ({fault})")

    def describe(self, key: str) -> str:
        """Return how a person finds the key."""
        return key

    def clean_temporary_files(self) -> int:
        """Remove what short writes left."""
        point()
        removed, self.temporary = self.temporary, 0
        return removed

    def deliver_late(self, index: int) -> None:
        """Let a create happen whose caller has long given up."""
        key, content = self.late.pop(index)
        self._create(key, content)
        self._sync(key)

    def lose_power(self) -> int:
        """Lose what was never made durable; return how many entries."""
        for key in self.unsynced:
            self.contents.pop(key, None)
            self._ever.discard(key)
        lost = len(self.unsynced)
        self.unsynced.clear()
        self.losses += 1
        return lost

    def _stand_before_sync(self, key: str) -> None:
        """Readers see the key, and it is not durable yet: the process stands here for long."""
        losses = self.losses
        for _ in range(1 + self.world.choose(LONGEST_SYNC)):
            point()
        if self.losses > losses:
            raise LostAnswerError(f"create {key} (the store lost its power)")

    def _create(self, key: str, content: bytes) -> Created | AlreadyExists:
        if key in self.contents:
            standing = self._creators.get(key)
            caller = running()
            if (
                standing is not None
                and standing.running
                and caller is not None
                and standing.owner is not caller.owner
            ):
                self.world.count("conflicting create")
            return AlreadyExists(self.contents[key])
        self.contents[key] = content
        self._creators[key] = running()
        if key not in self._ever:
            self._ever.add(key)
            self.unsynced[key] = None
        return Created()

    def _sync(self, key: str) -> None:
        """Make everything in the key's folder durable, as the sync of a folder does."""
        folder = key.rpartition("/")[0] + "/"
        for unsynced in [k for k in self.unsynced if k.startswith(folder)]:
            del self.unsynced[unsynced]
            match = _ENTRY.fullmatch(unsynced)
            if match and unsynced in self.contents:
                self.world.appended(int(match[1]), int(match[2]), self.contents[unsynced])


class RememberingChains(Chains):
    """Chains that remember what the bytes of an entry mean: reading them anew each time is most
    of what a schedule would cost.
    """

    def __init__(self, store: SimulatedStore, known: dict[bytes, Envelope]) -> None:
        super().__init__(store)
        self._known = known

    def _envelope(self, content: bytes, where: str, generation: int, index: int | None) -> Envelope:
        envelope = self._known.get(content)
        if (
            envelope is None
            or envelope.generation != generation
            or index not in {None, envelope.index}
        ):
            envelope = self._known[content] = super()._envelope(content, where, generation, index)
        return envelope


class SimulatedLog(CommitLog):
    """The commit log over a simulated store.

    Where ``Options.real_bytes`` is off, an entry's content is only a name for it: JSON and
    checksums would take a third of a schedule's time, and they are tested by themselves.
    """

    def __init__(self, world: SimulatedWorld, sleep: Callable[[float], None]) -> None:
        super().__init__(
            world.store,
            retain_commits=1,
            drop_after=1,
            keep_ends=world.options.keep_ends,
            retry_pauses_ms=RETRY_PAUSES_MS,
            sleep=sleep,
            new_nonce=lambda: next(world.nonces),
            now=lambda: NOON,
        )
        self._chains = RememberingChains(world.store, world.envelopes)
        if self._floors.ends is not None:
            self._floors.ends = self._chains.ends
        # As soon as anything can be dropped, and a floor can go, it does.
        self._floors.keep_each = 2
        self._world = world

    def _encode(self, generation: int, index: int, entry: Entry) -> tuple[str, bytes]:
        if self._world.options.real_bytes:
            return super()._encode(generation, index, entry)
        nonce = self._new_nonce()
        content = f"{generation}/{index} {nonce}".encode()
        # As it would be read back.
        self._world.envelopes[content] = Envelope(
            entry_from_body(entry.kind, entry.body()), nonce, generation, index, ""
        )
        return nonce, content
