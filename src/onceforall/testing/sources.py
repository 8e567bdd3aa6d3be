"""A suite for sources: one call checks whether a Python data source's stream reader can be trusted
with exactly-once, which needs that a batch, once planned, has the same rows in every replay.

It needs no Spark. It does with readers what Spark does: plans batches, keeps nothing but offsets,
as JSON, pickles partitions, and throws readers away at every step::

    from onceforall.testing.sources import SourceUnderTest, check_source

    def test_my_source_replays(tmp_path):
        def new():                                  # an empty source for each case
            folder = Path(tempfile.mkdtemp(dir=tmp_path))
            return SourceUnderTest(
                make_reader=lambda: MySource({"path": str(folder)}).streamReader(SCHEMA),
                put=lambda numbers: write(folder, numbers),
                number=lambda row: row["n"],
            )

        report = check_source(new)
        assert not report.skipped

For the suite a row is a number. Readers must begin with the oldest record. What the suite can't
know it skips, and says so in its report: ``changes``, ``faults`` and ``secrets`` give it more to
do.

The reader's ``latestOffset`` takes Spark 4.2's arguments, ``start`` and ``limit``.
"""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader

__all__ = [
    "SourceFailure",
    "SourceReport",
    "SourceSuiteError",
    "SourceUnderTest",
    "check_source",
    "source_cases",
]

_REPLAYS = 10
_MOST_BATCHES = 1000


@dataclass(frozen=True)
class SourceUnderTest:
    """What the suite must be told of a source, new and empty.

    Attributes:
        make_reader: makes a reader of it, each time it is called, as a restarted program would. It
            begins with the oldest record, and limits its batches to a few records if it can.
        put: adds rows with these numbers.
        number: the number of a row: of a tuple, or of a dictionary where partitions yield Arrow
            batches.
        changes: by name, what may happen to the source without a loss, as a partition that is
            split; each may be called several times.
        faults: by name, what makes the next requests fail in a way that a reader must survive.
        secrets: values that must not appear in offsets, pickles and representations.
        in_order: the numbers that share ``key`` come in their order, over batches too.
        key: of a number: what it is kept in order by.
    """

    make_reader: Callable[[], DataSourceStreamReader]
    put: Callable[[Sequence[int]], object]
    number: Callable[[Any], int]
    changes: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    faults: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    secrets: Sequence[str] = field(default=(), repr=False)
    in_order: bool = False
    key: Callable[[int], object] = lambda _: None


@dataclass(frozen=True)
class SourceFailure:
    """A case that failed: its name, the rule, and what was seen instead."""

    case: str
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.case}: {self.rule}\n    {self.what}"


@dataclass(frozen=True)
class SourceReport:
    """What was run.

    Attributes:
        passed: the names of the cases that ran, in their order.
        skipped: the names of those that did not, each with the reason.
    """

    passed: tuple[str, ...]
    skipped: Mapping[str, str]


class SourceSuiteError(AssertionError):
    """The source can't be trusted; ``failures`` has every case that failed."""

    def __init__(self, message: str, failures: tuple[SourceFailure, ...] = ()) -> None:
        super().__init__(message)
        self.failures = failures


class _Skip(Exception):  # noqa: N818  no error
    """A case can't be run; the text says why."""


class _Mismatch(Exception):  # noqa: N818  told of as a failure
    """The source did something else; the text says what."""


Offset = dict[str, Any]


