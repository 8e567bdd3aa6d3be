"""How drivers and workers are brought to a failpoint, and killed there: one recipe per value of ``needs`` in the failpoints' catalogue."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from onceforall.sinks.kafka.coordinator_client import CoordinatorClient
from onceforall.sinks.postgres.names import staging_table
from support.waiting import until

TESTS = Path(__file__).parents[1]
BATCHES_TO_REACH_IT = 8
LIFE_S = 240
"""A bound, not a wait: a driver of a few batches takes 8 s on two quiet cores."""

AT_THE_START = re.compile(
    r"(start|bind|inspect|claim|log\.claim|seal|log\.seal|log\.mark|recover|store\.folder|file\.check|file\.folder|kafka\.check|postgres\.check)\b"
)
LEFT_UNDECIDED = re.compile(r"(\.recover\.|\.remove\.|\.retire\.|fence\.|sweep)")

DECIDED = "append_commit.after"
UNDECIDED = "append_commit.before"


@dataclass(frozen=True)
class Recipe:
    """How to reach a failpoint with a plain append batch, or behind a driver that was killed; others derive from it.

    Attributes:
        config: of the world's workload.
        beside: failpoints that act before, so that this one is reached.
        beside_in_workers: the same for workers' failpoints, where it is another.
        left_at: where a driver is killed before one that recovers.
        longest_chain: how many cells one query is used for.
        alone: its query is used for nothing else.
        batches: how many it may take until a driver comes there.
    """

    config: dict = field(default_factory=dict)
    beside: str = ""
    left_at: str = DECIDED
    beside_in_workers: str | None = None
    longest_chain: int = 0
    batches: int = BATCHES_TO_REACH_IT
    alone: bool = False

    # --- drivers -----------------------------------------------------------------------------------------------------------------

    def driver(self, world, when, results):
        """Kill a driver at each result's failpoint; yields each when it is known."""
        self.prepare(world)
        killed = None
        for result in results:
            for attempt in self._attempts(world, when, result.cell.name):
                life = attempt()
                ended = life.wait_for_end(LIFE_S)
                result.reached = life.acted(result.cell.name)
                if result.reached:
                    break
                result.note = (life.errors() or ["its query went on"])[-1][-300:]
            if killed is not None:
                _measure(world, *killed, before=ended)
            killed = (result, ended) if result.reached else None
            if result.reached:
                result.kills = 1
                world.tally.kills[world.driver_kind] += 1
                world.tally.faults[f"driver killed at a failpoint ({when})"] += 1
            yield result
        if killed is not None:
            _measure(world, *killed, before=None)

    def _attempts(self, world, when, name):
        """The ways to come to it, the likely one first."""
        if when == "first":
            ways = [lambda: self._armed(world, name), lambda: self._from_the_start(world, name)]
            return reversed(ways) if AT_THE_START.match(name) else ways
        return [lambda: self._recovering(world, name)]

    def _armed(self, world, name):
        """In a batch, behind another one of the same run."""
        return self._live(world, armed=self._points(name))

    def _from_the_start(self, world, name):
        """In a run that finds nothing in doubt."""
        if world.is_in_doubt():
            self.heal(world)
        return self._live(world, self._points(name))

    def _recovering(self, world, name):
        """In a run that finds what ``leave`` left."""
        self.leave(world)
        return self._live(world, self._points(name))

    def _points(self, name):
        return ";".join(filter(None, (f"{name}=kill", self.beside)))

    def _live(self, world, failpoints="", **config):
        return world.start(failpoints, until_batch=world.spark_batches() + self.batches, **config)

    def leave(self, world):
        """Have a driver killed right before or behind a decision, unless such a batch is there already."""
        if self.left_at == DECIDED and world.is_in_doubt():
            return
        self._leave_anew(world)

    def _leave_anew(self, world):
        life = self._live(world, armed=f"{self.left_at}=kill")
        life.wait_for_end(LIFE_S)
        assert life.acted(self.left_at), f"no driver could be killed at {self.left_at}: {life.tail()}"
        world.tally.kills[world.driver_kind] += 1
        world.tally.faults[f"driver killed {'behind' if self.left_at == DECIDED else 'before'} a decision"] += 1

    # --- workers -----------------------------------------------------------------------------------------------------------------

    def workers(self, world, when, results):
        """Kill a Python worker at each result's failpoint, while one driver starts the query again each time."""
        self.prepare(world)
        if when == "recovery":
            self.leave(world)
        names = [result.cell.name for result in results]
        beside = self.beside if self.beside_in_workers is None else self.beside_in_workers
        points = ";".join(filter(None, [*(f"{name}=kill" for name in names), beside]))
        life = world.start(points, restarts=4 * len(names) + 4)
        self._until_all_acted(world, life, names)
        world.stop(life)
        for result in results:
            result.reached = life.acted(result.cell.name)
            if result.reached:
                result.kills = 1
                world.tally.kills["worker"] += 1
                world.tally.faults[f"worker killed at a failpoint ({when})"] += 1
                result.recovery_s = world.completed_after((life.seen / result.cell.name).stat().st_mtime)
            else:
                result.note = (life.errors() or ["its query went on"])[-1][-300:]
            yield result

    @staticmethod
    def _until_all_acted(world, life, names):
        progress = {"acted": -1, "batch": 0}

        def is_over():
            acted = sum(life.acted(name) for name in names)
            batch = world.newest("DONE")
            if acted != progress["acted"]:
                progress.update(acted=acted, batch=batch)
            return acted == len(names) or batch >= progress["batch"] + BATCHES_TO_REACH_IT or life.process.poll() is not None

        until(is_over, LIFE_S, f"workers reach {names}\n{life.tail()}")

    def prepare(self, world):
        """What must be there before the first driver."""

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def heal(self, world):
        """A driver without faults."""
        world.heal()


