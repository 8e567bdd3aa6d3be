"""Creates entries until it is known who won: the one place in which a store's lost answers are
asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceforall.commit_log.store import AlreadyExists, Store, TooLate
from onceforall.errors import BatchTooSlowError, CommitLogError, text_of
from onceforall.failpoints import points as failpoints

__all__ = ["Creator", "NoAnswerError"]


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
    """

    def __init__(
        self, store: Store, pauses_ms: Sequence[int], sleep: Callable[[float], None]
    ) -> None:
        self.store = store
        self._pauses_ms = tuple(pauses_ms)
        self._sleep = sleep

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
        pauses_ms = [0, *self._pauses_ms]
        failure: Exception | None = None
        try:
            for pause_ms in pauses_ms:
                if failure is not None:
                    self._sleep(pause_ms / 1000)
                    failpoints.hit("log.create.again")
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
                f"{self.store.describe(key)}: tried {len(pauses_ms)} times to create it, and got "
                f"no answer; the last error was: {said}"
            ) from failure
        finally:
            # An error refers to this frame; with the frame referring to it, both would stay, and
            # the store with them.
            failure = None
