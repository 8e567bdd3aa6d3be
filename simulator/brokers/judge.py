"""Judges what the sink says by what the simulated cluster knows to be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from onceforall.sink import CommitReport
from simulator.brokers.records import Partition
from simulator.brokers.world import Truth, World
from simulator.violation import Violation

Committables = Sequence[Mapping[str, Any]]


class Judge:
    """Raises ``Violation`` for what is false.

    Attributes:
        decision: the last decided batch, as the commit log has it, until its DONE.
        reports: how many transactions the sink has reported, by kind of report.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.decision: list[dict[str, Any]] = []
        self.reports: Counter[str] = Counter()

    def report(
        self, report: CommitReport, asked: Committables, hidden: Collection[Partition]
    ) -> None:
        """Judge the answer to a commit.

        Args:
            report: the answer.
            asked: what was to be committed.
            hidden: partitions of which an old leader may have told.

        Raises:
            Violation: something in it is false, or called in doubt without need.
        """
        world = self._world
        for each in (*report.lost, *report.in_doubt):
            world.tell(each.reason)
        lost = [each.committable for each in report.lost]
        in_doubt = [each.committable for each in report.in_doubt]
        reported = [*report.completed, *report.retired, *lost, *in_doubt]
        if sorted(int(c["transaction"]) for c in reported) != sorted(
            int(c["transaction"]) for c in asked
        ):
            raise Violation("a transaction is missing in the report, or twice in it")
        for words, committables in (
            ("completed", report.completed),
            ("retired", report.retired),
            ("lost", lost),
            ("in doubt", in_doubt),
        ):
            for committable in committables:
                self.reports[words] += 1
                if words == "completed" and committable.get("doubtful"):
                    raise Violation(f"{committable['name']} may go on, though its task had doubt")
                truth = world.truths[int(committable["transaction"])]
                world.tell(f"transaction {truth.number} is reported as {words}")
                self._one(truth, words, hidden)

    def _one(self, truth: Truth, words: str, hidden: Collection[Partition]) -> None:
        where = f"transaction {truth.number} ({truth.name})"
        if words in {"completed", "retired"}:
            if truth.end != "commit":
                raise Violation(f"{where} is called committed, and its end is {truth.end}")
            truth.claim = "committed"
        elif words == "lost":
            if truth.end != "abort":
                raise Violation(f"{where} is called lost, and its end is {truth.end}")
            truth.claim = "lost"
            if any(self._world.visible_of(truth).values()):
                raise Violation(f"{where} is called lost, and is visible")
        elif not truth.whole:
            # What a person says of it then, once the whole topic has gone, may be that it is over.
            truth.claim = "in doubt"
        elif truth.provable and not self._is_proof_gone(truth, hidden):
            raise Violation(f"{where} is in doubt, and need not be; its end is {truth.end}")

    def _is_proof_gone(self, truth: Truth, hidden: Collection[Partition]) -> bool:
        """Tell whether retention or compaction has taken what would prove it, or an old leader
        hides it.
        """
        proof = next(
            (c.get("proof") for c in self.decision if c["transaction"] == truth.number), None
        )
        if proof is None:
            return bool(hidden)
        partition = (str(proof["topic"]), int(proof["partition"]))
        if partition in hidden:
            return True
        log = truth.cluster.logs[partition]
        return log.start > int(proof["offset"]) or any(
            entry.emptied and entry.producer_id == truth.producer_id for entry in log.entries
        )

    def fenced(self, committables: Committables, what: str) -> None:
        """Judge a fence that was answered.

        Raises:
            Violation: an epoch may still be written under.
        """
        for committable in committables:
            known = self._world.cluster.transactions.get(str(committable["name"]))
            if known is not None and (known.producer_id, known.epoch) == (
                committable["producer_id"],
                committable["producer_epoch"],
            ):
                raise Violation(f"{what} leaves the epoch of {committable['name']}")

    def end(self) -> None:
        """Judge what is left when nothing happens any more.

        Raises:
            Violation: it is not what was said.
        """
        world = self._world
        while world.cluster.waiting():
            world.stir()
        for truth in world.truths.values():
            seen = world.visible_of(truth)
            where = f"transaction {truth.number} ({truth.name})"
            if truth.claim == "committed" and truth.whole:
                for partition, sequences in truth.records.items():
                    if seen[partition] != sequences:
                        raise Violation(
                            f"{where} was called committed; {partition} shows {seen[partition]} of "
                            f"{sequences}"
                        )
            elif truth.claim == "lost" and any(seen.values()):
                raise Violation(f"{where} was called lost, and is visible")
            if truth.decided and truth.claim is None and truth.end is None and truth.whole:
                raise Violation(f"{where} is decided, and has no end")
        if world.cluster.refuses_late_produce:
            self._what_is_left_open()

    def _what_is_left_open(self) -> None:
        for partition, log in self._world.cluster.logs.items():
            for records in log.open.values():
                for record in records:
                    if record.transaction > 0:
                        raise Violation(
                            f"a record of transaction {record.transaction} stays open in "
                            f"{partition}: no reader gets past it"
                        )