class _Query:
    """What a query has of a source: offsets, and a reader that may be replaced at any time."""

    def __init__(self, under: SourceUnderTest) -> None:
        self.log: list[Offset] = []
        self.under, self.written = under, 0
        self.reader = under.make_reader()

    def put(self, count: int) -> list[int]:
        """Put so many rows with the next numbers."""
        numbers = list(range(self.written, self.written + count))
        self.under.put(numbers)
        self.written += count
        return numbers

    def restart(self) -> _Query:
        """Leave nothing but the offsets."""
        self.reader.stop()
        self.reader = self.under.make_reader()
        return self

    def initial(self) -> Offset:
        """Return where the first batch begins, as Spark asks for it at each replay of it."""
        return _through_json(self.reader.initialOffset(), "initialOffset")

    @property
    def start(self) -> Offset:
        """Return where the next batch begins."""
        return self.log[-1] if self.log else self.initial()

    def end(self, start: Offset) -> Offset:
        """Return where the next batch ends."""
        from pyspark.sql.streaming import datasource

        reader: Any = self.reader
        limit = reader.getDefaultReadLimit()
        assert isinstance(limit, datasource.ReadLimit)
        return _through_json(reader.latestOffset(start, limit), "latestOffset")

    def plan(self) -> bool:
        """Plan a batch, and tell whether there is one."""
        start = self.start
        end = self.end(start)
        if end == start:
            return False
        self.log.append(end)
        if len(self.log) > _MOST_BATCHES:
            raise _Mismatch(f"There is no end: {_MOST_BATCHES} batches were planned.")
        return True

    def parts(self, batch: int = -1) -> list[list[Any]]:
        """Return what each partition of a batch yields."""
        batch %= len(self.log)
        start = self.log[batch - 1] if batch else self.initial()
        parts = self.reader.partitions(start, self.log[batch])
        reader = pickle.loads(_pickled(self.reader))  # noqa: S301  made here
        return [list(reader.read(pickle.loads(pickle.dumps(part)))) for part in parts]  # noqa: S301

    def numbers(self, batch: int = -1) -> list[int]:
        """Return the numbers of a batch."""
        return [
            self.under.number(row)
            for part in self.parts(batch)
            for each in part
            for row in _rows(each)
        ]

    def drain(self) -> list[int]:
        """Plan and read until nothing comes."""
        found: list[int] = []
        while self.plan():
            found += self.numbers()
        return found

    def everything(self) -> list[int]:
        """Read all planned batches again."""
        return [n for batch in range(len(self.log)) for n in self.numbers(batch)]

    def expect(self, found: Iterable[int], numbers: Iterable[int], what: str) -> None:
        """Compare, and say what is missing and what is too many."""
        missing = Counter(numbers) - Counter(found := list(found))
        more = Counter(found) - Counter(numbers)
        if missing or more:
            raise _Mismatch(
                f"{what}: missing are {_few(missing)}; too many are {_few(more)}; of "
                f"{len(list(numbers))} in all."
            )
        if self.under.in_order:
            by_key: dict[object, list[int]] = {}
            for number in found:
                by_key.setdefault(self.under.key(number), []).append(number)
            for key, values in by_key.items():
                if values != sorted(values):
                    raise _Mismatch(f"{what}: the rows of {key!r} came as {values[:20]}.")


def _pickled(reader: object) -> bytes:
    """Return a reader as Spark sends it to tasks: also one of a class that only this program
    has.
    """
    from pyspark import cloudpickle

    made: bytes = cloudpickle.dumps(reader)  # type: ignore[no-untyped-call]
    return made


def _few(counted: Counter[int]) -> str:
    return f"{sorted(counted.elements())[:10]}" if counted else "none"


def _rows(yielded: Any) -> list[Any]:
    """Return the rows of what a partition yielded: a tuple, or an Arrow batch."""
    return yielded.to_pylist() if hasattr(yielded, "to_pylist") else [yielded]


def _through_json(offset: Any, what: str) -> Offset:
    try:
        found = json.loads(json.dumps(offset))
    except (TypeError, ValueError) as error:
        raise _Mismatch(f"{what} returned what JSON can't hold: {error}") from None
    if not isinstance(found, dict):
        raise _Mismatch(f"{what} returned a {type(offset).__name__}, and Spark needs a dictionary.")
    return found


def _as_bytes(parts: list[list[Any]]) -> list[bytes]:
    """Return what partitions yielded, byte by byte."""
    import pyarrow as pa

    found = []
    for part in parts:
        if part and isinstance(part[0], pa.RecordBatch):
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, part[0].schema) as writer:
                for each in part:
                    writer.write_batch(each)
            found.append(out.getvalue().to_pybytes())
        else:
            found.append(pickle.dumps(part))
    return found


