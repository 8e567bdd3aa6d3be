"""How measurements are put together, and run one by one from the command line.

A measurement has *plans*: parameters, and the contenders that are compared under them. A *round* of
a plan runs all its contenders, one after the other, and is kept as a whole. ``main`` is the command
line of each measurement's module::

    python -m benchmarks.throughput.pipelines --contenders ours,spark --payload 100 --repeats 5
    python -m benchmarks.latency.records --set rate=2000 --set seconds=30

An option replaces the parameter of that name in every plan, so that plans which differ only in it
become one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.report.results import Results, Sample
from benchmarks.settings import FOLDER, Load
from benchmarks.stands.processes import warm_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

_ERROR_LENGTH = 3000
LATER = 5
"""The lag of a plan that no target needs: the targets' five rounds come first."""
_MANY = 1_000_000
"""Records that touch so much memory that it matters whether the machine has it."""


@dataclass(frozen=True)
class Plan:
    """What is compared with what, and how.

    Attributes:
        contenders: their names, in the order of the first round.
        load: the settings that contenders share.
        more: the measurement's own parameters.
        repeats: how many rounds.
        minutes: about how long a round takes.
        lag: how many rounds of other plans come before the first one of this: what no target needs
            can wait.
    """

    contenders: tuple[str, ...]
    load: Load
    more: Mapping[str, Any]
    repeats: int = 5
    minutes: float = 5.0
    lag: int = 0

    def parameters(self) -> dict[str, Any]:
        """Return what results are known by."""
        return {**self.load.parameters(), **self.more}

    def order(self, turn: int) -> list[str]:
        """Return the contenders in the order of a round: each begins once."""
        shift = turn % len(self.contenders)
        return [*self.contenders[shift:], *self.contenders[:shift]]


@dataclass(frozen=True)
class Round:
    """One round of a plan, as its measurement sees it.

    Attributes:
        plan: the plan.
        turn: the number of the round, from 0.
        work: a folder of its own, removed when all went well.
        results: what is known from earlier measurements.
        say: takes a line for whoever looks on.
    """

    plan: Plan
    turn: int
    work: Path
    results: Results
    say: Callable[[str], None]

    @property
    def load(self) -> Load:
        """The settings."""
        return self.plan.load

    def __getitem__(self, name: str) -> Any:
        """Return one of the measurement's own parameters."""
        return self.plan.more[name]

    def each(self, measure: Callable[[str, Path], Sample]) -> dict[str, Sample]:
        """Measure each contender in this round's order; one that fails has its error for a
        sample, and the others go on.
        """
        samples: dict[str, Sample] = {}
        for contender in self.plan.order(self.turn):
            began_s = time.monotonic()
            if self.load.records >= _MANY:
                warm_memory()
            try:
                sample = measure(contender, self.work / contender)
            except Exception as error:  # noqa: BLE001  whatever it is, it is this contender's result
                sample = {"error": f"{type(error).__name__}: {error}"[:_ERROR_LENGTH]}
                (self.work / contender).mkdir(parents=True, exist_ok=True)
                (self.work / contender / "error.txt").write_text(
                    traceback.format_exc(), encoding="utf-8"
                )
            samples[contender] = sample
            self.say(f"  {contender}: {json.dumps(sample)} ({time.monotonic() - began_s:.0f} s)")
        return samples


@dataclass(frozen=True)
class Measurement:
    """One measurement.

    Attributes:
        name: under which its results are kept.
        plans: gives its plans; the argument asks for small ones that only show that everything
            works.
        run: runs a round and returns a sample for each contender.
    """

    name: str
    plans: Callable[[bool], Sequence[Plan]]
    run: Callable[[Round], dict[str, Sample]]


