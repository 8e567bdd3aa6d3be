"""What the answers of a sink must be, whoever wrote it: rules for the runtime, which aborts the
attempt or stops where one is broken, and for the conformance suite, which fails. Pure.

A sink's answer is believed nowhere else: what ``confirm`` leaves out, nobody would ever commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onceforall.protocol.eligibility import Able
from onceforall.protocol.entries import Committable

LIBRARY_KEYS = frozenset({"task", "after", "after_place", "rows", "batch"})
"""What the library itself adds to a committable."""

RESTORE = (
    "If another sink had this name when it was prepared, start once more with that one; otherwise "
    "restore the commit log from a backup"
)
"""What helps where a decision has a committable that its sink can't read."""

_SHOWN_AT_MOST = 200


class BrokenContractError(ValueError):
    """An answer isn't what the contract says; the text begins with what it is instead, and the
    caller names the sink and the method before it.
    """


def needs_a_commit(able: Able) -> bool:
    """Tell whether rows of a sink with these capabilities are seen only when they are committed:
    without a committable nobody would.
    """
    return able.delivery == "exactly_once" and able.two_phase and not able.idempotent


def as_logged(value: object) -> Any:
    """Return a value as the commit log gives it back: what was a tuple is a list there, and the
    key 1 is "1".

    Raises:
        BrokenContractError: it is no plain JSON.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise BrokenContractError(
            f"returned what is no plain JSON ({error}): {_shown(value)}"
        ) from error


def prepared(answer: object) -> dict[str, Any]:
    """Return what ``pre_commit`` answered, as the log gives it back.

    Raises:
        BrokenContractError: it is no committable.
    """
    committable = _committable(answer)
    if taken := LIBRARY_KEYS & committable.keys():
        raise BrokenContractError(
            f"returned a committable with {_keys(taken)}, which the library adds itself: "
            f"{_shown(committable)}"
        )
    return committable


def confirmed(given: Sequence[Committable], answer: object) -> tuple[Committable, ...]:
    """Return what ``confirm`` answered, as the log gives it back.

    Args:
        given: what it was given.
        answer: what it returned.

    Raises:
        BrokenContractError: it isn't the same transactions in the same order, each with what the
            library has added.
    """
    if not isinstance(answer, Iterable) or isinstance(answer, str | bytes | Mapping):
        raise BrokenContractError(
            f"returned no list of the {len(given)} committables that it was given: {_shown(answer)}"
        )
    found = tuple(_committable(each) for each in answer)
    names = [each["name"] for each in found]
    if names != [each["name"] for each in given]:
        asked = {each["name"] for each in given}
        raise BrokenContractError(
            f"was given {len(given)} committables and returned {len(found)}, which are not the "
            f"same in the same order. {_difference(asked, names)}"
        )
    for before, after in zip(given, found, strict=True):
        kept = as_logged({key: before[key] for key in LIBRARY_KEYS & before.keys()})
        if {key: after[key] for key in LIBRARY_KEYS & after.keys()} != kept:
            changed = {key for key in LIBRARY_KEYS if kept.get(key) != after.get(key)}
            raise BrokenContractError(
                f"has changed, dropped or added {_keys(changed)} of the committable "
                f"{after['name']!r}, which the library adds and needs"
            )
    return found


def check_report(report: object) -> None:
    """See that ``commit`` answered with a ``CommitReport`` of committables and lost transactions;
    of which ones, ``answers.check_answered`` looks at.

    Raises:
        BrokenContractError: it is none.
    """
    for field in ("completed", "retired", "lost", "in_doubt"):
        try:
            values = getattr(report, field)
        except AttributeError:
            raise BrokenContractError(f"returned no CommitReport: {_shown(report)}") from None
        if not isinstance(values, list | tuple):
            raise BrokenContractError(f"reported no tuple as {field!r}: {_shown(values)}")
        for each in values:
            if field in {"completed", "retired"}:
                _check_reported(field, each)
                continue
            committable, reason = (
                getattr(each, "committable", None),
                getattr(each, "reason", None),
            )
            if committable is None or not isinstance(reason, str):
                raise BrokenContractError(
                    f"reported as {field!r} what is no LostTransaction with a reason: "
                    f"{_shown(each)}"
                )
            _check_reported(field, committable)


def _check_reported(field: str, committable: object) -> None:
    if not isinstance(committable, Mapping) or not isinstance(committable.get("name"), str):
        raise BrokenContractError(
            f"reported as {field!r} what is no committable: {_shown(committable)}"
        )


def _committable(value: object) -> dict[str, Any]:
    found = as_logged(dict(value)) if isinstance(value, Mapping) else None
    name = None if found is None else found.get("name")
    if found is None or not isinstance(name, str) or not name:
        raise BrokenContractError(
            f"must return a JSON object with a text 'name' for each transaction, and returned "
            f"{_shown(value)}"
        )
    return dict(found)


def _difference(asked: set[str], names: Sequence[str]) -> str:
    if missing := sorted(asked - set(names)):
        return f"The first that is missing is {missing[0]!r}, which nobody would commit."
    if foreign := sorted(set(names) - asked):
        return f"The first that it was not given is {foreign[0]!r}."
    return "They are in another order, or more than once."


def _keys(keys: Iterable[str]) -> str:
    named = sorted(keys)
    return f"the key{'s' * (len(named) > 1)} {', '.join(map(repr, named))}"


def _shown(value: object) -> str:
    try:
        text = f"{type(value).__name__} {value!r}"
    except Exception as error:  # noqa: BLE001  a sink's object may have any __repr__
        return f"{type(value).__name__} ({type(error).__name__} in its repr)"
    return text if len(text) <= _SHOWN_AT_MOST else f"{text[:_SHOWN_AT_MOST]}…"
