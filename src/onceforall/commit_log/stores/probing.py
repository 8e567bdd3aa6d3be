"""Tests a store before it is trusted: whether it keeps what ``Store`` guarantees.

Each start makes the small test (``probe``): two creators at once and one winner, an overwrite that
is refused, and a read of what was created. ``check`` makes the full one, for people
(``onceforall store check``).

No test proves a guarantee. It finds the stores that don't try: those that ignore ``If-None-Match``,
and gateways that answer "created" to both of two creators. The model is Elasticsearch's repository
analysis (https://www.elastic.co/docs/api/doc/elasticsearch/operation/operation-snapshot-repository-analyze).
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from onceforall.commit_log.creating import Creator
from onceforall.commit_log.store import AlreadyExists, Created, Store
from onceforall.errors import CommitLogError, UnsupportedQueryError

__all__ = ["Check", "Verdict", "check", "is_one_place", "probe"]

FOLDER = "probe"


@dataclass(frozen=True)
class Verdict:
    """What was found of one guarantee.

    Attributes:
        guarantee: in words.
        kept: whether nothing was found against it.
        found: what was seen.
    """

    guarantee: str
    kept: bool
    found: str


@dataclass(frozen=True)
class Check:
    """What the full test found.

    Attributes:
        where: the store.
        verdicts: one per guarantee.
        latency_ms: by operation, its percentiles by name (``p50``, ``p95``, ``p99``, ``max``).
    """

    where: str
    verdicts: tuple[Verdict, ...]
    latency_ms: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        """Whether nothing was found against any guarantee."""
        return all(verdict.kept for verdict in self.verdicts)


def probe(store: Store) -> None:
    """Make the small test, with about eight requests, and leave nothing behind.

    Raises:
        UnsupportedQueryError: the store doesn't create exclusively; the message says how that was
            seen.
        CommitLogError: the store doesn't answer, or refuses; the message says why.
    """
    key = f"{FOLDER}/{secrets.token_hex(16)}"
    contents = [f"{key} {number}".encode() for number in range(3)]
    try:
        with ThreadPoolExecutor(2, thread_name_prefix="onceforall-probe") as threads:
            answers = list(threads.map(lambda c: _create(store, key, c), contents[:2]))
        answers.append(_create(store, key, contents[2]))
        why = _why_not(answers, contents, store.read(key))
    finally:
        _forget(store, [key])
    if why is not None:
        raise UnsupportedQueryError(
            f"{store.describe('')} can't hold a commit log: {why}. It seems to ignore "
            "If-None-Match, without which two runs of a query could both decide. Use a store that "
            "creates conditionally (Amazon S3, GCS, Azure, MinIO, versitygw, HDFS), or put the log "
            "on one with onceforall.commitLog. 'onceforall store check' shows what a store keeps."
        )


def is_one_place(one: Store, other: Store) -> bool:
    """Tell whether two stores are one place under two names: whether the other one has what is
    written in this. Nothing is left behind.

    Raises:
        CommitLogError: a store doesn't answer, or refuses.
    """
    # No folder of its own, which a local store would keep.
    key = f"onceforall.{secrets.token_hex(16)}"
    try:
        _create(one, key, key.encode())
        return other.read(key) is not None
    finally:
        _forget(one, [key])


def _why_not(
    answers: Sequence[Created | AlreadyExists], contents: Sequence[bytes], standing: bytes | None
) -> str | None:
    """Return what is against a store by which several contents were created in one place."""
    winners = [
        content
        for answer, content in zip(answers, contents, strict=True)
        # An own create whose answer was lost is seen as what stands there.
        if isinstance(answer, Created) or answer.content == content
    ]
    if len(winners) > 1:
        return f"{len(winners)} creators of one key were all told that they had made it"
    if standing is None:
        return "what was created can't be read"
    if not winners or standing != winners[0]:
        return "what is read is not what the one winner created"
    seen = {answer.content for answer in answers if isinstance(answer, AlreadyExists)}
    if seen - {standing}:
        return "a loser was shown another content than the winner's"
    return None


def _create(store: Store, key: str, content: bytes) -> Created | AlreadyExists:
    """Create until there is an answer, as the log does."""
    ask = Creator(store, (50, 200, 800), time.sleep)
    standing, repeated = ask(key, content)
    return Created() if standing == content and not repeated else AlreadyExists(standing)


def _forget(store: Store, keys: Sequence[str]) -> None:
    # What the test leaves is ignored by all others; its own error is the one to tell.
    with contextlib.suppress(CommitLogError):
        for key in keys:
            store.delete(key)


def check(open_store: Callable[[], Store], *, creators: int = 20, rounds: int = 100) -> Check:
    """Make the full test.

    Args:
        open_store: opens the store; called once per creator, so that each has connections of its
            own.
        creators: how many create one key at once.
        rounds: how many keys they do that with.

    Raises:
        CommitLogError: the store doesn't answer, or refuses.
    """
    store = open_store()
    prefix = f"{FOLDER}/{secrets.token_hex(8)}"
    keys: list[str] = []
    times: dict[str, list[float]] = {"create": [], "lose a create": [], "read": [], "list": []}
    try:
        verdicts = [
            *_one_winner(open_store, prefix, keys, times, creators=creators, rounds=rounds),
            _not_overwritten(store, keys),
            _read_after_write(store, prefix, keys, times, rounds=rounds),
            _repeated(store, prefix, keys, rounds=min(rounds, 20)),
            _deleted(store, prefix, keys),
            _listed(store, prefix, keys, times),
        ]
    finally:
        _forget(store, keys)
    latency = {name: _percentiles(each) for name, each in times.items() if each}
    return Check(store.describe(""), tuple(verdicts), latency)


def _one_winner(
    open_store: Callable[[], Store],
    prefix: str,
    keys: list[str],
    times: dict[str, list[float]],
    *,
    creators: int,
    rounds: int,
) -> Iterator[Verdict]:
    stores = [open_store() for _ in range(creators)]
    against: list[str] = []
    with ThreadPoolExecutor(creators, thread_name_prefix="onceforall-check") as threads:
        for each in range(rounds):
            key = f"{prefix}/{each:05d}"
            keys.append(key)
            contents = [f"{key} {number}".encode() for number in range(creators)]

            def create(
                number: int, key: str = key, contents: list[bytes] = contents
            ) -> Created | AlreadyExists:
                started = time.perf_counter()
                answer = _create(stores[number], key, contents[number])
                name = "create" if isinstance(answer, Created) else "lose a create"
                times[name].append((time.perf_counter() - started) * 1000)
                return answer

            answers = list(threads.map(create, range(creators)))
            why = _why_not(answers, contents, stores[0].read(key))
            if why is not None:
                against.append(f"{key}: {why}")
    yield Verdict(
        "of several creators of one key, one wins",
        not against,
        f"{len(against)} of {rounds} keys with {creators} creators each went wrong: {against[0]}"
        if against
        else f"{rounds} keys, {creators} creators each: one winner each, and all saw its content",
    )


def _not_overwritten(store: Store, keys: Sequence[str]) -> Verdict:
    wrong = 0
    for key in keys:
        before = store.read(key)
        answer = _create(store, key, b"another content")
        wrong += isinstance(answer, Created) or store.read(key) != before
    return Verdict(
        "what exists is never overwritten",
        not wrong,
        f"{wrong} of {len(keys)} keys were overwritten"
        if wrong
        else f"{len(keys)} later creates were refused",
    )


def _read_after_write(
    store: Store, prefix: str, keys: list[str], times: dict[str, list[float]], *, rounds: int
) -> Verdict:
    wrong = 0
    for each in range(rounds):
        key = f"{prefix}/read-{each:05d}"
        # Whoever looks first may be shown "absent" from a cache afterwards.
        absent = store.read(key)
        keys.append(key)
        content = secrets.token_bytes(200)
        _create(store, key, content)
        started = time.perf_counter()
        found = store.read(key)
        times["read"].append((time.perf_counter() - started) * 1000)
        wrong += absent is not None or found != content
    return Verdict(
        "what was created is read at once, also where its absence was read before",
        not wrong,
        f"{wrong} of {rounds} reads were stale" if wrong else f"{rounds} reads, none stale",
    )


def _repeated(store: Store, prefix: str, keys: list[str], *, rounds: int) -> Verdict:
    wrong = 0
    for each in range(rounds):
        key, content = f"{prefix}/again-{each:05d}", secrets.token_bytes(200)
        keys.append(key)
        _create(store, key, content)
        answer = _create(store, key, content)
        wrong += not isinstance(answer, AlreadyExists) or answer.content != content
    return Verdict(
        "a create that is repeated finds its own content",
        not wrong,
        f"{wrong} of {rounds} didn't" if wrong else f"{rounds} repeated creates found it",
    )


def _deleted(store: Store, prefix: str, keys: list[str]) -> Verdict:
    key = f"{prefix}/deleted"
    keys.append(key)
    _create(store, key, b"first")
    store.delete(key)
    gone = store.read(key) is None
    again = isinstance(_create(store, key, b"second"), Created)
    store.delete(key)
    store.delete(key)
    return Verdict(
        "what is deleted is gone, and a second deletion is fine",
        gone and again,
        "a deleted key can be created again"
        if gone and again
        else "a deleted key is still there (is the bucket versioned, or under an object lock?)",
    )


def _listed(
    store: Store, prefix: str, keys: Sequence[str], times: dict[str, list[float]]
) -> Verdict:
    """Look whether a listing shows everything; the log never relies on that."""
    there = {key for key in keys if store.read(key) is not None}
    started = time.perf_counter()
    found = {f"{prefix}/{name}" for name in store.list(prefix)}
    times["list"].append((time.perf_counter() - started) * 1000)
    missing = len(there - found)
    return Verdict(
        "a listing can be asked for (it may lag)",
        kept=True,
        found=f"{len(found)} names, {missing} missing" if missing else f"{len(found)} names, all",
    )


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    if len(ordered) < 2:
        return {"p50": round(ordered[0], 1), "max": round(ordered[0], 1)}
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    return {
        "p50": round(cuts[49], 1),
        "p95": round(cuts[94], 1),
        "p99": round(cuts[98], 1),
        "max": round(ordered[-1], 1),
    }
