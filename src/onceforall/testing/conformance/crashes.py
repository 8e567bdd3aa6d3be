"""The cases of the conformance suite in which processes are killed, or frozen while others go
on.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from onceforall.protocol.entries import Committable
from onceforall.testing.conformance.driver import Driver, Task, names
from onceforall.testing.conformance.process import CallError
from onceforall.testing.conformance.world import Case, CaseFunction, SkipCase, register

CASES: dict[str, CaseFunction] = {}
_case = register(CASES)


# --- killed between two calls ---------------------------------------------------------------------


def _undecided_after(case: Case, last: str) -> None:
    driver, rows = case.driver(), case.numbers()
    task = driver.begin()
    if last in {"invoke", "pre_commit", "confirm"}:
        task.invoke(rows)
    committable = task.pre_commit() if last in {"pre_commit", "confirm"} else None
    if last == "confirm" and committable is not None:
        driver.confirm(committable)
    driver.kill()
    case.visible()
    successor = case.driver(generation=2)
    case.swept(successor)
    case.visible()
    found = successor.recover()
    case.expect(found == 0, f"recover returned {found} when nothing was left.")
    successor.commit(*successor.confirm(successor.prepared(rows)))
    case.visible(rows)


@_case
def killed_after_begin(case: Case) -> None:
    """A process that is killed after ``begin_transaction`` leaves nothing that the next
    generation doesn't remove.
    """
    _undecided_after(case, "begin")


@_case
def killed_after_invoke(case: Case) -> None:
    """The same after ``invoke``; none of its rows is ever seen."""
    _undecided_after(case, "invoke")


@_case
def killed_after_pre_commit(case: Case) -> None:
    """The same after ``pre_commit``, when nobody has decided."""
    _undecided_after(case, "pre_commit")


@_case
def killed_after_confirm(case: Case) -> None:
    """The same after ``confirm``, when nobody has decided."""
    _undecided_after(case, "confirm")


@_case
def killed_after_commit(case: Case) -> None:
    """A driver that is killed after ``commit``, before DONE: the next one commits the same
    again, and sweeps.
    """
    first, rows = case.driver(), case.numbers()
    decided = first.confirm(first.prepared(rows))
    first.commit_only(*decided)
    first.kill()
    case.visible(rows)
    second = case.driver(generation=2)
    second.commit(*decided)
    second.recover(spared=names(*decided))
    case.swept(second)
    case.visible(rows)


# --- killed within a call -------------------------------------------------------------------------


def asked_for(case: Case) -> None:
    """Skip a case that kills within calls, where nobody wants that."""
    if case.under.crash_points == 0:
        raise SkipCase("crash_points=0: processes are killed between calls only")


def crash_lines(case: Case, total: int, method: str) -> Iterator[int]:
    """Yield before which of a method's lines a process is to be killed, and look at the end
    whether any was.

    Raises:
        SkipCase: there is no line.
        Mismatch: no process came to its line.
    """
    if total == 0:
        raise SkipCase(
            f"no line of the sink's own code was seen to run in {method}: there is none, or "
            "it runs on a thread that was there before"
        )
    points = case.under.crash_points
    if total <= points:
        yield from range(1, total + 1)
    else:
        yield from (1 + (total - 1) * (2 * i + 1) // (2 * points) for i in range(points))
    case.expect(
        case.kills,
        f"At first {total} lines of the sink's own code ran in {method}; when a process was to be "
        "killed before one of them, none came to it, so nothing was tested.",
    )


@_case
def killed_while_writing(case: Case) -> None:
    """A task that is killed anywhere in ``invoke`` or ``pre_commit`` shows nothing, and leaves
    nothing once it is swept.
    """
    asked_for(case)
    driver, rows = case.driver(), case.numbers()
    trial = driver.begin()
    total = driver.lines("write", transaction=trial.number, numbers=rows)
    for line in crash_lines(case, total, "invoke and pre_commit"):
        process = case.driver()
        task = process.begin(slot=line)
        process.crashes_in("write", line, transaction=task.number, numbers=rows)
        process.kill()
        case.visible()
    driver.kill()
    case.swept(case.driver(generation=2))
    case.visible()


def _prepared_pair(
    case: Case, driver: Driver, batch: int
) -> tuple[list[int], tuple[Committable, ...]]:
    rows = case.numbers(4)
    return rows, tuple(
        driver.prepared(rows[i::2], batch=batch, partition=i, slot=i) for i in range(2)
    )


def _cut_short(
    case: Case, method: str, arguments: Callable[[Driver, int], dict[str, Any]]
) -> Iterator[tuple[int, dict[str, Any], Driver]]:
    """Kill a driver within a method, once per crash point; yield the batch, the arguments, and the
    driver that comes after.

    The first time the method is not cut at all: that counts the lines.
    """
    asked_for(case)
    generation, batch = 1, 1
    driver = case.driver(generation=generation)
    given = arguments(driver, batch)
    total = driver.lines(method, **given)
    driver.kill()
    for line in itertools.chain([0], crash_lines(case, total, method)):
        if line:
            driver = case.driver(generation=generation)
            given = arguments(driver, batch)
            driver.crashes_in(method, line, **given)
            driver.kill()
        generation, batch = generation + 1, batch + 1
        yield batch - 1, given, case.driver(generation=generation)


@_case
def killed_while_confirming(case: Case) -> None:
    """A driver that is killed anywhere in ``confirm`` has decided nothing."""

    def arguments(driver: Driver, batch: int) -> dict[str, Any]:
        return {"committables": _prepared_pair(case, driver, batch)[1]}

    for _, _, successor in _cut_short(case, "confirm", arguments):
        case.visible()
        case.swept(successor)
    case.visible()


@_case
def killed_while_committing(case: Case) -> None:
    """A driver that is killed anywhere in ``commit``: the next one commits the same, and each
    row is there once.
    """
    seen: list[list[int]] = []

    def arguments(driver: Driver, batch: int) -> dict[str, Any]:
        rows, prepared = _prepared_pair(case, driver, batch)
        seen.append(rows)
        return {
            "committables": driver.confirm(*prepared),
            "generation": driver.generation,
            "batch": batch,
        }

    for batch, given, successor in _cut_short(case, "commit", arguments):
        decided = given["committables"]
        successor.commit(*decided, batch=batch)
        successor.recover(spared=names(*decided))
        case.swept(successor)
        case.visible(*seen)


@_case
def killed_while_aborting(case: Case) -> None:
    """A driver that is killed anywhere in ``abort``: the next one's sweep removes the rest."""

    def arguments(driver: Driver, batch: int) -> dict[str, Any]:
        return {"committables": _prepared_pair(case, driver, batch)[1]}

    for _, given, successor in _cut_short(case, "abort", arguments):
        successor.abort(*given["committables"])
        case.swept(successor)
    case.visible()


