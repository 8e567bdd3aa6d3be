"""The cases of the conformance suite about the target: whether it is told from another one, and
from an older copy of itself.
"""

from __future__ import annotations

import json
from typing import Any

from onceforall.testing.conformance.driver import Driver
from onceforall.testing.conformance.process import CallError
from onceforall.testing.conformance.world import Case, CaseFunction, SkipCase, register

CASES: dict[str, CaseFunction] = {}
"""For every sink."""

TWO_PHASE_CASES: dict[str, CaseFunction] = {}
"""For a sink with two-phase commit alone."""

MAX_IDENTITY_BYTES = 4 * 1024

_case = register(CASES)
_two_phase_case = register(TWO_PHASE_CASES)


def _identity(driver: Driver) -> Any:
    identity = json.loads(driver.call("identity"))
    expect = driver.case.expect
    expect(
        identity is not None,
        "identity returned None though check has passed: nobody would notice that the target was "
        "replaced under its name and address. Return "
        "an id that the target itself keeps, and that goes with it.",
    )
    text = json.dumps(identity)
    expect(
        isinstance(identity, dict) and identity,
        f"identity must return a JSON object with at least one key, but returned {text}.",
    )
    expect(
        len(text.encode()) <= MAX_IDENTITY_BYTES,
        f"identity has {len(text.encode())} bytes; it stands in every decision.",
    )
    driver.case.no_secret(text, "The identity")
    return identity


def _expect_same(case: Case, before: Any, now: Any, when: str) -> None:
    case.expect(
        before == now,
        f"identity was {json.dumps(before)}, and is {json.dumps(now)} {when}: the target is the "
        "same.",
    )


@_case
def target_has_an_identity(case: Case) -> None:
    """``identity`` tells the target from any other, and is the same in every process, before and
    after rows are written.
    """
    driver, rows = case.driver(), case.numbers()
    before = _identity(driver)
    _expect_same(case, before, _identity(case.driver(generation=2)), "in another process")
    prepared = driver.begin().invoke(rows).pre_commit()
    if prepared is not None:
        decided = driver.confirm(prepared)
        for committable in decided:
            _expect_same(
                case, before, committable.get("identity", before), "in a confirmed committable"
            )
        driver.commit(*decided)
    case.visible(rows)
    _expect_same(case, before, _identity(driver), "after a batch")


@_case
def another_target_has_another_identity(case: Case) -> None:
    """Another target under the same name and address has another identity, and the first one
    keeps its own.
    """
    if case.under.another_target is None:
        raise SkipCase("no 'another_target' was given")
    driver = case.driver()
    before = _identity(driver)
    driver.call("close")
    with case.under.another_target():
        there = json.loads(case.unchecked("identity"))
        case.expect(
            there != before,
            f"identity is {json.dumps(there)} also where another target lies under the same "
            "address.",
        )
        other = _identity(case.driver())
        case.expect(
            other != before,
            f"identity is {json.dumps(other)} also when check has made another target under the "
            "same address.",
        )
    _expect_same(case, before, _identity(case.driver(generation=2)), "after it was away")


@_two_phase_case
def missing_predecessor_is_noticed(case: Case) -> None:
    """What ``holds`` tells is true, and ``confirm`` refuses a batch where the one that comes
    before it by the log isn't there.
    """
    driver, rows = case.driver(), case.numbers()
    driver.commit(*driver.confirm(driver.prepared(rows)))
    told = driver.call("holds", batch=1)
    case.expect(told in {True, None}, f"holds returned {told!r} for a batch that is complete.")
    if told is None:
        raise SkipCase("the sink can't tell which batches its target has")
    told = case.driver(generation=2).call("holds", batch=2)
    case.expect(told is False, f"holds returned {told!r} for a batch that was never written.")
    prepared = driver.prepared(case.numbers(), batch=3)
    try:
        driver.call("confirm", committables=[{**prepared, "after": 2}])
    except CallError:
        driver.abort(prepared)
    else:
        case.expect(
            condition=False,
            otherwise="confirm took a batch though the target doesn't have the one in its key "
            "'after'.",
        )
    more = case.numbers()
    driver.commit(*driver.confirm({**driver.prepared(more, batch=4), "after": 1}), batch=4)
    case.visible(rows, more)
