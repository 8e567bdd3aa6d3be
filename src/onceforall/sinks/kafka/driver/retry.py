"""Asking again, with pauses, until a deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from onceforall.errors import SinkUnavailableError
from onceforall.sinks.kafka.driver.broker_client import FIRST_BACKOFF_S, LAST_BACKOFF_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Retry:
    """Pauses between turns, until a deadline.

    Attributes:
        what: what is tried, as the sentence that begins the error.
        deadline_s: until when turns begin that are not the last one, of ``time.monotonic``.
        turn_s: when the present turn began.
    """

    def __init__(
        self,
        patience_s: float,
        what: str,
        then: str = "",
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """The time begins now.

        Args:
            patience_s: for how long.
            what: what is tried, as the sentence that begins the error.
            then: what happens when it is over, as the sentence that ends the error.
            is_stopped: tells whether nobody waits for it any more.
        """
        self.what = what
        self._begun_s = time.monotonic()
        self.deadline_s = self._begun_s + patience_s
        self.turn_s = self._begun_s
        self._then = then
        self._is_stopped = is_stopped
        self._pause_s = FIRST_BACKOFF_S

    @property
    def waited_s(self) -> float:
        """How many seconds ago it began."""
        return time.monotonic() - self._begun_s

    def is_over(self) -> bool:
        """Tell whether ``again`` raises at the end of this turn: whether the turn began behind the
        deadline. So whoever takes in the last turn for an answer what is none before it, knows that
        throughout the turn, however long that takes; and there is a last turn.
        """
        return self.turn_s > self.deadline_s or self._is_stopped()

    def again(self, reason: Sequence[str]) -> None:
        """Pause before the next turn.

        Args:
            reason: why there has to be one: who, and what is wrong with it.

        Raises:
            SinkUnavailableError: the time is over.
        """
        if self.is_over():
            raise SinkUnavailableError(f"{self.what}: {': '.join(reason)}. {self._then}".rstrip())
        self.pause()

    def pause(self) -> None:
        """Wait a moment, longer each time."""
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, LAST_BACKOFF_S)
        self.turn_s = time.monotonic()
