"""The ledger: what each destination says, beside the truth. Money is whole millionths of the
currency; nothing is rounded.

What is counted of a destination, per row of the truth: *lost*, *doubled* and *wrong*, as
`onceforall.demo.truth` defines them. The sums are those of everybody who adds up a column of the
destination, doubled and wrong rows included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from onceforall.demo.ads.faults import MINIMUM_KILLS
from onceforall.demo.ads.jobs import ONCEFORALL
from onceforall.demo.ads.truth import Truth
from onceforall.demo.truth import Record, judge

SUMS = ("impressions", "clicks", "spend_micros", "amount_micros", "commission_micros")
"""The columns that are added up."""
BAD = ("lost", "duplicated", "wrong")


def account(truth: Truth, rows: Iterable[Any]) -> dict[str, int]:
    """Compare the rows of a destination with the truth.

    Returns:
        ``expected`` and ``read`` rows, those of `BAD`, and the `SUMS` of what was read.
    """
    sums = dict.fromkeys(SUMS, 0)

    def added_up() -> Iterator[Record]:
        for row in rows:
            if isinstance(row, Mapping):
                for name in SUMS:
                    value = row.get(name)
                    sums[name] += value if isinstance(value, int) else 0
                row = {  # noqa: PLW2901  under the name by which `judge` knows it
                    ("id" if name == "record_id" else name): value for name, value in row.items()
                }
            yield Record(None, row)

    expected = {identity: {"id": identity, **row} for identity, row in truth.ledger.items()}
    verdict = judge(expected, added_up()).verdict
    return {**verdict.as_dict(), **sums}


def true_account(truth: Truth) -> dict[str, int]:
    """Return what the account of a destination must be."""
    rows = len(truth.ledger)
    return {
        "expected": rows,
        "read": rows,
        **dict.fromkeys(BAD, 0),
        **{name: truth.total(name) for name in SUMS},
    }


def account_of_dead_letters(
    truth: Truth, letters: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, int]]:
    """Compare the dead letters with the truth, by reason: ``expected``, ``read``, and
    ``distinct`` ones among these.
    """
    read: Counter[str] = Counter()
    places: dict[str, set[tuple[Any, ...]]] = {}
    for letter in letters:
        reason = str(letter.get("reason"))
        read[reason] += 1
        places.setdefault(reason, set()).add(
            (letter.get("topic"), letter.get("partition"), letter.get("offset"))
        )
    return {
        reason: {
            "expected": truth.dead_letters.get(reason, 0),
            "read": read[reason],
            "distinct": len(places.get(reason, ())),
        }
        for reason in sorted({*truth.dead_letters, *read})
    }


def account_of_late(truth: Truth, ids: Iterable[str]) -> dict[str, int]:
    """Compare what was put aside as late with the truth."""
    found = Counter(ids)
    return {
        "expected": len(truth.late),
        "read": found.total(),
        "lost": len(truth.late - found.keys()),
        "duplicated": found.total() - len(found),
        "wrong": len(found.keys() - truth.late),
    }


def failures(truth: Truth, result: Mapping[str, Any]) -> list[str]:
    """Return, as sentences, how a pipeline's result differs from the truth; empty when all agrees.

    Args:
        truth: what must be there.
        result: ``destinations`` (accounts by name), ``dead_letters`` and ``late``, as the functions
            above make them.
    """
    wanted = true_account(truth)
    found = (
        []
        if wanted["spend_micros"] and wanted["commission_micros"]
        else ["The truth is empty, so nothing was tested."]
    )
    for destination, numbers in result["destinations"].items():
        differing = [
            f"{name} {numbers[name]:,}, not {wanted[name]:,}"
            for name in wanted
            if numbers[name] != wanted[name]
        ]
        if differing:
            found.append(f"The {destination} differs: {', '.join(differing)}.")
    for reason, numbers in result["dead_letters"].items():
        if not numbers["expected"] == numbers["read"] == numbers["distinct"]:
            found.append(
                f"Dead letters ({reason}): {numbers['read']:,}, of which {numbers['distinct']:,} "
                f"are distinct, not {numbers['expected']:,}."
            )
    late = result["late"]
    if late["read"] != late["expected"] or any(late[name] for name in BAD):
        found.append(
            f"Late events: {late['read']:,} ({late['lost']:,} lost, {late['duplicated']:,} "
            f"doubled), not {late['expected']:,}."
        )
    return found


def verdict(truth: Truth, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Judge the whole demo.

    Args:
        truth: what must be there.
        results: by writer, as `failures` takes them, with ``kills`` and ``hidden_partitions``
            besides.

    Returns:
        ``failures``, sentences by writer; ``passed``: that onceforall has none. Spark's own writers
        may have as many as they like.
    """
    found = {writer: failures(truth, result) for writer, result in results.items()}
    ours = found.get(ONCEFORALL, ["onceforall was not run."])
    if ONCEFORALL in results:
        if (kills := len(results[ONCEFORALL]["kills"])) < MINIMUM_KILLS:
            ours.append(f"There were {kills} kills only, not {MINIMUM_KILLS}.")
        if hidden := results[ONCEFORALL]["hidden_partitions"]:
            ours.append(f"Open transactions hide records in {', '.join(hidden)}.")
    return {"failures": found, "passed": not ours}


def money(micros: int) -> str:
    """Return an amount as people read it, with all that there is behind the point."""
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    return f"{sign}{micros // 1_000_000:,}.{micros % 1_000_000:06d}"