@_case
def killed_while_recovering(case: Case) -> None:
    """A driver that is killed anywhere in ``recover``: the next one finishes it, and what is
    spared stays.
    """
    seen: list[list[int]] = []

    def arguments(driver: Driver, batch: int) -> dict[str, Any]:
        predecessor = case.driver(generation=driver.generation - 1)
        _prepared_pair(case, predecessor, batch)
        rows = case.numbers(2)
        seen.append(rows)
        decided = predecessor.confirm(predecessor.prepared(rows, batch=batch, partition=2, slot=2))
        predecessor.kill()
        given[batch] = decided
        return {"sweep": driver.sweep(spared=names(*decided))}

    given: dict[int, tuple[Committable, ...]] = {}
    for batch, _, successor in _cut_short(case, "recover", arguments):
        successor.recover(spared=names(*given[batch]))
        successor.commit(*given[batch], batch=batch)
        case.swept(successor)
        case.visible(*seen)


# --- frozen, and awake again ----------------------------------------------------------------------


@_case
def frozen_driver_of_an_undecided_batch(case: Case) -> None:
    """A driver is frozen right before its decision: the next one sweeps and writes, and waits
    for no lock of the frozen one.
    """
    frozen, rows = case.driver(), case.numbers()
    committables = frozen.confirm(frozen.prepared(rows))
    frozen.freeze()
    successor = case.driver(generation=2)
    case.swept(successor)
    successor.commit(*successor.confirm(successor.prepared(rows)))
    case.visible(rows)
    # Awake, it meets the seal in the log, aborts what it had prepared, and its tasks are told to
    # end.
    frozen.wake()
    _whatever_it_says(frozen, "abort", committables=committables)
    frozen.recover(own=True)
    case.swept(successor)
    case.visible(rows)