def run_round(
    measurement: Measurement, plan: Plan, turn: int, results: Results
) -> dict[str, Sample]:
    """Run one round and keep its samples."""
    parameters = plan.parameters()
    say(f"{measurement.name}, round {turn + 1} of {plan.repeats}: {_short(parameters)}")
    began_s = time.monotonic()
    with _work_folder(measurement.name) as work:
        samples = measurement.run(Round(plan, turn, work, results, say))
        if any("error" in sample for sample in samples.values()):
            kept = FOLDER / "failed" / f"{measurement.name}-{int(time.time())}"
            shutil.copytree(
                work,
                kept,
                ignore=shutil.ignore_patterns("checkpoint*", "files*", "kafka", "*.npy"),
                dirs_exist_ok=True,
            )
            say(f"  something failed; see {kept.relative_to(FOLDER.parents[1])}")
    results.add(
        measurement.name, parameters, turn, plan.contenders, samples, time.monotonic() - began_s
    )
    return samples


def say(line: str) -> None:
    """Print a line with the time of day."""
    print(f"[{time.strftime('%H:%M:%S', time.gmtime())}] {line}", flush=True)


def main(measurement: Measurement, child: Callable[[], None] | None = None) -> None:
    """Run a measurement alone, as the command line says.

    Args:
        measurement: it.
        child: what its module runs in a child process instead, where the command line is the path
            of a configuration (see `Child`).
    """
    if child is not None and len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        child()
        return
    parser = argparse.ArgumentParser(description=f"The measurement {measurement.name!r} alone.")
    parser.add_argument("--contenders", help="some of them, with commas")
    parser.add_argument("--repeats", type=int, help="how many rounds")
    parser.add_argument("--quick", action="store_true", help="small, to see that it works")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one of the measurement's own parameters",
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results.json is")
    parser.add_argument("--again", action="store_true", help="also rounds that are there already")
    for field in fields(Load):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=json.loads if field.name != "compression" else str,
        )
    arguments = parser.parse_args()
    results = Results(arguments.folder)
    results.begin_run(0)
    wanted = None if arguments.contenders is None else arguments.contenders.split(",")
    plans = [
        _replaced(plan, arguments)
        for plan in with_contenders(measurement.plans(arguments.quick), wanted)
    ]
    unique = {json.dumps(plan.parameters(), sort_keys=True): plan for plan in plans}
    failed = False
    for turn in range(max(plan.repeats for plan in unique.values())):
        for plan in unique.values():
            if turn >= plan.repeats or (
                results.has(measurement.name, plan.parameters(), turn) and not arguments.again
            ):
                continue
            samples = run_round(measurement, plan, turn, results)
            failed = failed or any("error" in sample for sample in samples.values())
    results.save()
    if failed:
        raise SystemExit(1)


def _replaced(plan: Plan, arguments: argparse.Namespace) -> Plan:
    given = {
        name: value
        for field in fields(Load)
        if (value := getattr(arguments, name := field.name)) is not None
    }
    more = dict(plan.more)
    for entry in arguments.set:
        name, _, text = entry.partition("=")
        if name not in more:
            raise SystemExit(
                f"There is no parameter {name!r}; there are {', '.join(sorted(more))}."
            )
        value = json.loads(text)
        more[name] = float(value) if isinstance(more[name], float) else value
    repeats = plan.repeats if arguments.repeats is None else arguments.repeats
    return replace(plan, load=replace(plan.load, **given), more=more, repeats=repeats)


def with_contenders(plans: Sequence[Plan], wanted: Sequence[str] | None) -> list[Plan]:
    """Return the plans that have all these contenders, with these alone; what the others are set to
    would not suit them.

    Raises:
        SystemExit: there is no such plan.
    """
    if wanted is None:
        return list(plans)
    found = [
        replace(plan, contenders=tuple(wanted))
        for plan in plans
        if set(wanted) <= set(plan.contenders)
    ]
    if not found:
        together = "; ".join(", ".join(plan.contenders) for plan in plans)
        raise SystemExit(f"No plan has {', '.join(wanted)} together; there are: {together}.")
    return found


def _short(parameters: Mapping[str, Any]) -> str:
    plain = Load().parameters()
    said = {name: value for name, value in parameters.items() if plain.get(name) != value}
    return ", ".join(f"{name}={value}" for name, value in said.items()) or "as by default"


@contextmanager
def _work_folder(name: str) -> Iterator[Path]:
    (FOLDER / "work").mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=FOLDER / "work"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
