"""How drivers and workers are brought to a failpoint, and killed there: one recipe per value of
``needs`` in the failpoints' catalogue."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from psycopg import sql

from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from onceforall.sinks.postgres.names import staging_table
from sinks.files_hdfs.folder import HdfsFolder
from sinks.files_s3.place import Prefix
from support.waiting import until

TESTS = Path(__file__).parents[1]
BATCHES_TO_REACH_IT = 8
ROUNDS_OF_WORKERS = 3
LIFE_S = 240
"""A bound, not a wait: a driver of a few batches takes 8 s on two quiet cores."""

AT_THE_START = re.compile(
    r"(start|bind|inspect|claim|log\.claim|seal|log\.seal|log\.mark|recover|store\.folder|file\.check|file\.folder|kafka\.check|postgres\.check)\b"
)
BEHIND_DONE = re.compile(
    r"(return_batch|append_done\.after|log\.append\.after|store\.create|retire|\w+\.retire|kept\.forget)\b"
)
"""Failpoints of a batch that are passed when its DONE is there already."""

DECIDED = "append_commit.after"
UNDECIDED = "append_commit.before"


@dataclass(frozen=True)
class Recipe:
    """How to reach a failpoint with a plain append batch, or behind a driver that was killed;
    others derive from it.

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

    # --- drivers ----------------------------------------------------------------------------------

    def driver(self, world, when, results):
        """Kill a driver at each result's failpoint; yields each when it is known."""
        self.prepare(world)
        killed = None
        for result in results:
            for attempt in self._attempts(world, when, result.cell.name):
                life = attempt()
                ended = life.wait_for_end(LIFE_S)
                # The file says that somebody came there; that it was the driver, its end says.
                result.reached = (
                    life.acted(result.cell.name)
                    and life.was_killed
                    and self._fits(world, life, when, result.cell.name)
                )
                if life.was_killed:
                    world.tally.kills[world.driver_kind] += 1
                if result.reached:
                    break
                result.note = _why_not(life, result.cell.name)
            if killed is not None:
                _measure(world, *killed, before=ended)
            killed = (result, ended) if result.reached else None
            if result.reached:
                result.kills = 1
                world.tally.faults[f"driver killed at a failpoint ({when})"] += 1
            yield result
        if killed is not None:
            _measure(world, *killed, before=None)

    def _attempts(self, world, when, name):
        """The ways to come to it, the likely one first."""
        if when == "first":
            ways = [lambda: self._armed(world, name), lambda: self._from_the_start(world, name)]
            return reversed(ways) if AT_THE_START.match(name) else ways
        # What the driver before was killed in may have gone too far for this one.
        return [
            lambda: self._recovering(world, name),
            lambda: self._recovering(world, name, anew=True),
        ]

    def _armed(self, world, name):
        """In a batch, behind another one of the same run."""
        return self._live(world, armed=self._points(name))

    def _from_the_start(self, world, name):
        """In a run that finds nothing in doubt."""
        if world.drivers and (world.is_in_doubt() or world.drivers[-1].process.poll() != 0):
            world.heal(1)
        return self._live(world, self._points(name))

    def _recovering(self, world, name, *, anew=False):
        """In a run that finds what ``leave`` left."""
        if anew:
            self._leave_anew(world)
        self.leave(world)
        return self._live(world, self._points(name))

    def _points(self, name):
        return ";".join(filter(None, (f"{name}=kill", self.beside)))

    def _live(self, world, failpoints="", **config):
        life = world.start(failpoints, until_batch=world.spark_batches() + self.batches, **config)
        life.left = world.newest("COMMIT")
        return life

    def _fits(self, world, life, when, name):
        """Whether it was in the recovery that a process came there: before the first batch that
        the run writes itself is complete."""
        if when == "first":
            return True
        at = (life.seen / name).stat().st_mtime
        return not any(
            body["batch"] > life.left and done < at for done, body in world.entries("DONE")
        )

    def leave(self, world):
        """Have a driver killed right before or behind a decision, unless such a batch is there
        already."""
        if self.left_at == DECIDED and world.is_in_doubt():
            return
        self._leave_anew(world)

    def _leave_anew(self, world):
        point = f"{self.left_at}=kill"
        # Behind a batch, or at the first one of all, so that what happens once per folder is left
        # to the recovery.
        life = self._live(world, armed=point) if world.spark_batches() else self._live(world, point)
        life.wait_for_end(LIFE_S)
        assert life.died_at(self.left_at), (
            f"no driver could be killed at {self.left_at}: {life.tail()}"
        )
        world.tally.kills[world.driver_kind] += 1
        world.tally.faults[
            f"driver killed {'behind' if self.left_at == DECIDED else 'before'} a decision"
        ] += 1

    # --- workers ----------------------------------------------------------------------------------

    def workers(self, world, when, results):
        """Kill a Python worker at each result's failpoint, while one driver starts the query
        again each time."""
        self.prepare(world)
        for _ in range(ROUNDS_OF_WORKERS):
            missing = [result for result in results if not result.reached]
            if not missing:
                break
            self._kill_workers(world, when, missing)
        yield from results

    def _kill_workers(self, world, when, results):
        if when == "recovery":
            self.leave(world)
        names = [result.cell.name for result in results]
        beside = self.beside if self.beside_in_workers is None else self.beside_in_workers
        points = ";".join(filter(None, [*(f"{name}=kill" for name in names), beside]))
        life = world.start(points, restarts=4 * len(names) + 4)
        life.left = world.newest("COMMIT")
        self._until_all_acted(world, life, names)
        world.stop(life)
        times = {name: (life.seen / name).stat().st_mtime for name in names if life.acted(name)}
        world.tally.kills["worker"] += len(times)
        for result in results:
            name = result.cell.name
            result.reached = name in times and self._fits(world, life, when, name)
            result.kills = int(name in times)
            if result.reached:
                world.tally.faults[f"worker killed at a failpoint ({when})"] += 1
                following = min((at for at in times.values() if at > times[name]), default=None)
                _measure(world, result, times[name], following)
            else:
                result.note = _why_not(life, name)

    @staticmethod
    def _until_all_acted(world, life, names):
        progress = {"acted": -1, "batch": 0}

        def is_over():
            acted = sum(life.acted(name) for name in names)
            batch = world.newest("DONE")
            if acted != progress["acted"]:
                progress.update(acted=acted, batch=batch)
                world.look()
            return (
                acted == len(names)
                or batch >= progress["batch"] + BATCHES_TO_REACH_IT
                or life.process.poll() is not None
            )

        until(is_over, LIFE_S, f"workers reach {names}\n{life.tail()}")

    def prepare(self, world):
        """What must be there before the first driver."""

    # --- the end ----------------------------------------------------------------------------------

    def heal(self, world):
        """A driver without faults."""
        world.heal()


