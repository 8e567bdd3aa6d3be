"""Creates entries until it is known who won: the one place in which a store's lost answers are
asked for again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from onceforall.commit_log.store import AlreadyExists, Store, TooLate
from onceforall.common import logs
from onceforall.errors import BatchTooSlowError, CommitLogError, text_of
from onceforall.failpoints import points as failpoints

__all__ = ["Creator", "NoAnswerError"]

_log = logs.logger("onceforall")

_PAUSE_S = 5.0
_SLICE_S = 0.2
_TELL_EVERY_S = 60.0


class NoAnswerError(CommitLogError):
    """The store did not say who won a create, however often it was asked."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. Mend its cause, then restart the query: the entry may or may not be "
            "there, and the next start finds out."
        )
        self.reason = reason


class Creator:
    """Creates keys in a store. What refers to it and what it refers to are no circle: a log that is
    dropped closes its store at once.

    Args:
        store: the log's.
        pauses_ms: a create without an answer is repeated after each of these pauses.
        sleep: takes seconds.
        goes_on: asked where all of them were in vain: True repeats the create every few seconds
            until there is an answer, or this says no. None: never.
    """

    def __init__(
        self,
        store: Store,
        pauses_ms: Sequence[int],
        sleep: Callable[[float], None],
        goes_on: Callable[[], bool] | None = None,
    ) -> None:
        self.store = store
        self._pauses_ms = tuple(pauses_ms)
        self._sleep = sleep
        self._goes_on = goes_on

    def __call__(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None = None
    ) -> tuple[bytes, bool]:
        """Return the content that won, durably, and whether an answer was lost on the way: this
        was asked again, or what stands there already is the same, which only its own create can
        have put there.

        Raises:
            BatchTooSlowError: ``in_time`` said no, and nothing that was asked before can have
                created it.
            NoAnswerError: nobody knows.
        """
        failure: Exception | None = None
        tries, pauses_ms, told_s = 0, iter(self._pauses_ms), -_TELL_EVERY_S
        try:
            while True:
                if failure is not None:
                    pause_ms = next(pauses_ms, None)
                    if pause_ms is not None:
                        self._sleep(pause_ms / 1000)
                    else:
                        told_s = self._tell(key, failure, told_s)
                        if not self._pause():
                            break
                    failpoints.hit("log.create.again")
                tries += 1
                try:
                    answer = (
                        self.store.create(key, content)
                        if in_time is None
                        else self.store.create(key, content, in_time)
                    )
                except Exception as error:  # noqa: BLE001 - a store raises what its client library raises
                    failure = error
                else:
                    if isinstance(answer, TooLate):
                        if failure is None:
                            raise BatchTooSlowError(
                                f"{self.store.describe(key)} was not created, for it was too late."
                            )
                        # A create that was sent in time may still arrive; sealing finds out.
                        break
                    won = answer.content if isinstance(answer, AlreadyExists) else content
                    # A client may ask again by itself, and not tell.
                    repeated = isinstance(answer, AlreadyExists) and won == content
                    return won, failure is not None or repeated
            said = "none" if failure is None else text_of(failure).rstrip(".")
            raise NoAnswerError(
                f"{self.store.describe(key)}: tried {tries} times to create it, and got no "
                f"answer; the last error was: {said}"
            ) from failure
        finally:
            # An error refers to this frame; with the frame referring to it, both would stay, and
            # the store with them.
            failure = None

    def _tell(self, key: str, failure: Exception, told_s: float) -> float:
        """Say that the query waits, once a minute; return when that was said last."""
        now_s = time.monotonic()
        if self._goes_on is None or now_s - told_s < _TELL_EVERY_S:
            return told_s
        _log.warning(
            "%s can't be created; the query waits for its store, and asks again every %g s until "
            "there is an answer or the query is stopped: %s",
            self.store.describe(key),
            _PAUSE_S,
            # What a client advises where nobody waits.
            text_of(failure).removesuffix(", then restart the query."),
        )
        return now_s

    def _pause(self) -> bool:
        """Wait before the next try; in slices, for the query may be stopped meanwhile. False: it
        is, or nobody waits.
        """
        for _ in range(int(_PAUSE_S / _SLICE_S)):
            if self._goes_on is None or not self._goes_on():
                return False
            self._sleep(_SLICE_S)
        return True
