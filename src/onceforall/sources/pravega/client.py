"""Asks Pravega for a source, again and again until it answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from onceforall.common.pravega.answers import GoneError, NoAnswerError, RefusedError
from onceforall.common.pravega.controller import Controller
from onceforall.common.pravega.names import segment_name
from onceforall.common.pravega.segments import Info, SegmentStore
from onceforall.errors import SourceError, SourceUnavailableError
from onceforall.sources.pravega.options import Access

T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 3.0
# For how long one answer is waited for.
_SHORTEST_S, _CONTROLLER_S, _STORE_S = 1.0, 20.0, 30.0


class Segments:
    """The segments of a stream. Used by one thread; not pickled."""

    def __init__(self, access: Access) -> None:
        """Nothing is asked yet."""
        self._access = access
        self._controller = Controller(access.address, self._deadline(_CONTROLLER_S))
        self._stores: dict[tuple[str, int], SegmentStore] = {}
        self._places: dict[int, tuple[str, int]] = {}

    def close(self) -> None:
        """End the connections."""
        stores, self._stores, self._places = self._stores, {}, {}
        for store in stores.values():
            store.close()

    def ask(self, what: Callable[[Controller], T]) -> T:
        """Ask the controller.

        Raises:
            SourceUnavailableError: no answer.
            SourceError: Pravega refuses.
        """
        return self._again(lambda: what(self._controller))

    def info(self, number: int) -> Info:
        """Return what there is of a segment.

        Raises:
            GoneError: there is no such segment (any more).
            SourceUnavailableError, SourceError: as `ask`.
        """
        return self._again(lambda: self._store(number).info(self._name(number)))

    def read(self, number: int, offset: int, length: int) -> bytes:
        """Return some bytes of a segment, which are known to be there.

        Raises:
            GoneError: they are there no more.
            SourceUnavailableError, SourceError: as `ask`.
        """
        return self._again(lambda: self._store(number).read(self._name(number), offset, length))

    def _name(self, number: int) -> str:
        return segment_name(self._access.stream, number)

    def _store(self, number: int) -> SegmentStore:
        if number not in self._places:
            self._places[number] = self._controller.store_of(self._access.stream, number)
        where = self._places[number]
        if where not in self._stores:
            self._stores[where] = SegmentStore(*where, self._deadline(_STORE_S))
        return self._stores[where]

    def _deadline(self, longest: float) -> float:
        # An answer that comes after retrySeconds is of no use.
        return min(longest, max(_SHORTEST_S, self._access.retry_s))

    def _is_gone(self) -> bool:
        try:
            return not self._controller.exists(self._access.stream)
        except (NoAnswerError, RefusedError):
            return False

    def _again(self, what: Callable[[], T]) -> T:
        deadline, pause = time.monotonic() + self._access.retry_s, _FIRST_PAUSE_S
        while True:
            try:
                return what()
            except GoneError:
                raise
            except RefusedError as error:
                if self._is_gone():
                    raise SourceError(
                        f"There is no stream {self._access.stream} at {self._access.address}: it "
                        "was deleted, or has another name, or the address is another Pravega's. "
                        "Correct the options, or make the stream again and start the query with a "
                        "new checkpoint; what a deleted stream had is gone."
                    ) from error
                raise SourceError(
                    f"Pravega refuses to give the stream {self._access.stream}: {error}. Check the "
                    "controller's address, the stream's name, and that it is a Pravega of release "
                    "0.13."
                ) from error
            except NoAnswerError as error:
                # A segment may be with another store by now.
                self.close()
                if time.monotonic() + pause > deadline:
                    raise SourceUnavailableError(
                        f"Pravega has not answered about the stream {self._access.stream} for "
                        f"{self._access.retry_s:.0f} s: {error}. Check controller and segment "
                        "stores; a longer retrySeconds survives longer outages."
                    ) from error
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
