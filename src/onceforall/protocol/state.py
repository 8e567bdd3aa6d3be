"""The state of one run: its settings, what it knows for all its life, and its phase. Only
``machine.step`` makes a next one. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onceforall.protocol.entries import Committable
from onceforall.protocol.history import EMPTY, History
from onceforall.protocol.phases import New, Phase


@dataclass(frozen=True)
class RunConfig:
    """What does not change during a run.

    Attributes:
        query_id: Spark's query id.
        run_id: Spark's run id.
        checkpoint: the checkpoint's path, as it is recognised.
        sinks: the names of the query's sinks.
        transaction_timeout_ms: the shortest timeout of a transaction over all sinks, or None.
        decision_reserve_ms: decide only when so much of it is left.
        on_divergence: ``warn`` or ``fail``.
        roll_after_entries: the run goes on in a new generation when its chain is that long.
        adopt_checkpoint: take over a log whose checkpoint had another path.
        owner: who runs this, for people who read the log.
        host, boot_id, storage: where this runs, as in ``entries.Claim``.
        durable: lost rows are written again from where they were kept, if they were.
        kept_first: rows that were kept are written also where a query with state has lost a whole
            batch.
        in_doubt: what to hold a transaction for that the start finds and of which no proof can be
            had: ``committed``, ``aborted``, or None: stop.
        lost_rows: what a person has chosen for one batch of which a part is lost and can't be
            written again as it was: the word for it (``redo.CHOICES``), and the batch; None: stop.
        identities: per sink, what its target is, as the run found it at its opening; None: there is
            none. A sink that is not in here is not compared.
        kinds: per sink, its kind (``TwoPhaseCommitSink.kind``). A sink that is not in here is not
            compared.
        need_no_commit: sinks whose rows are seen as soon as they are written; their tasks prepare
            nothing (``contract.needs_a_commit``).
        adopt_targets: sinks whose target is another one, or an older copy, on purpose.
        gives_up_after_s: for how long a detachment waits for sinks that don't complete a decided
            batch; None: a query, which waits until it is stopped.
    """

    query_id: str
    run_id: str
    checkpoint: str
    sinks: tuple[str, ...]
    transaction_timeout_ms: int | None = None
    decision_reserve_ms: int = 0
    on_divergence: str = "warn"
    roll_after_entries: int = 1000
    adopt_checkpoint: bool = False
    owner: str = ""
    in_doubt: str | None = None
    durable: bool = False
    kept_first: bool = False
    lost_rows: tuple[str, int] | None = None
    identities: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict, hash=False)
    kinds: Mapping[str, str] = field(default_factory=dict, hash=False)
    need_no_commit: frozenset[str] = frozenset()
    adopt_targets: frozenset[str] = frozenset()
    host: str = ""
    boot_id: str = ""
    storage: Mapping[str, str] = field(default_factory=dict)
    gives_up_after_s: float | None = None


@dataclass(frozen=True)
class Run:
    """The state of a run. Only ``step`` makes a next one.

    Attributes:
        config: what does not change.
        phase: where the run stands, with all that is known only there.
        generation: ours; -1 before it is claimed.
        name_generation: the generation that stands in our names in the world: the one that the run
            began with, for as long as every generation from there to ours is its own. So a run that
            rolls keeps its live producers, and needs no ids but those that it has: what each roll
            would leave behind, a system like Kafka keeps for days. Every chain below it is sealed,
            so what is swept by it is decided no more.
        entries: the length of our chain.
        history: what is decided, by the sealed past and by us.
        spark_committed: the last batch in Spark's commit log when the past was sealed.
        spark_unplanned: Spark's offset log lacked it then.
        reusable: per sink, handles that are complete without doubt, stamped with the batch that
            completed them.
        sweep_own: for so many further batches one's own leftovers are swept.
        incarnation: raised with every batch that may have left a task attempt alive. Task slots
            begin anew with each batch, and such an attempt must not open a transaction under a name
            that a later batch has prepared: that would abort it.
        unplaced: sinks on which the last decided batch was closed by a user's word: nobody knows
            whether the target has it.
    """

    config: RunConfig
    phase: Phase = field(default_factory=New)
    generation: int = -1
    name_generation: int = -1
    entries: int = 0
    history: History = EMPTY
    spark_committed: int = -1
    spark_unplanned: bool = False
    reusable: Mapping[str, tuple[Committable, ...]] = field(default_factory=dict)
    sweep_own: int = 0
    incarnation: int = 0
    unplaced: frozenset[str] = frozenset()

    def said(self, *, in_doubt: bool = False) -> tuple[str, ...]:
        """Return the options for one start that this one had, and that no decision has on record
        yet, as a user writes them.

        Args:
            in_doubt: it is about transactions that the word for those in doubt was needed for.
        """
        decided, config = self.history.decided, self.config
        is_ours = decided is not None and self.name_generation <= decided.generation
        found = []
        if config.adopt_targets and not is_ours:
            found.append(f"onceforall.adoptTarget={','.join(sorted(config.adopt_targets))}")
        if config.in_doubt is not None and in_doubt:
            found.append(f"onceforall.inDoubt={config.in_doubt}")
        return tuple(found)

    def is_complete_for_spark(self, batch: int) -> bool:
        """Spark's commit log has a batch only after foreachBatch returned, that is, after every
        sink was complete.
        """
        return self.spark_committed >= batch