def _why_not(life, name):
    """Why a cell was not reached, in short: the plan and the trace that Spark writes behind an
    error are of no help."""
    if life.errors():
        return "its query failed: " + life.errors()[-1][:600]
    return (
        "its process came there, but not in that part of its life"
        if life.acted(name)
        else "nobody came there"
    )


def _measure(world, result, killed_at, before):
    seconds = world.completed_after(killed_at)
    if seconds is not None and (before is None or killed_at + seconds < before):
        result.recovery_s = round(seconds, 2)


class Lost(Recipe):
    """Something that is decided is lost before the next driver starts, as a Kafka transaction by
    its time-out; it is written again."""

    def leave(self, world):
        super().leave(world)
        if world.is_in_doubt() and newest_decision(world) == world.lost:
            # Lost already, and the drivers that were to write it again were killed.
            return
        sinks = (
            ["files"]
            if self.left_at.startswith("file.")
            else world.sinks[world.losses % len(world.sinks) :] + world.sinks
        )
        world.losses += 1
        for _ in range(3):
            if lose(world, sinks):
                world.lost = newest_decision(world)
                return
            # What was decided is complete.
            self._leave_anew(world)
        raise AssertionError(f"nothing that is decided could be lost in {sinks}")

    def _fits(self, world, life, when, name):
        """Whether it was before the lost batch was complete, but for what comes right behind
        that."""
        at = (life.seen / name).stat().st_mtime
        left = life.left + (1 if BEHIND_DONE.match(name) else 0)
        return not any(body["batch"] >= left and done < at for done, body in world.entries("DONE"))


def newest_decision(world):
    """The time and the batch of the decision that counts."""
    found = [(at, body["batch"]) for at, body in world.entries("COMMIT")]
    return max(found, key=lambda each: (each[1], each[0]), default=None)


def lose(world, sinks):
    """Destroy one transaction of the batch in doubt in the first of these sinks that has one;
    return whether there was one."""
    found = [body for _, body in world.entries("COMMIT") if body["batch"] == world.newest("COMMIT")]
    for sink in sinks:
        committables = found[-1]["committables"].get(sink, ())
        if any(LOSE[sink](world, committable) for committable in committables):
            world.tally.faults[f"decided transaction lost ({sink})"] += 1
            return True
    return False


def _lose_in_kafka(world, committable):
    name = committable["name"]
    client = CoordinatorClient(world.servers.direct)
    try:
        return name in client.open_transactions() and client.fence([name]).codes.get(name) == 0
    finally:
        client.close()


def _lose_files(world, committable):
    if world.config["files"].startswith("hdfs:"):
        return HdfsFolder(world.config["files"]).lose(committable)
    if world.config["files"].startswith("s3a:"):
        bucket, _, key = world.config["files"].partition("://")[2].partition("/")
        return Prefix(bucket, world.place.store, key).lose(committable) > 0
    staged = Path(world.config["files"]) / "_onceforall" / "staging" / committable["name"]
    files = [file for file in staged.rglob("*") if file.is_file()]
    for file in files:
        file.unlink()
    return bool(files)


def _lose_in_postgres(world, committable):
    """Roll a prepared transaction back, or drop a staging table, behind the library's back."""
    with psycopg.connect(world.database, autocommit=True) as connection:
        for (gid,) in connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        ).fetchall():
            if gid == committable["name"]:
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
                return True
        table = staging_table(committable["name"])
        found = connection.execute(
            "SELECT schemaname FROM pg_tables WHERE tablename = %s", [table]
        ).fetchone()
        if found:
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(found[0], table)))
        return found is not None


LOSE = {"kafka": _lose_in_kafka, "files": _lose_files, "postgres": _lose_in_postgres}
