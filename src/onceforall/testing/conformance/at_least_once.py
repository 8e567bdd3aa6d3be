"""The cases of the conformance suite for a sink that promises ``at_least_once``: no row is missing
when ``pre_commit`` has returned, whatever is killed; nothing is left to commit or to sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onceforall.testing.conformance import idempotent
from onceforall.testing.conformance.crashes import asked_for, crash_lines
from onceforall.testing.conformance.driver import Driver
from onceforall.testing.conformance.world import Case, CaseFunction, register

CASES: dict[str, CaseFunction] = {}
_case = register(CASES)


def _write(driver: Driver, numbers: Sequence[int], **parts: Any) -> None:
    committable = driver.begin(**parts).invoke(numbers).pre_commit()
    driver.case.expect(
        committable is None,
        f"pre_commit returned {committable}, but a sink without two-phase commit has nothing to "
        "commit.",
    )


@_case
def each_row_is_there(case: Case) -> None:
    """When ``pre_commit`` returns, every row is there, without a fault once; no committable,
    nothing left over, nothing to recover.
    """
    driver, rows = case.driver(), case.numbers(4)
    _write(driver, rows)
    case.visible(rows)
    for one in (driver, case.driver(generation=2)):
        found = one.recover(own=True)
        case.expect(
            found == 0, f"recover returned {found}, but such a sink leaves nothing undecided."
        )
    case.visible(rows)


@_case
def two_tasks_at_once(case: Case) -> None:
    """Two tasks write other rows at the same time, in two processes, from a pickled sink."""
    idempotent.CASES["two_tasks_at_once"](case)


@_case
def task_without_rows(case: Case) -> None:
    """A transaction that gets no rows does nothing."""
    idempotent.CASES["task_without_rows"](case)


@_case
def failed_task_is_repeated(case: Case) -> None:
    """After a failed attempt, its repetition leaves each row there."""
    driver, rows = case.driver(), case.numbers()
    driver.begin(slot=0).discard()
    driver.begin(slot=1).invoke(rows[:2]).discard()
    _write(driver, rows, slot=2)
    case.at_least(rows)


@_case
def killed_between_calls(case: Case) -> None:
    """A task that is killed after any call is repeated by the next generation, and each row is
    there.
    """
    seen: list[Sequence[int]] = []
    for batch, last in enumerate(("begin", "invoke", "pre_commit"), start=1):
        driver, rows = case.driver(generation=2 * batch - 1), case.numbers()
        task = driver.begin(batch=batch)
        if last != "begin":
            task.invoke(rows)
        if last == "pre_commit":
            task.pre_commit()
            case.at_least(*seen, rows)
        driver.kill()
        successor = case.driver(generation=2 * batch)
        successor.recover()
        _write(successor, rows, batch=batch)
        seen.append(rows)
        case.at_least(*seen)


@_case
def killed_while_writing(case: Case) -> None:
    """The same for a task that is killed anywhere in ``invoke`` or ``pre_commit``."""
    asked_for(case)
    driver, rows = case.driver(), case.numbers()
    total = driver.lines("write", transaction=driver.begin().number, numbers=rows)
    seen: list[Sequence[int]] = [rows]
    for line in crash_lines(case, total, "invoke and pre_commit"):
        rows = case.numbers()
        process = case.driver()
        task = process.begin(batch=1 + line)
        process.crashes_in("write", line, transaction=task.number, numbers=rows)
        process.kill()
        _write(driver, rows, batch=1 + line, slot=1)
        seen.append(rows)
        case.at_least(*seen)


@_case
def next_batch_goes_on(case: Case) -> None:
    """Batch follows batch in the same process, also after ``close``."""
    idempotent.CASES["next_batch_goes_on"](case)


@_case
def no_secret_is_shown(case: Case) -> None:
    """No secret is in a pickle or a representation (in errors the suite looks in every case)."""
    idempotent.CASES["no_secret_is_shown"](case)