@_case
def frozen_driver_of_a_decided_batch(case: Case) -> None:
    """A driver is frozen right after its decision: the next one commits and goes on, and a late
    commit changes nothing.
    """
    frozen, rows = case.driver(), case.numbers()
    decided = frozen.confirm(frozen.prepared(rows))
    frozen.freeze()
    successor = case.driver(generation=2)
    successor.commit(*decided)
    successor.recover(spared=names(*decided))
    case.visible(rows)
    later = case.numbers()
    successor.commit(*successor.confirm(successor.prepared(later, batch=2)), batch=2)
    successor.recover()
    case.visible(rows, later)
    frozen.wake()
    _whatever_it_says(frozen, "commit", committables=decided, generation=1, batch=1)
    case.visible(rows, later)
    frozen.kill()
    case.swept(successor)


def _whatever_it_says(driver: Driver, method: str, **arguments: Any) -> Any:
    """Do something that is too late: whether it is an error matters to nobody, what it does to
    the rows does.
    """
    with contextlib.suppress(CallError):
        return driver.call(method, **arguments)
    return None


@_case
def task_that_outlives_its_driver(case: Case) -> None:
    """A task goes on after the next generation has swept: what it still does is not seen, and
    the next sweep takes it.
    """
    driver, rows = case.driver(), case.numbers()
    begun, writing = case.task_process(driver), case.task_process(driver)
    tasks = [begun.begin(partition=0, slot=0), writing.begin(partition=1, slot=1).invoke(rows[:2])]
    driver.kill()
    successor = case.driver(generation=2)
    successor.recover()
    prepared = [committable for task in tasks if (committable := _late(task, rows)) is not None]
    case.visible()
    successor.recover()
    decided = successor.confirm(successor.prepared(rows))
    successor.commit(*decided)
    case.visible(rows)
    begun.kill()
    writing.kill()
    case.swept(successor)
    case.expect(
        not names(*prepared) & names(*decided),
        "Two generations gave their transactions the same name; use attempt.name.",
    )
    case.visible(rows)


def _late(task: Task, rows: list[int]) -> Committable | None:
    with contextlib.suppress(CallError):
        return task.invoke(rows).pre_commit()
    return None


@_case
def task_beside_a_sweep(case: Case) -> None:
    """A sweep while a task of an older generation is writing: neither waits for the other for
    ever, and nothing of the task is seen.
    """
    driver = case.driver()
    rows = case.numbers(4)
    task = case.task_process(driver)
    begun = task.begin().invoke(rows[:2])
    driver.kill()
    successor = case.driver(generation=2)
    task.process.tell("write", transaction=begun.number, numbers=rows[2:])
    successor.recover()
    with contextlib.suppress(CallError):
        task.process.answer()
    task.kill()
    case.swept(successor)
    case.visible()


@_case
def frozen_task(case: Case) -> None:
    """A task is frozen in the middle of its rows; its repetition and the commit wait for no lock
    of it.
    """
    if not case.under.twin_attempts:
        raise SkipCase(
            "the sink says that it doesn't serve two living attempts of one task "
            "(twin_attempts=False)"
        )
    driver, rows = case.driver(), case.numbers()
    frozen = case.task_process(driver)
    late = frozen.begin(slot=0).invoke(rows[:2])
    frozen.freeze()
    decided = driver.confirm(driver.prepared(rows, slot=1))
    driver.recover(own=True, spared=names(*decided))
    driver.commit(*decided)
    case.visible(rows)
    frozen.wake()
    _whatever_it_says(frozen, "write", transaction=late.number, numbers=rows[2:])
    frozen.kill()
    case.swept(driver, own=True)
    case.visible(rows)