def _measure(world, result, killed_at, before):
    seconds = world.completed_after(killed_at)
    if seconds is not None and (before is None or killed_at + seconds < before):
        result.recovery_s = round(seconds, 2)


class Lost(Recipe):
    """Something that is decided is lost before the next driver starts, as a Kafka transaction by its time-out; it is written again."""

    def leave(self, world):
        super().leave(world)
        of = ("files",) if self.left_at.startswith("file.") else tuple(world.sinks)
        while not lose(world, of):
            # What was decided is complete, or lost already.
            self._leave_anew(world)


def lose(world, of):
    """Destroy one transaction of the batch in doubt in one of these sinks; return whether there was one."""
    found = [entry for entry in world.entries("COMMIT") if entry[1]["batch"] == world.newest("COMMIT")]
    for sink in of:
        committables = found[-1][1]["committables"].get(sink, ())
        if any(LOSE[sink](world, committable) for committable in committables):
            world.tally.faults[f"decided transaction lost ({sink})"] += 1
            return True
    return False


def _lose_in_kafka(world, committable):
    client = CoordinatorClient(world.servers.direct)
    try:
        return not client.fence([committable["name"]]).missing
    finally:
        client.close()


def _lose_files(world, committable):
    staged = Path(world.config["files"]) / "_onceforall" / "staging" / committable["name"]
    files = [file for file in staged.rglob("*") if file.is_file()]
    for file in files:
        file.unlink()
    return bool(files)


def _lose_in_postgres(world, committable):
    """Roll a prepared transaction back, or drop a staging table, behind the library's back."""
    with psycopg.connect(world.database, autocommit=True) as connection:
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()").fetchall():
            if gid == committable["name"]:
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
                return True
        table = staging_table(committable["name"])
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = %s", [table]).fetchone()
        if found:
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(found[0], table)))
        return found is not None


LOSE = {"kafka": _lose_in_kafka, "files": _lose_files, "postgres": _lose_in_postgres}