CaseFunction = Callable[[_Query], None]
_CASES: dict[str, CaseFunction] = {}


def _case(function: CaseFunction) -> CaseFunction:
    _CASES[function.__name__] = function
    return function


@_case
def every_row_comes_once(query: _Query) -> None:
    """Whatever is put before and between batches comes once."""
    found: list[int] = []
    for count in (7, 1, 12):
        query.put(count)
        found += query.drain()
    query.expect(found, range(20), "The batches")


@_case
def without_news_there_is_no_batch(query: _Query) -> None:
    """A start that has everything is its own end, and a batch between equal offsets is empty."""
    query.put(5)
    query.drain()
    start = query.start
    for _ in range(2):
        if (end := query.end(start)) != start:
            raise _Mismatch(f"From {start}, without news, the end is {end}.")
        if parts := query.reader.partitions(start, start):
            raise _Mismatch(f"From {start} to itself there are {len(parts)} partitions.")
        query.restart()


@_case
def replays_are_equal(query: _Query) -> None:
    """A planned batch has the same rows in the same partitions, byte by byte, in each of ten
    replays, by new readers, while more is put and the source changes.
    """
    query.put(30)
    while query.plan():
        pass
    first = [_as_bytes(query.parts(batch)) for batch in range(len(query.log))]
    if not any(first):
        raise _Mismatch("No batch has a row.")
    nothing: Callable[[], object] = dict
    changes = itertools.cycle([*query.under.changes.values(), nothing])
    for replay in range(_REPLAYS):
        query.restart()
        for batch, seen in enumerate(first):
            if _as_bytes(query.parts(batch)) != seen:
                raise _Mismatch(f"Replay {replay + 1} of batch {batch} differs from the first.")
        query.put(3)
        next(changes)()


@_case
def the_first_batch_is_fixed(query: _Query) -> None:
    """The first batch is the same when its beginning is asked for again after a restart: Spark
    doesn't store it.
    """
    query.put(6)
    if not query.plan():
        raise _Mismatch("There are rows, and no batch was planned.")
    first = query.numbers()
    for _ in range(2):
        query.put(4)
        query.restart()
        query.expect(query.numbers(0), first, "A replay of the first batch")
    found = query.everything() + query.drain()
    query.expect(found, range(query.written), "All batches together")


@_case
def restarts_skip_and_repeat_nothing(query: _Query) -> None:
    """A restart before planning, between planning and reading, and after reading skips and repeats
    nothing.
    """
    found: list[int] = []
    for _ in range(3):
        query.put(8)
        while query.restart().plan():
            found += query.restart().numbers()
            query.restart()
    query.expect(found, range(24), "The batches")


@_case
def an_end_that_was_never_stored_is_forgotten(query: _Query) -> None:
    """An end that Spark was told and that a crash kept from being stored has no effect."""
    query.put(8)
    if query.plan():
        query.numbers()
    for _ in range(3):
        query.put(4)
        query.end(query.start)
        query.restart()
        query.end(query.start)
        query.end(query.start)
    found = query.everything() + query.drain()
    query.expect(found, range(20), "The batches")


@_case
def a_task_that_fails_is_repeated(query: _Query) -> None:
    """A partition that was read halfway is read again from its start."""
    query.put(12)
    found: list[int] = []
    while query.plan():
        start = query.log[-2] if len(query.log) > 1 else query.initial()
        for part in query.reader.partitions(start, query.log[-1]):
            next(iter(query.reader.read(part)), None)
        found += query.numbers()
    query.expect(found, range(12), "The batches")


