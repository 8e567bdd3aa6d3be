"""What a user can set of a query besides its sinks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from onceforall.common import arguments
from onceforall.errors import OptionError
from onceforall.protocol.redo import CHOICES

OnDivergence: TypeAlias = Literal["warn", "fail"]
Redo: TypeAlias = Literal["auto", "replay", "durable"]
InDoubt: TypeAlias = Literal["committed", "aborted"]


@dataclass(frozen=True)
class Settings:
    """What a user can set besides the sinks.

    Attributes:
        on_divergence: ``warn`` (log it) or ``fail`` (stop the query) when a decided batch's replay
            gives other rows.
        min_batches_to_retain: how many decided batches stay in the commit log.
        decision_reserve_ms: how much of the transaction timeout must be left at the decision; by
            default a third of it.
        adopt_checkpoint: take over a commit log whose checkpoint was moved.
        takeover: ``accept`` takes over a plain query's checkpoint whose last batch is unfinished.
        commit_log: where the commit log lies; None: in the checkpoint, or where the checkpoint's
            pointer says.
        redo: how a lost transaction's rows come back: ``replay`` (the batch runs again),
            ``durable`` (they are kept), or ``auto`` (they are kept where Spark's plan doesn't show
            that a replay gives the same ones).
        in_doubt: what to hold a transaction for that the start finds and of which no proof can be
            had: ``committed``, ``aborted``, or None: stop.
        lost_rows: ``giveUp:<batch>``, ``giveUpUnseen:<batch>`` or ``writeAll:<batch>``: what to do
            where a part of this batch's transactions is lost and a replay can't write the same rows
            again; None: stop.
        adopt_target: the sinks whose target is another one, or an older copy, on purpose; for one
            start.
        store: how a remote commit log is reached, by the names of ``onceforall.store.*``; never
            shown, for it may hold keys.
    """

    on_divergence: OnDivergence = "warn"
    min_batches_to_retain: int = 100
    decision_reserve_ms: int | None = None
    adopt_checkpoint: bool = False
    takeover: Literal["accept"] | None = None
    commit_log: str | None = None
    redo: Redo = "auto"
    in_doubt: InDoubt | None = None
    lost_rows: str | None = None
    adopt_target: tuple[str, ...] = ()
    store: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        arguments.choice("on_divergence", self.on_divergence, get_args(OnDivergence))
        arguments.choice("redo", self.redo, get_args(Redo))
        arguments.choice("in_doubt", self.in_doubt, (*get_args(InDoubt), None))
        arguments.choice("takeover", self.takeover, ("accept", None))
        arguments.whole("min_batches_to_retain", self.min_batches_to_retain, 1)
        if self.decision_reserve_ms is not None:
            arguments.whole("decision_reserve_ms", self.decision_reserve_ms, 0)
        arguments.flag("adopt_checkpoint", self.adopt_checkpoint)
        if self.commit_log is not None:
            arguments.path("commit_log", self.commit_log)
        arguments.names("adopt_target", self.adopt_target, "the names of sinks, as a list of texts")
        arguments.mapping("store", self.store, "a dictionary of texts, such as {'region': '…'}")
        self.chosen_for_lost_rows()

    def chosen_for_lost_rows(self) -> tuple[str, int] | None:
        """Return what is to be done with lost rows, and of which batch.

        Raises:
            OptionError: it is neither of the choices, or names no batch.
        """
        if self.lost_rows is None:
            return None
        match = re.fullmatch(f"({'|'.join(CHOICES)}):([0-9]{{1,18}})", str(self.lost_rows))
        if match is None:
            raise OptionError(
                "lost_rows must be 'giveUp:<batch>', 'giveUpUnseen:<batch>' or 'writeAll:<batch>' "
                "with the number of the batch that has lost rows, "
                f"not {arguments.shown(self.lost_rows)}."
            )
        return match[1], int(match[2])

    def reserve_ms(self, timeout_ms: int | None) -> int:
        """Return the reserve in force, given the shortest transaction timeout of the sinks.

        Raises:
            OptionError: it leaves no time for any batch.
        """
        if timeout_ms is None:
            return 0
        if self.decision_reserve_ms is None:
            return timeout_ms // 3
        if self.decision_reserve_ms >= timeout_ms:
            raise OptionError(
                f"onceforall.decisionReserveMs={self.decision_reserve_ms} leaves no time for a "
                "batch: the sinks' transactions time out after "
                f"{timeout_ms} ms. Lower it, or raise transaction.timeout.ms."
            )
        return self.decision_reserve_ms
