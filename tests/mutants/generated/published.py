"""What became of generated bugs, module by module: the page, and the records behind it in
``docs/generated-results.json``, to which a later run adds its own modules.

A record belongs to the module's code, without comments and docstrings: where that changes, its bugs
are others. Tests that change void nothing; they are there to notice more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from evidence.digests import code_of
from mutants.catalogue import ROOT, SOURCE
from mutants.generated.operators import Generated
from mutants.generated.report import LET_THROUGH, NOTICED, Results
from mutants.generated.verdicts import Judged

PUBLISHED = ROOT / "docs" / "generated-results.json"

_HEAD = """# Bugs that nobody chose

Operators made these bugs of the code, one at a time: a statement dropped, two lines swapped, a
boundary moved, a condition negated, an exception swallowed, another variable of the same type, a
lock left out, `and` for `or`, `min` for `max`, one more or less. Each was tried against the quick
tests that run its lines, then the simulator where that drives the module, then the slow tests that
run them. Written by `python tests/mutants/generated/run.py … --publish`; nothing here is typed by
hand. `make evidence` says whether each module is as it was then.

## What a sceptic would ask

- **Who chose the bugs?** Nobody: they are all that the operators can make of a module, or, where
  fewer were tried than there are, those that a seed drew.
- **Is a failing test a noticed bug?** Not if it fails without the bug, too: each test that noticed
  one ran again on the code as it is. A test that never ends has noticed it. A change that is no
  program (a name that isn't there) counts as none.
- **Who says that a survivor is no bug?** Somebody who wrote down why
  (`tests/mutants/generated/verdicts.toml`), so that you can judge it yourself; the reasons are
  below. The others are **open**: what they change is not tested.
- **What does the rate not say?** A test may notice a bug by chance, and the operators know no
  missing code. The sets that people planted who had seen no test are in
  `tests/mutants/generated/outside`, the guards' own bugs [beside this](mutants-results.md).
- **Can I run it?** `GENERATED=protocol make mutants-generated`, some hours for all.
"""


@dataclass(frozen=True)
class Survivor:
    """A bug that no test noticed; see `Generated` for its fields."""

    id: str
    within: str
    operator: str
    old: str
    new: str


@dataclass(frozen=True)
class Record:
    """What became of a module's bugs.

    Attributes:
        digest: of the module's code.
        bugs: how many can be made.
        tried: of how many it is known what became of them.
        noticed: by a test.
        other: no program.
        survivors: the rest of those that were tried.
    """

    digest: str
    bugs: int
    tried: int
    noticed: int
    other: int
    survivors: tuple[Survivor, ...]

    def open_ones(self, judged: Collection[str]) -> list[Survivor]:
        """Return the survivors of which nobody has said that they are none."""
        return [bug for bug in self.survivors if bug.id not in judged]


def digest_of_module(file: str, source: Path = SOURCE) -> str:
    """Return a digest of a module's code; of one that is gone, of nothing."""
    path = source / file
    text = code_of(path.read_text(encoding="utf-8")) if path.is_file() else ""
    return hashlib.sha256(f"{file}\0{text}".encode()).hexdigest()[:16]


def digest_of_records(digests: Iterable[str]) -> str:
    """Return the digest of many modules' digests."""
    return hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()[:16]


def digest_of_today(published: Path = PUBLISHED, source: Path = SOURCE) -> str:
    """Return the digest that the page would bear if its modules were as they are today."""
    return digest_of_records(digest_of_module(file, source) for file in read(published))


def records_of(
    results: Results, bugs: Sequence[Generated], source: Path = SOURCE
) -> dict[str, Record]:
    """Return what became of the bugs of each module, of which any was tried and neither it nor the
    tests have changed since.

    Args:
        results: of the runs.
        bugs: all that can be made of these modules.
        source: the folder of the package.
    """
    found: dict[str, Record] = {}
    known = results.still_true(bugs)
    for file in sorted({bug.file for bug in bugs if bug.id in known}):
        here = [bug for bug in bugs if bug.file == file]
        tried = [bug for bug in here if bug.id in known]
        noticed = sum(results.status(bug.id) in NOTICED for bug in tried)
        survivors = tuple(
            Survivor(bug.id, bug.within, bug.operator, _line(bug.old), _line(bug.new))
            for bug in tried
            if results.status(bug.id) in LET_THROUGH
        )
        other = len(tried) - noticed - len(survivors)
        found[file] = Record(
            digest_of_module(file, source), len(here), len(tried), noticed, other, survivors
        )
    return found


def merged(before: Mapping[str, Record], now: Mapping[str, Record]) -> dict[str, Record]:
    """Return the records of both: of a module that both have, of other code the newer one, of the
    same code the one that knows of more bugs, the newer one in doubt.
    """
    kept = {
        file: one
        for file, one in before.items()
        if file in now and one.digest == now[file].digest and one.tried > now[file].tried
    }
    return dict(sorted({**before, **now, **kept}.items()))


def read(path: Path = PUBLISHED) -> dict[str, Record]:
    """Return what is published, by module."""
    if not path.exists():
        return {}
    body = json.loads(path.read_text(encoding="utf-8"))["modules"]
    return {
        file: Record(**{**one, "survivors": tuple(Survivor(**bug) for bug in one["survivors"])})
        for file, one in body.items()
    }


def publish(
    records: Mapping[str, Record], verdicts: Mapping[str, Judged], path: Path = PUBLISHED
) -> None:
    """Write the page and what is behind it."""
    lines = ",\n".join(
        f"  {json.dumps(file)}: {json.dumps(asdict(one))}" for file, one in sorted(records.items())
    )
    path.write_text(f'{{\n "modules": {{\n{lines}\n }}\n}}\n', encoding="utf-8")
    path.with_suffix(".md").write_text(page(records, verdicts), encoding="utf-8")


def page(records: Mapping[str, Record], verdicts: Mapping[str, Judged]) -> str:
    """Return the page: how many of each module's bugs survived, and each survivor with what was
    said of it.
    """
    lines = [_HEAD, "## The modules", ""]
    lines += [
        "| | can be made | tried | noticed | no other program | survived and open | survival |",
        "|---|---|---|---|---|---|---|",
        _row("**all**", list(records.values()), verdicts),
    ]
    rooms = sorted({file.rpartition("/")[0] for file in records})
    for room in rooms:
        own = [one for file, one in records.items() if file.rpartition("/")[0] == room]
        lines.append(_row(f"**{room or 'onceforall'}**", own, verdicts))
    lines += [_row(f"`{file}`", [one], verdicts) for file, one in sorted(records.items())]
    digest = digest_of_records(one.digest for one in records.values())
    lines += ["", f"Digest of these modules: {digest}.", ""]
    lines += ["## Survivors", ""]
    for file, one in sorted(records.items()):
        for bug in one.survivors:
            judged = verdicts.get(bug.id)
            said = f"the same program: {judged.why}" if judged else "**open**"
            what = f"{bug.operator}: {_code(bug.old)} → {_code(bug.new)}"
            lines.append(f"- `{file}`, `{bug.within or 'module'}` ({bug.id}), {what}: {said}")
    return "\n".join(lines) + "\n"


def _row(name: str, records: Sequence[Record], verdicts: Collection[str]) -> str:
    still_open = sum(len(one.open_ones(verdicts)) for one in records)
    same = sum(len(one.survivors) for one in records) - still_open
    noticed = sum(one.noticed for one in records)
    rate = f"{100 * still_open / (noticed + still_open):.1f} %" if noticed + still_open else "-"
    counts = [
        sum(one.bugs for one in records),
        sum(one.tried for one in records),
        noticed,
        sum(one.other for one in records) + same,
        still_open,
    ]
    return f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + f" | {rate} |"


def _line(text: str) -> str:
    short = " ".join(text.split())
    return short if len(short) <= 120 else short[:117] + "..."


def _code(text: str) -> str:
    return f"`` {text} ``" if text else "nothing"