@_case
def changes_lose_nothing(query: _Query) -> None:
    """What happens to the source while the query runs, and while it is stopped, loses and repeats
    nothing.
    """
    if not query.under.changes:
        raise _Skip("no 'changes' were given")
    found: list[int] = []
    for change, stopped in itertools.product(query.under.changes.values(), (False, True)):
        query.put(6)
        if not stopped:
            query.plan()
            found += query.numbers() if query.log else []
        change()
        query.put(6)
        if stopped:
            change()
            query.put(6)
            query.restart()
        found += query.drain()
    query.expect(found, range(query.written), "The batches")
    query.restart()
    query.expect(query.everything(), range(query.written), "A replay of all batches")


@_case
def faults_lose_nothing(query: _Query) -> None:
    """A fault while a batch is planned or read loses and repeats nothing."""
    if not query.under.faults:
        raise _Skip("no 'faults' were given")
    found: list[int] = []
    for fault in query.under.faults.values():
        query.put(8)
        fault()
        while query.plan():
            fault()
            found += query.numbers()
            fault()
        query.restart()
    query.expect(found, range(query.written), "The batches")


@_case
def available_now_ends(query: _Query) -> None:
    """A query with ``availableNow`` reads what was there when it began, and ends."""
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    if not isinstance(query.reader, SupportsTriggerAvailableNow):
        raise _Skip("the reader isn't a SupportsTriggerAvailableNow")
    query.put(10)
    _prepare(query)
    found = query.drain()
    if not set(range(10)) <= set(found):
        query.expect(found, range(10), "The batches")
    query.put(5)
    _prepare(query.restart())
    query.expect(found + query.drain(), range(15), "The batches of two runs")


def _prepare(query: _Query) -> None:
    reader: Any = query.reader
    reader.prepareForTriggerAvailableNow()


@_case
def no_secret_is_shown(query: _Query) -> None:
    """No secret is in an offset, a pickle or a representation."""
    if not query.under.secrets:
        raise _Skip("no 'secrets' were given")
    query.put(4)
    query.plan()
    parts = query.reader.partitions(query.initial(), query.log[0])
    shown = [_pickled(query.reader), *(pickle.dumps(part) for part in parts)]
    shown += [f"{each!r}".encode() for each in (query.reader, *parts)]
    shown.append(json.dumps(query.log).encode())
    for text, secret in itertools.product(shown, query.under.secrets):
        if secret.encode() in text:
            raise _Mismatch("A secret is in an offset, a pickle or a representation.")


def source_cases() -> tuple[str, ...]:
    """Return the names of the cases."""
    return tuple(_CASES)


def check_source(
    new: Callable[[], SourceUnderTest], *, only: Collection[str] | None = None
) -> SourceReport:
    """Run every case on a source.

    Args:
        new: makes an empty source for a case.
        only: the names of the cases to run; None: all.

    Returns:
        What was run, and what was skipped.

    Raises:
        SourceSuiteError: at least one case failed; it tells of each what was expected and seen.
        ValueError: ``only`` has a name that is no case.
    """
    if unknown := sorted(set(only or ()) - set(_CASES)):
        raise ValueError(f"No such cases: {', '.join(unknown)}. There are: {', '.join(_CASES)}.")
    passed: list[str] = []
    skipped: dict[str, str] = {}
    failures: list[SourceFailure] = []
    for name, function in _CASES.items():
        if only is not None and name not in only:
            continue
        rule = " ".join((function.__doc__ or "").split())
        query = _Query(new())
        try:
            function(query)
        except _Skip as reason:
            skipped[name] = str(reason)
        except Exception as error:  # noqa: BLE001  whatever the reader raises is its failure
            what = (
                str(error) if isinstance(error, _Mismatch) else f"{type(error).__name__}: {error}"
            )
            failures.append(SourceFailure(name, rule, what))
        else:
            passed.append(name)
        finally:
            query.reader.stop()
    if failures:
        listing = "\n".join(f"- {failure}" for failure in failures)
        raise SourceSuiteError(
            f"The source fails {len(failures)} of {len(failures) + len(passed)} cases.\n{listing}",
            tuple(failures),
        )
    return SourceReport(tuple(passed), skipped)
