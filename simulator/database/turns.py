"""Whose turn it is: threads that stop before each statement until the schedule lets them go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import psycopg

from simulator.violation import Violation

if TYPE_CHECKING:
    from simulator.database.server import Server

_LOOKS_EVERY_S = 0.0005
_STUCK_AFTER_S = 30.0
_ENDS_IT = ("COMMIT", "PREPARE TRANSACTION")
_MATTERS = (*_ENDS_IT, "ROLLBACK PREPARED", "DROP", "decides", "done")


class Killed(BaseException):
    """The process is killed in front of a statement."""


@dataclass(eq=False)
class Actor:
    """A process of the schedule: a driver, or a task's attempt.

    Attributes:
        name: for the story.
        goes: may go on.
        when: what it waits for within its own process; None: for nothing.
        at: the statement in front of which it stands; None: it is on its way.
        pid: the server's session that it works in.
        connections: all that it has opened.
        is_over: it has ended.
        error: with which it ended, if nobody expected that.
        priority: the higher, the sooner it gets its turn, where the schedule goes by priorities.
    """

    name: str
    goes: threading.Event = field(default_factory=threading.Event)
    when: Callable[[], bool] | None = None
    at: str | None = None
    pid: int = 0
    connections: list[psycopg.Connection[Any]] = field(default_factory=list)
    is_over: bool = False
    is_killed: bool = False
    error: BaseException | None = None
    priority: float = 0.0

    @property
    def stands(self) -> bool:
        """It is in front of a statement, or waits within its process."""
        return self.at is not None


class Turns:
    """Gives turns to the actors of one schedule."""

    def __init__(self, rng: Random, server: Server, *, faults: float, tell: bool) -> None:
        """No actor yet.

        Args:
            rng: of the schedule.
            server: on which it is played.
            faults: how likely an actor is killed at a step, or a COMMIT's answer is lost.
            tell: keep the story.
        """
        self.rng = rng
        self.server = server
        self.calm = False
        self.steps = 0
        self.counts: dict[str, int] = {}
        self.story: list[str] | None = [] if tell else None
        self.actors: list[Actor] = []
        self._faults = faults
        self._by_priority = rng.random() < 0.7
        self._pauses = rng.choice((0.1, 0.4))
        self._changes = rng.choice((0.02, 0.1, 0.3))
        self._of_thread: dict[int, Actor] = {}
        self._arrived = threading.Condition()
        self._doomed: set[int] = set()
        self._watch: Callable[[], None] = lambda: None
        self._must_look = True

    def watch(self, look: Callable[[], None]) -> None:
        """Call something before each step that follows what may have changed the table."""
        self._watch = look

    def tell(self, words: str) -> None:
        """Add to the story."""
        if self.story is not None:
            self.story.append(words)

    def count(self, what: str) -> None:
        """Count what happened."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self.tell(what)

    # --- in the threads of the actors -------------------------------------------------------------

    def start(
        self, name: str, work: Callable[[], None], when: Callable[[], bool] | None = None
    ) -> Actor:
        """Begin an actor; it stands until it has its first turn, and something is so."""
        actor = Actor(name, at="begins", when=when, priority=self.rng.random())
        self.actors.append(actor)

        def run() -> None:
            self._of_thread[threading.get_ident()] = actor
            try:
                actor.goes.wait()
                self._go(actor)
                work()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001  the schedule raises it
                actor.error = error
            finally:
                with self._arrived:
                    actor.is_over = True
                    actor.at = None
                    self._arrived.notify_all()

        threading.Thread(target=run, name=name, daemon=True).start()
        return actor

    def gate(self, what: str, pid: int = 0) -> None:
        """Stand until it is this thread's turn.

        Raises:
            Killed: its process is killed here.
        """
        self._stand(what, pid, None)

    def until(self, what: str, when: Callable[[], bool]) -> None:
        """Stand until something is so within one's own process."""
        self._stand(what, 0, when)

    def _stand(self, what: str, pid: int, when: Callable[[], bool] | None) -> None:
        actor = self._of_thread[threading.get_ident()]
        if actor.is_killed:
            self._go(actor)
        with self._arrived:
            actor.at, actor.when = what, when
            actor.pid = pid or actor.pid
            self._arrived.notify_all()
        actor.goes.wait()
        self._go(actor)

    def _go(self, actor: Actor) -> None:
        if actor.is_killed:
            for connection in actor.connections:
                connection.pgconn.finish()
            raise Killed
        actor.goes.clear()

    def opened(self, connection: psycopg.Connection[Any]) -> None:
        """Take note of a connection of this thread's actor."""
        self._of_thread[threading.get_ident()].connections.append(connection)

    def loses(self, statement: str) -> str | None:
        """Return what is lost with the connection: ``"request"`` or ``"answer"``."""
        if self.calm or not statement.startswith(_ENDS_IT):
            return None
        if self.rng.random() >= 6 * self._faults:
            return None
        return self.rng.choice(("request", "answer"))

    # --- in the schedule's own --------------------------------------------------------------------

    def play(self, until: Callable[[], bool] | None = None) -> None:
        """Give turns until all actors have ended, or something is so.

        Raises:
            Violation: nobody can go on, or an actor raised what nobody expected.
        """
        last_s = time.monotonic()
        while True:
            self._settle()
            for actor in self.actors:
                if actor.error is not None:
                    raise actor.error
            if self._must_look:
                self._must_look = False
                self._watch()
            if until is not None and until():
                return
            living = [a for a in self.actors if not a.is_over]
            if not living:
                return
            ready = [a for a in living if a.stands and (a.when is None or a.when())]
            if not ready:
                if all(a.at == "begins" for a in living):
                    return  # what they wait for never comes
                if time.monotonic() - last_s > _STUCK_AFTER_S:
                    stand = ", ".join(f"{a.name} at {a.at}" for a in living)
                    raise Violation(f"nobody can go on: {stand}")
                time.sleep(_LOOKS_EVERY_S)
                continue
            self._let_go(self._choose(ready))
            last_s = time.monotonic()

    def end(self) -> None:
        """Kill all that still live."""
        for actor in self.actors:
            if not actor.is_over:
                self._kill(actor)
        self._settle()

    def _choose(self, ready: list[Actor]) -> Actor:
        if not self._by_priority:
            return self.rng.choice(ready)
        chosen = max(ready, key=lambda a: a.priority)
        if str(chosen.at).startswith(_MATTERS) and self.rng.random() < self._pauses:
            chosen.priority = self.rng.random() - 2.0
            chosen = max(ready, key=lambda a: a.priority)
        # A few changes of priority find what needs a certain order (PCT, Burckhardt et al. 2010).
        if self.rng.random() < self._changes:
            chosen.priority = self.rng.random() - 1.0
        return chosen

    def _let_go(self, actor: Actor) -> None:
        self.steps += 1
        if not self.calm and self.rng.random() < self._faults:
            self.count(f"kill of {actor.name.split()[0]}")
            self.tell(f"{actor.name} is killed before {actor.at}")
            self._kill(actor)
            return
        if self.story is not None and actor.when is None:
            self.tell(f"{actor.name}: {actor.at}")
        what = actor.at or ""
        self._must_look = self._must_look or what.startswith(("COMMIT", "PREPARE", "ROLLBACK"))
        self._must_look = self._must_look or what.startswith(("decide", "done", "begins"))
        with self._arrived:
            actor.at = None
        actor.goes.set()

    def _kill(self, actor: Actor) -> None:
        self._doomed |= {
            c.info.backend_pid for c in actor.connections if not c.closed and c.pgconn.status == 0
        }
        actor.is_killed = True
        with self._arrived:
            actor.at = None
        actor.goes.set()

    def _settle(self) -> None:
        """Wait until every actor stands, has ended, or waits for a lock in the server."""
        deadline_s = time.monotonic() + _STUCK_AFTER_S
        while True:
            with self._arrived:
                running = [a for a in self.actors if not a.is_over and a.at is None]
                if running and not all(a.pid for a in running):
                    self._arrived.wait(_LOOKS_EVERY_S)
                    continue
                if running:
                    self._arrived.wait(_LOOKS_EVERY_S)
                    running = [a for a in self.actors if not a.is_over and a.at is None]
            if running:
                waiting = self.server.waiting([a.pid for a in running])
                running = [a for a in running if a.pid not in waiting or a.at is not None]
                running = [a for a in running if not a.is_over and a.at is None]
            if not running:
                break
            if time.monotonic() > deadline_s:
                raise Violation(f"{running[0].name} comes to no end")
        while self._doomed and self.server.alive(self._doomed):
            time.sleep(_LOOKS_EVERY_S)
        self._doomed.clear()
