"""What the commit log says: the kinds of entry, as frozen values, and their JSON bodies.

Pure: these values neither know where they are stored nor which nonce and checksum surround them
(``commit_log`` adds those). An entry's body is a JSON object of strings, numbers, lists and
objects; what one release writes, every later one reads, so a field is never renamed or given
another meaning: a new one is added, with a default for bodies that lack it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

Committable = Mapping[str, Any]
"""A small JSON object, made by a sink's ``pre_commit``: it names a prepared transaction that
another process can complete.

Its field ``name`` is the transaction's name in the world, unique within the sink; the other fields
are the sink's own.
"""


@dataclass(frozen=True)
class Digest:
    """What one task wrote in one write: the number of rows and the sum of their ``xxhash64``
    modulo 2^64.
    """

    rows: int
    hash_sum: int


def total(digests: tuple[Digest, ...]) -> Digest:
    """Add up the digests of all tasks of a write."""
    return Digest(sum(d.rows for d in digests), sum(d.hash_sum for d in digests) % 2**64)


@dataclass(frozen=True)
class Claim:
    """Entry 0 of a chain: a run of the query owns this generation.

    Attributes:
        query_id: Spark's query id.
        run_id: Spark's run id.
        checkpoint: the checkpoint's path.
        owner: who runs this, for people.
        host: the name of the machine.
        boot_id: of this machine, since it was last started.
        storage: what is known of the file system of the checkpoint, by key.
        kinds: the run's sinks: by name, of which kind each is. These four are empty in entries of
            earlier releases.
    """

    kind: ClassVar[str] = "CLAIM"
    query_id: str
    run_id: str
    checkpoint: str
    owner: str = ""
    host: str = ""
    boot_id: str = ""
    storage: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        known = {
            "query_id": self.query_id,
            "run_id": self.run_id,
            "checkpoint": self.checkpoint,
            "owner": self.owner,
        }
        place = {"host": self.host, "boot_id": self.boot_id, "storage": dict(self.storage)}
        later = {**place, "kinds": dict(self.kinds)}
        return {**known, **{key: value for key, value in later.items() if value}}


@dataclass(frozen=True)
class Target:
    """Where a sink's rows go, and how far they reach there, as a decision has it
    (``protocol.identity``).

    Attributes:
        identity: what tells the target from any other under the same name and address; None:
            nothing is known.
        batch: the last decided batch that wrote to the sink; None: not known.
        after: the one before that; None: not known, or there is none.
        adopted: the body of the target that was given up for this one by a user's word; None: none
            was.
        place: where in the target the sink keeps what tells of ``batch``; None: not known.
        after_place: the same of ``after``.
    """

    identity: Mapping[str, Any] | None = None
    batch: int | None = None
    after: int | None = None
    adopted: Mapping[str, Any] | None = None
    place: Mapping[str, Any] | None = None
    after_place: Mapping[str, Any] | None = None

    def place_of(self, batch: int | None) -> Mapping[str, Any] | None:
        """Return where the sink keeps what tells of a batch; None: not known."""
        if batch == self.batch:
            return self.place
        return self.after_place if batch == self.after else None

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        position = {
            name: value
            for name, value in (("batch", self.batch), ("after", self.after))
            if value is not None
        }
        known = {} if self.identity is None else {"identity": dict(self.identity)}
        adopted = {} if self.adopted is None else {"adopted": dict(self.adopted)}
        places = {
            name: dict(value)
            for name, value in (("place", self.place), ("after_place", self.after_place))
            if value is not None
        }
        return {**known, "position": position, **adopted, **places}


def _target(body: Mapping[str, Any]) -> Target:
    def table(name: str) -> dict[str, Any] | None:
        return None if body.get(name) is None else dict(body[name])

    position = body.get("position", {})
    batch, after = position.get("batch"), position.get("after")
    return Target(
        table("identity"),
        None if batch is None else int(batch),
        None if after is None else int(after),
        table("adopted"),
        table("place"),
        table("after_place"),
    )


@dataclass(frozen=True)
class Commit:
    """The decision: this batch, read from these offsets, is committed on every sink.

    Attributes:
        batch: Spark's batch id.
        offsets: what Spark's offset log says of the batch's end, a JSON string per source (``-``
            where a source has none).
        committables: per sink name, the prepared transactions; a sink that got no rows has none.
        digests: per write (sink name, ordinal), the digest of each task by its number. That is
            Spark's partition number; a redo gives tasks that stand for lost ones the number of
            these, or a new one.
        losses: of this batch and of all before it, what a person has chosen for rows that were lost
            and could not be written again as they were (``redo.record``); each decision hands them
            on.
        targets: per sink name, where its rows go and how far they reach; also of sinks without rows
            in this batch, so that the last decision that names a sink is always the last decision.
            Empty in the entries of earlier releases.
        header: the lines before the offsets in Spark's offset log: version, and metadata of the
            batch. With them the batch's plan can be put back where Spark has lost it. Empty in
            entries of earlier releases.
        kinds: per sink name, the kind of the sink that has prepared its transactions
            (``TwoPhaseCommitSink.kind``): no other kind can complete them. Empty in entries of
            earlier releases.
    """

    kind: ClassVar[str] = "COMMIT"
    batch: int
    offsets: tuple[str, ...]
    committables: Mapping[str, tuple[Committable, ...]]
    digests: Mapping[str, tuple[Digest, ...]] = field(default_factory=dict)
    losses: tuple[Mapping[str, Any], ...] = ()
    targets: Mapping[str, Target] = field(default_factory=dict)
    header: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the JSON body; hash sums are hexadecimal, for readers whose numbers end at
        2^53.
        """
        targets = (
            {"targets": {sink: target.body() for sink, target in self.targets.items()}}
            if self.targets
            else {}
        )
        return {
            "batch": self.batch,
            "offsets": list(self.offsets),
            "committables": {sink: [dict(c) for c in cs] for sink, cs in self.committables.items()},
            "digests": {
                write: [[d.rows, f"{d.hash_sum:016x}"] for d in ds]
                for write, ds in self.digests.items()
            },
            **({"losses": [dict(loss) for loss in self.losses]} if self.losses else {}),
            **targets,
            **({"header": list(self.header)} if self.header else {}),
            **({"kinds": dict(self.kinds)} if self.kinds else {}),
        }


