"""What one driver of the exhaustive search sees of the world: a store and sinks that answer from a
record, or stop it.

Every call becomes a request; see ``exhaustive_driver`` for what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from onceforall.commit_log import AlreadyExists, Created
from onceforall.commit_log.store import Store
from onceforall.errors import SinkUnavailableError
from onceforall.protocol.entries import Committable
from onceforall.protocol.history import CommitPermit
from onceforall.sink import CommitReport, LostTransaction, Sweep
from simulator.drivers_half import DriversHalf
from simulator.exhaustive_world import NO_ANSWER, Entries, Violation, key_from_name, name_of

Request = tuple[Any, ...]
Answer = Any
QUERY = "query"
"""The query's id, everywhere."""


class Pending(BaseException):
    """Stops the code under test in front of a request that has no answer yet."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.request = request


class LostAnswerError(Exception):
    """What a client library raises when the network is gone."""


class Replay:
    """Answers requests from a record, and stops at the first one that is not in it."""

    def __init__(self) -> None:
        self.record: tuple[tuple[Request, Answer], ...] = ()
        self._next = 0

    def load(self, record: tuple[tuple[Request, Answer], ...]) -> None:
        """Begin anew, with this record."""
        self.record, self._next = record, 0

    def ask(self, *request: Any) -> Answer:
        """Return the recorded answer, or raise ``Pending``."""
        if self._next == len(self.record):
            raise Pending(request)
        asked, answer = self.record[self._next]
        if asked != request:
            raise Violation(
                f"the code under test is not deterministic: it asked {asked}, and now {request}"
            )
        self._next += 1
        return answer


class ReplayedStore(Store):
    """The store as one driver sees it."""

    def __init__(self, replay: Replay, entries: Entries) -> None:
        self._replay, self._entries = replay, entries

    def read(self, key: str) -> bytes | None:
        """A read; nobody cleans in these worlds, so neither a cleaner's mark nor a floor is ever
        there.
        """
        if key.endswith("/sealed.json") or key.startswith("floors/"):
            return None
        number = self._replay.ask("read", *_place(key))
        return self._entries.anothers[number - 1] if number else None

    def list(self, folder: str) -> list[str]:
        """A listing of a chain, which has no gaps."""
        return [f"{index:08d}.json" for index in range(self._replay.ask("list", int(folder[-8:])))]

    def create(self, key: str, content: bytes, in_time: object = None) -> Created | AlreadyExists:  # noqa: ARG002
        """A create; the answer says whether what stands there is the driver's own."""
        place = _place(key)
        answer = self._replay.ask("create", *place, self._entries.number(content, *place))
        if answer == NO_ANSWER:
            raise LostAnswerError(key)
        if answer == -1:
            return Created()
        return AlreadyExists(
            (self._entries.mine if answer % 2 else self._entries.anothers)[answer // 2]
        )

    def delete(self, key: str) -> None:
        """Nothing is deleted: nobody cleans."""
        raise Violation(f"{key} is deleted")

    def describe(self, key: str) -> str:
        """Return the key."""
        return key


def _place(key: str) -> tuple[int, int]:
    return int(key[7:15]), int(key[16:24])


class ReplayedSink(DriversHalf):
    """The driver's side of one participant; the same rules as the random simulator's sink."""

    def __init__(self, replay: Replay, participant: int) -> None:
        self._replay, self._participant = replay, participant
        self.doubtful: set[int] = set()
        self.burnt: set[int] = set()

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """EndTxn for each; where that is refused, the system's records tell what became of the
        transaction.
        """
        found: dict[str, list[Any]] = {"completed": [], "retired": [], "lost": [], "in_doubt": []}
        for committable in committables:
            key, epoch = key_from_name(committable["name"]), int(committable["epoch"])
            refused = self._request("end", key, epoch, (permit.generation, permit.index))
            if refused:
                outcome = self._replay.ask("outcome", key, epoch, int(committable["of"]))
                reason = ("", "PRODUCER_FENCED", "INVALID_TXN_STATE")[refused]
                where = ("retired", "lost", "in_doubt")[outcome]
                found[where].append(
                    LostTransaction(committable, reason) if outcome else committable
                )
            else:
                found["retired" if key in self.doubtful else "completed"].append(committable)
        return CommitReport(**{where: tuple(each) for where, each in found.items()})

    def abort(self, committables: Sequence[Committable]) -> None:
        """Fence each."""
        for committable in committables:
            self._request("fence", key_from_name(committable["name"]), "an abort")

    def retire(self, committables: Sequence[Committable]) -> None:
        """Fence each; what it was in doubt for is over."""
        for committable in committables:
            key = key_from_name(committable["name"])
            self._request("fence", key, "a retirement")
            self.doubtful.discard(key)

    def recover(self, sweep: Sweep) -> int:
        """Fence what the sweep covers of all that is open in the one system behind all
        participants.
        """
        opened = self._replay.ask("opened")
        covered = [
            key
            for key in opened
            if sweep.covers(QUERY, f"s{key // 8 % 8}", key // 64, name_of(key))
        ]
        for key in covered:
            self._request("fence", key, "a sweep")
        return len(covered)

    def _request(self, kind: str, key: int, *more: Any) -> int:
        answer = self._replay.ask(kind, key, *more)
        if answer == NO_ANSWER:
            # A request without an answer may come twice, or later: the id's epoch is not shared
            # with a next transaction.
            (self.doubtful if kind == "end" else self.burnt).add(key)
            raise SinkUnavailableError(f"{name_of(key)}: no answer to {kind}")
        return int(answer)


class Inline:
    """An executor without threads: the search is the only order."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run it at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:  # noqa: BLE001  as an executor does
            future.set_exception(error)
        return future
