"""The page of the campaign's results: totals, scenarios, and the matrix. Every figure comes from
``results.json``."""

import json
import re
import shutil
import statistics
from pathlib import Path

from chaos import matrix
from chaos.nemeses import SCENARIOS
from chaos.results import NUMBERS, PUBLISHED
from chaos.worlds import KINDS
from onceforall.failpoints.catalogue import CATALOGUE, NEEDS

HEAD = """# Results of the crash campaign

Written by `make chaos`; nothing here is typed by hand. [chaos.md](chaos.md) says what is done, what is checked, and how to run it;
[fault-model.md](fault-model.md) what we survive and what we don't. `make evidence` says whether it is of the code that is checked out.

## What a sceptic would ask

- **Do the kills come where it hurts?** A cell of [the matrix](#the-matrix) counts only if a real process reached that very step and died there by SIGKILL. The other faults come at
  random moments.
- **Who says that nothing is lost or doubled?** Not onceforall. [Readers](checker.md) read each sink as anybody would, while the query runs and when all is quiet, and compare every value
  of every row with what the source's records must have become ([what is checked](chaos.md#what-is-checked)).
- **Would a bug be noticed?** `tests/chaos/test_judging.py` gives the judge worlds with a changed value, another order and a state that went back. `make mutants` breaks each guard, and the crash test
  that guards it must fail ([the bugs](mutants-results.md)). A unit that nobody judged, or that read nothing, is a violation.
- **Of which code is it?** The table below has digests of what ran and of what judged; results of other code are moved aside.
- **Can I run it?** `CHAOS_MINUTES=10 make chaos` in a clone, on a Linux machine with Java; it fetches broker and database itself. A failed unit keeps its logs.
- **What doesn't it show?** One machine with loopback between its parts: no real network, no cloud's own store, no disk that lies. [fault-model.md](fault-model.md#what-we-dont-survive)
  lists what nobody survives; the clusters of two machines are `make chaos-cluster`.
"""


_OUTER_FOLDER = re.compile(r"/\S*?/(?=(?:build/chaos|tests|src)/)")


def write_page(results):
    """Write ``results.md`` beside the results, and return its path."""
    page = results.folder / "results.md"
    parts = [
        _totals(results.data),
        _scenarios(results.data),
        _matrix(results.data),
    ]
    page.write_text("\n".join([HEAD, *(line for part in parts for line in part)]) + "\n")
    return page


def publish(results, docs=PUBLISHED.parent):
    """Put the page and the results behind it into the documentation; return the page."""
    page = Path(shutil.copy(write_page(results), docs / "chaos-results.md"))
    (docs / PUBLISHED.name).write_text(compact(results.data))
    return page


def compact(data):
    """The results as JSON, with a line for each cell and each scenario."""
    parts = []
    for name, value in sorted(data.items()):
        if isinstance(value, dict):
            lines = ",\n".join(
                f"  {json.dumps(key)}: {json.dumps(each, sort_keys=True)}"
                for key, each in sorted(value.items())
            )
            parts.append(f"{json.dumps(name)}: {{\n{lines}\n }}")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def _totals(data):
    cells = list(matrix.all_cells())
    covered = sum(data["cells"].get(cell.id, {}).get("reached", False) for cell in cells)
    minutes = sum(run["minutes"] for run in data["runs"])
    commits = list(dict.fromkeys(run["commit"] for run in data["runs"] if run["commit"]))
    kills = ", ".join(
        f"{count:,} {kind}"
        for kind, count in sorted(data["kills_by_process"].items(), key=lambda each: -each[1])
    )
    yield "## Totals"
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| SIGKILLs | **{data['kills']:,}** ({kills}) |"
    yield (
        "| records (input rows whose effect was looked for in each sink) | "
        f"**{data['records']:,}** |"
    )
    yield f"| violations | **{data['violations']}** |"
    yield f"| stuck queries | **{data['stuck']}** |"
    yield f"| cells of the matrix that were reached | {covered:,} of {len(cells):,} |"
    yield (
        f"| time | {minutes:,.0f} minutes in {len(data['runs'])} "
        f"run{'s' * (len(data['runs']) > 1)}, the last on "
        f"{data['runs'][-1]['at'] if data['runs'] else '-'} |"
    )
    yield (
        f"| production code | digest {data['source']}, harness {data.get('harness')}, commits "
        f"{', '.join(commits)} (`+`: other files were changed, too) |"
    )
    yield ""
    if data["found"]:
        yield "## Violations"
        yield ""
        for found in data["found"]:
            yield f"- {found['in']}: {'; '.join(map(_told, found['what']))}"
        yield ""


