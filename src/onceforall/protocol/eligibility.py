"""Whether a sink can be exactly-once in a query; pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class Able(Protocol):
    """What counts of ``onceforall.sink.Capabilities``."""

    @property
    def two_phase(self) -> bool:
        """As there."""

    @property
    def idempotent(self) -> bool:
        """As there."""

    @property
    def delivery(self) -> str:
        """As there."""

    @property
    def transaction_timeout_ms(self) -> int | None:
        """As there."""

    @property
    def output_modes(self) -> Collection[str]:
        """As there."""


def why_not(sink: str, able: Able, output_mode: str) -> str | None:
    """Return why a sink can't be what its ``delivery`` says in a query of this output mode, and
    what helps; None: it can.

    Args:
        sink: its name in the query.
        able: its capabilities.
        output_mode: ``append``, ``update`` or ``complete``.
    """
    if able.delivery not in {"exactly_once", "at_least_once", "none"}:
        return (
            f"Sink {sink!r} says delivery={able.delivery!r}, which is none of exactly_once, "
            "at_least_once and none. Mend its capabilities."
        )
    if able.delivery == "exactly_once" and not (able.two_phase or able.idempotent):
        return (
            f"Sink {sink!r} can't be exactly-once: it neither prepares transactions that another "
            "process can complete (two_phase) nor makes "
            "a repeated write harmless (idempotent), so a batch that is replayed after a crash "
            "would be there twice. Use a sink that "
            "can, or let its capabilities say delivery='at_least_once'."
        )
    if able.transaction_timeout_ms is not None and able.transaction_timeout_ms <= 0:
        return (
            f"Sink {sink!r} says transaction_timeout_ms={able.transaction_timeout_ms}; it must "
            "be positive, or None for never."
        )
    if output_mode not in able.output_modes:
        served = ", ".join(sorted(able.output_modes)) or "none"
        return (
            f"Sink {sink!r} can't serve the output mode {output_mode!r}, as it is configured; it "
            f"serves: {served}. Choose another "
            "outputMode, or another sink or configuration for it."
        )
    return None
