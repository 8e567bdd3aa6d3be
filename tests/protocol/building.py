"""Short ways to write events and states in tests of the pure protocol."""

from __future__ import annotations

from dataclasses import replace

from onceforall.protocol import decisions as do
from onceforall.protocol import events as saw
from onceforall.protocol.entries import Commit, Digest
from onceforall.protocol.history import EMPTY, Decided, History
from onceforall.protocol.machine import step
from onceforall.protocol.state import Run, RunConfig

CONFIG = RunConfig("query", "run", "/checkpoint", ("a", "b"))


def offsets(batch):
    return (f'{{"t":{batch}}}',)


def request(batch=0, stateful=False):
    return saw.BatchRequested(batch, offsets(batch), stateful)


def handle(name, **fields):
    return {"name": name, **fields}


def digests(batch, rows=10):
    return {"a/0": (Digest(rows, batch),)}


def commit(batch, **committables):
    return Commit(batch, offsets(batch), committables or {"a": (handle("a0"),)}, digests(batch))


def tasks_of(*sums, key="a/0"):
    """The digests of a write whose tasks have these sums of hashes, and as many rows each."""
    return {key: tuple(Digest(10, each) for each in sums)}


def history(batch, done=True, generation=0, index=1, **committables):
    return History(Decided(commit(batch, **committables), generation, index, done))


def prepared(batch=0, elapsed_ms=0, attempts_lost=False, **committables):
    return saw.WritesPrepared(
        committables or {"a": (handle("a0"),)}, digests(batch), elapsed_ms, attempts_lost
    )


def answers(*completed, retired=(), lost=(), in_doubt=()):
    missing = [tuple(saw.Lost("a", c, "PRODUCER_FENCED") for c in cs) for cs in (lost, in_doubt)]
    return saw.SinkAnswers(tuple(completed), tuple(retired), *missing)


def committed(*completed, sealed=False, **more):
    return saw.SinksCommitted({"a": answers(*completed, **more)}, sealed=sealed)


def task(name, partition=0, **fields):
    return handle(name, task=[0, partition], **fields)


class Walk:
    """A run that is fed with events; ``decisions`` are those of the last one."""

    def __init__(self, config=CONFIG, **changes):
        self.run = Run(replace(config, **changes))
        self.decisions = ()
        self.all = []
        self.phases = []

    def feed(self, *events):
        for event in events:
            self.phases.append(self.phase)
            self.run, self.decisions = step(self.run, event)
            self.all.extend(self.decisions)
        return self

    @property
    def phase(self):
        return type(self.run.phase)

    def only(self, kind):
        found = [d for d in self.decisions if isinstance(d, kind)]
        assert len(found) == 1, self.decisions
        return found[0]

    def stopped_with(self, error):
        stop = self.only(do.StopRun)
        return stop.error is error

    def sealing(self, asked=None, generation=1):
        """NEW to SEALING."""
        return self.feed(
            asked or request(),
            saw.LogInspected(None, own_sealed=False),
            saw.GenerationClaimed(generation, None),
        )

    def recovering(self, past=EMPTY, asked=None, spark_committed=-1):
        return self.sealing(asked).feed(saw.PastSealed(past, spark_committed))

    def redoing(self, *lost, stayed=(), asked=None, decided=None):
        """Recovery has lost these; NEW to FENCING_LOST. ``decided``: the digests that the
        decision has."""
        past = history(0, done=False, a=(*stayed, *lost))
        if decided is not None:
            past = History(
                replace(past.decided, commit=replace(past.decided.commit, digests=decided))
            )
        return self.recovering(past, asked).feed(
            saw.SinksRecovered({"a": answers(*stayed, lost=lost)})
        )

    def writing(self, past=EMPTY, asked=None):
        return self.recovering(past, asked).feed(saw.SinksRecovered({}))

    def deciding(self, event=None):
        return self.writing().feed(event or prepared())

    def committing(self, event=None):
        return self.deciding(event).feed(saw.DecisionAppended(1))

    def closing(self, event=None):
        return self.committing().feed(event or committed(handle("a0")))

    def ready(self):
        return self.closing().feed(saw.DoneAppended())

    def batch(self, batch, event=None, answer=None):
        """A whole batch from READY to READY."""
        event = event or prepared(batch)
        names = event.committables.get("a", ())
        return self.feed(
            request(batch),
            event,
            saw.DecisionAppended(1 + 2 * batch),
            answer or committed(*names),
            saw.DoneAppended(),
        )