def _told(text):
    """A finding without the folder in which it was found; of a traceback, its end."""
    first, *_, last = [
        line for line in _OUTER_FOLDER.sub("", text).splitlines() if line.strip()
    ] * 2
    return (
        first
        if first == last
        else f"{first.removesuffix('Traceback (most recent call last):')}{last}"
    )


def never_happened(data):
    """(scenario, runs, kind) of each kind of fault that a scenario does and that never happened in
    any of its runs."""
    return [
        (name, entry["runs"], kind)
        for name, entry in sorted(data["scenarios"].items())
        if name in SCENARIOS and entry["runs"]
        for kind in SCENARIOS[name].never(entry["by_fault"])
    ]


def _scenarios(data):
    yield "## Random faults"
    yield ""
    if absent := [name for name in SCENARIOS if name not in data["scenarios"]]:
        yield (
            f"**{len(absent)} of {len(SCENARIOS)} scenarios have not run on the code of this "
            f"page**, which says nothing of them: {', '.join(absent)}."
        )
        yield ""
    yield (
        "| scenario | runs | faults | kills | records | lost | duplicated | torn | leftovers | "
        "violations | recovery, median s | recovery, longest s |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for name, entry in sorted(data["scenarios"].items()):
        kills = ", ".join(f"{count} {kind}" for kind, count in sorted(entry["kills"].items()))
        numbers = " | ".join(f"{entry[number]:,}" for number in NUMBERS)
        recovery = entry["recovery_s"]
        times = f"{statistics.median(recovery):.1f} | {max(recovery):.1f}" if recovery else "- | -"
        yield (
            f"| {name} | {entry['runs']} | {entry['faults']:,} | {kills} | {entry['records']:,} "
            f"| {numbers} | {times} |"
        )
    yield ""
    yield "| scenario | faults |"
    yield "|---|---|"
    for name, entry in sorted(data["scenarios"].items()):
        faults = ", ".join(
            f"{fault}: {count}" for fault, count in sorted(entry["by_fault"].items())
        )
        yield f"| {name} | {faults} |"
    if never := never_happened(data):
        yield ""
        yield "What never happened, and so proves nothing:"
        yield ""
        for name, runs, kind in never:
            yield f"- {name}, {runs} runs: `{kind}`"
    yield ""


def _matrix(data):
    yield "## The matrix"
    yield ""
    yield (
        "A process is killed with SIGKILL at each failpoint, for each kind of sink, in a run that "
        "goes well (first) and in one that recovers. "
        "A cell shows the rows that were judged behind it, and the seconds from the kill to the "
        "completion of the next batch, the longest of its runs, where no "
        "other kill came between; **bold** is a violation (lost/duplicated/torn/leftovers/all "
        "violations), `·` a combination that can't happen (or is not in the campaign: PostgreSQL's "
        "mode `upsert`, which promises no two-phase commit), and `?` one that was not reached."
    )
    yield ""
    yield (
        "| failpoint | process | needs | "
        + " | ".join(f"{kind}, {when}" for kind in KINDS for when in ("first", "recovery"))
        + " |"
    )
    yield "|---|---|---|" + "---|" * (2 * len(KINDS))
    possible = {cell.id for cell in matrix.all_cells()}
    for name, failpoint in CATALOGUE.items():
        needs = " / ".join(dict.fromkeys(filter(None, (failpoint.needs, failpoint.recovery_needs))))
        cells = [
            _cell(data, matrix.Cell(name, kind, when).id, possible)
            for kind in KINDS
            for when in ("first", "recovery")
        ]
        yield f"| `{name}` | {failpoint.where} | {needs} | " + " | ".join(cells) + " |"
    yield ""
    yield "What a failpoint needs to be reached:"
    yield ""
    for word, meaning in NEEDS.items():
        if word:
            yield f"- {word}: {meaning}"


def _cell(data, cell_id, possible):
    if cell_id not in possible:
        return "·"
    entry = data["cells"].get(cell_id, {})
    if not entry.get("reached"):
        return "?"
    if any(entry[number] for number in NUMBERS):
        return "**" + "/".join(str(entry[number]) for number in NUMBERS) + "**"
    recovery = f" {max(entry['recovery_s']):.1f} s" if entry["recovery_s"] else ""
    return f"{entry['records']:,}{recovery}"