@dataclass(frozen=True)
class Done:
    """The decided batch is complete on every sink; it must never be completed again."""

    kind: ClassVar[str] = "DONE"
    batch: int

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        return {"batch": self.batch}


@dataclass(frozen=True)
class Seal:
    """Nothing follows in this chain, and every chain below it was sealed before it.

    It carries what all chains up to and including this one have decided, so that a start reads one
    seal instead of every chain. That is a function of immutable entries: whoever seals, writes the
    same.

    Attributes:
        decided_generation: the generation whose chain holds the last decision, or None when nothing
            was ever decided.
        decided_index: the index of that COMMIT in its chain.
        done: whether that decision's DONE is in these chains.
    """

    kind: ClassVar[str] = "SEAL"
    decided_generation: int | None
    decided_index: int | None
    done: bool

    def body(self) -> dict[str, Any]:
        """Return the JSON body."""
        return {
            "decided_generation": self.decided_generation,
            "decided_index": self.decided_index,
            "done": self.done,
        }


Entry = Claim | Commit | Done | Seal


def entry_from_body(kind: str, body: Mapping[str, Any]) -> Entry:
    """Read an entry back.

    Args:
        kind: one of ``CLAIM``, ``COMMIT``, ``DONE``, ``SEAL``.
        body: the JSON object that ``body()`` of that kind gave, by this release or an earlier one.

    Raises:
        KeyError, TypeError, ValueError: the body is not one; the caller knows the file and says so.
    """
    if kind == Claim.kind:
        return Claim(
            str(body["query_id"]),
            str(body["run_id"]),
            str(body["checkpoint"]),
            str(body.get("owner", "")),
            host=str(body.get("host", "")),
            boot_id=str(body.get("boot_id", "")),
            storage={str(key): str(value) for key, value in body.get("storage", {}).items()},
            kinds={str(name): str(kind) for name, kind in body.get("kinds", {}).items()},
        )
    if kind == Commit.kind:
        return Commit(
            batch=int(body["batch"]),
            offsets=tuple(str(o) for o in body["offsets"]),
            committables={
                str(sink): tuple(dict(c) for c in cs) for sink, cs in body["committables"].items()
            },
            digests={
                str(write): tuple(Digest(int(rows), int(hash_sum, 16)) for rows, hash_sum in ds)
                for write, ds in body.get("digests", {}).items()
            },
            losses=tuple(dict(loss) for loss in body.get("losses", ())),
            targets={
                str(sink): _target(target) for sink, target in body.get("targets", {}).items()
            },
            header=tuple(str(line) for line in body.get("header", ())),
            kinds={str(sink): str(kind) for sink, kind in body.get("kinds", {}).items()},
        )
    if kind == Done.kind:
        return Done(int(body["batch"]))
    if kind == Seal.kind:
        generation, index = body["decided_generation"], body["decided_index"]
        return Seal(
            None if generation is None else int(generation),
            None if index is None else int(index),
            bool(body["done"]),
        )
    raise ValueError(f"unknown kind of entry {kind!r}")
