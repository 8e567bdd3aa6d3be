"""The matrix: every failpoint, for every kind of sink, in a run that goes well and in one that
recovers; at each a process is killed.

A unit is a chain of kills on one query: each driver is killed at its cell's failpoint, the next one
recovers from what was left, and goes on until
its own. Behind the chain a driver without faults runs, and the sinks are judged; what is found
counts for each cell of the unit.
"""

import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from chaos.alarms import alarms
from chaos.machine import Machine
from chaos.recipes import AT_THE_START
from chaos.recipes_more import RECIPES
from chaos.worlds import KINDS, World
from onceforall.failpoints.catalogue import CATALOGUE

LONGEST_CHAIN = 24
ROWS_PER_BATCH = 2000
ONCE_PER_CHECKPOINT = ("bind.", "store.folder.", "file.folder.")
KINDS_OF_ALL = ("kafka", "files", "postgres-staged")


@dataclass(frozen=True, order=True)
class Cell:
    """One failpoint on one kind of sink; ``when`` is ``first`` or ``recovery``."""

    name: str
    kind: str
    when: str

    @property
    def id(self):
        return f"{self.name} | {self.kind} | {self.when}"


@dataclass
class Part:
    """Cells that are reached in the same way: one recipe, in one kind of process."""

    when: str
    needs: str
    where: str
    cells: list[Cell] = field(default_factory=list)

    @property
    def recipe(self):
        return RECIPES[self.when, self.needs]


@dataclass
class Unit:
    """Parts that share one query, one after the other."""

    kind: str
    parts: list[Part] = field(default_factory=list)

    @property
    def cells(self):
        return [cell for part in self.parts for cell in part.cells]

    @property
    def id(self):
        first = self.cells[0]
        return f"{self.kind}-{first.when}-{first.name}"

    @property
    def loses_or_kills_workers(self):
        """Whether a part of it takes several drivers per cell, or kills no driver: there the JVM
        lives on in the column ``all``, too."""
        return any(part.where == "worker" or part.needs.startswith("lost") for part in self.parts)


def reaches(failpoint, kind):
    """Whether a query with sinks of this kind can come to the failpoint."""
    if not failpoint.sinks:
        return True
    return any(part in failpoint.sinks for part in (KINDS_OF_ALL if kind == "all" else (kind,)))


def happens(failpoint, kind, when):
    """Whether it can be reached then; a folder of files doesn't take the output mode complete,
    so all sinks together don't either."""
    if when == "first" and failpoint.needs == "empty" and kind == "all":
        return False
    return failpoint.first if when == "first" else failpoint.recovery


def all_cells():
    """Every cell there is, in a fixed order."""
    for kind in KINDS:
        for when in ("first", "recovery"):
            for name, failpoint in sorted(CATALOGUE.items()):
                if reaches(failpoint, kind) and happens(failpoint, kind, when):
                    yield Cell(name, kind, when)


def units(wanted) -> Iterator[Unit]:
    """Group cells into chains: those whose queries have the same settings share one, up to so
    many."""
    parts = {}
    for cell in wanted:
        failpoint = CATALOGUE[cell.name]
        needs = failpoint.needs if cell.when == "first" else failpoint.recovery_needs
        where = "worker" if failpoint.where == "worker" else "driver"
        fresh = cell.when == "first" and cell.name.startswith(ONCE_PER_CHECKPOINT)
        parts.setdefault((cell.kind, cell.when, needs, where, fresh), []).append(cell)
    open_units = {}
    for (kind, when, needs, where, fresh), cells in parts.items():
        recipe = RECIPES[when, needs]
        alone = fresh or recipe.alone
        longest = 1 if fresh else recipe.longest_chain or LONGEST_CHAIN
        cells.sort(key=lambda cell: not AT_THE_START.match(cell.name))
        for at in range(0, len(cells), longest):
            part = Part(when, needs, where, cells[at : at + longest])
            if alone:
                yield Unit(kind, [part])
                continue
            settings = (kind, repr(recipe.config))
            unit = open_units.setdefault(settings, Unit(kind))
            unit.parts.append(part)
            if len(unit.cells) >= LONGEST_CHAIN:
                yield open_units.pop(settings)
    yield from open_units.values()


@dataclass
class CellResult:
    """What a cell came to; the numbers of rows are those of the judgement behind its chain."""

    cell: Cell
    reached: bool = False
    kills: int = 0
    recovery_s: float | None = None
    note: str = ""


def run(unit, folder, servers, watch_of, say):
    """Run a unit; return (results of its cells, the watch's verdict, the world)."""
    world = World(
        folder / unit.id,
        unit.kind,
        servers,
        **{
            "rows_per_batch": ROWS_PER_BATCH,
            # Records with headers or times go another way through the sink; each has its half.
            "plain": zlib.crc32(unit.id.encode()) % 2 == 0,
            **unit.parts[0].recipe.config,
        },
    )
    results = []
    with ExitStack() as stack:
        stack.callback(world.close)
        if unit.kind != "all" or unit.loses_or_kills_workers:
            world.machine = Machine(world.folder / "machine", world.sinks)
        watch = watch_of(world)
        stack.callback(watch.close)
        world.look = watch.look
        for part in unit.parts:
            these = [CellResult(cell) for cell in part.cells]
            results += these
            kill_in = part.recipe.workers if part.where == "worker" else part.recipe.driver
            for result in kill_in(world, part.when, these):
                watch.look()
                say(
                    f"{unit.id}: {result.cell.name}, {part.when}: "
                    f"{'killed' if result.reached else 'NOT REACHED: ' + result.note}"
                )
        world.heal()
        verdict = watch.quiet()
        verdict.violations += alarms(world)
    return results, verdict, world
