"""Live producers in a Python worker process, and which of them may write another transaction.

A fresh producer's ``init_transactions`` costs some 70 to 500 ms, so a producer is used again where
that is safe. Two transactions may share (producer id, epoch) only if every request of the first was
answered: a late EndTxn or Produce request would land in the second one. So a producer goes on only
when

* the driver says that exactly its (transactional id, producer id, epoch) is complete, as of the
  batch in which it was last used, and
* librdkafka has not closed or lost a connection, and no request of it has timed out, in the whole
  life of the producer (module ``live`` says how that is known).

Every other producer is discarded: its client is dropped, which sends nothing to the broker, for
what it prepared may be decided. Only a transaction that its own task gives up before handing it
over is aborted, by the producer itself, and only if every request of it was answered; otherwise by
the sweep.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from onceforall.errors import AttemptFailedError, text_of
from onceforall.failpoints import points as failpoints
from onceforall.sinks.kafka.names import TransactionalId, format_name
from onceforall.sinks.kafka.task.live import LiveProducer

if TYPE_CHECKING:
    from onceforall.sink import TaskAttempt

_log = logging.getLogger("onceforall.sinks.kafka")

_INIT_DEADLINE_S = 60.0
_ABORT_DEADLINE_S = 5.0
_FRESH_ATTEMPTS = 3
_RECONNECT_BACKOFF_S = 0.1
_MAX_RECONNECT_BACKOFF_S = 1.0
_IDLE_LIMIT_S = 300.0
_KEEPER_INTERVAL_S = 1.0

PoolKey = tuple[str, str, int]
"""Query id, sink name and generation; one process may serve many."""


class ProducerPool:
    """The live producers of this process. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._producers: dict[PoolKey, list[tuple[Any, LiveProducer]]] = {}
        self._rubbish: queue.SimpleQueue[tuple[LiveProducer, bool] | None] = queue.SimpleQueue()
        self._keeper: threading.Thread | None = None
        self._process_id = os.getpid()

    def transactional(
        self,
        attempt: TaskAttempt,
        prefix: str,
        configure: Callable[[str], dict[str, Any]],
        fingerprint: object,
        avoided: Collection[str] = (),
    ) -> LiveProducer:
        """Return a producer with a transaction begun, a live one where that is safe.

        Args:
            attempt: whose transaction it is; its ``reusable`` says which producers may go on.
            prefix: how transactional ids begin.
            configure: gives the configuration for a transactional id; called for new producers
                only.
            fingerprint: what a live producer must have been made for; holds no secret.
            avoided: ids that must not be taken, because a request about them is still unanswered.

        Raises:
            AttemptFailedError: no producer could be initialised.
        """
        key = (attempt.query_id, attempt.sink, attempt.generation)
        reusable = {str(entry["name"]): entry for entry in attempt.reusable}
        for producer in self._candidates(key, fingerprint, reusable, attempt.batch):
            failpoints.hit("kafka.producer.reuse_before")
            if producer.advance():
                failpoints.hit("kafka.producer.reused")
                return producer
            self.discard(producer)

        def name_of(turn: int) -> str:
            return _name_of(prefix, attempt, turn)

        deadline_s = time.monotonic() + _INIT_DEADLINE_S
        burnt: tuple[str, ...] = ()
        for _ in range(_FRESH_ATTEMPTS):
            taken = {*reusable, *avoided, *burnt}
            producer = self._connected(
                partial(self._fresh, key, fingerprint, taken, name_of, configure), deadline_s
            )
            try:
                failpoints.hit("kafka.producer.init_before")
                producer.initialise(deadline_s)
                failpoints.hit("kafka.producer.initialised")
                if producer.watch.doubt is None:
                    producer.client.begin_transaction()
                    producer.is_begun = True
                    producer.burnt = burnt
                    return producer
            except BaseException:
                self.discard(producer)
                raise
            # An unanswered InitProducerId may arrive later, under whatever epoch, and abort what
            # was prepared: that id is left alone. In this batch nobody else has this slot; the
            # committable tells the driver to give it to nobody in later ones.
            burnt = (*burnt, str(producer.name))
            doubt = producer.watch.doubt
            self.discard(producer)
        raise AttemptFailedError(
            "No Kafka producer could be initialised without a lost connection or a time-out in "
            f"{_FRESH_ATTEMPTS} attempts; the last: {doubt}"
        )

    def _connected(self, make: Callable[[], LiveProducer], deadline_s: float) -> LiveProducer:
        """Return a new producer that a broker has answered.

        Until then nothing was sent in its name, so the name may be another's.
        """
        backoff_s = _RECONNECT_BACKOFF_S
        while True:
            producer = make()
            try:
                if producer.connect(deadline_s):
                    return producer
            except BaseException:
                self.discard(producer)
                raise
            _log.info("The producer of %s is made anew: %s", producer.name, producer.watch.doubt)
            self.discard(producer)
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _MAX_RECONNECT_BACKOFF_S)

    def _candidates(
        self, key: PoolKey, fingerprint: Any, reusable: Mapping[str, Mapping[str, Any]], batch: int
    ) -> list[LiveProducer]:
        found: list[LiveProducer] = []
        stale: list[LiveProducer] = []
        with self._lock:
            self._forget_parent_process()
            for other in [k for k in self._producers if k[:2] == key[:2] and k[2] < key[2]]:
                stale += [p for _, p in self._producers[other] if not p.in_use]
            for made_for, producer in self._producers.get(key, ()):
                if producer.in_use:
                    continue
                if made_for == fingerprint and producer.matches(reusable):
                    if not found:
                        producer.in_use = True
                        found.append(producer)
                elif producer.last_batch != batch:
                    # Used in this very batch: it may become reusable with the batch's DONE. Any
                    # other will never be.
                    stale.append(producer)
            for producer in stale:
                producer.in_use = True
        for producer in stale:
            self.discard(producer)
        return found

    def _fresh(
        self,
        key: PoolKey,
        fingerprint: Any,
        taken: Collection[str],
        name_of: Callable[[int], str],
        configure: Callable[[str], dict[str, Any]],
    ) -> LiveProducer:
        with self._lock:
            taken = {*taken, *(str(producer.name) for _, producer in self._producers.get(key, ()))}
            name = next(name for name in map(name_of, count()) if name not in taken)
            producer = LiveProducer(configure(name), name)
            self._producers.setdefault(key, []).append((fingerprint, producer))
            self._start_keeper()
        return producer

    def plain(
        self,
        attempt: TaskAttempt,
        configure: Callable[[], dict[str, Any]],
        fingerprint: object,
        *,
        check_delivery: bool,
    ) -> LiveProducer:
        """Return a producer without transactions, a live one where there is one that works."""
        key = (attempt.query_id, attempt.sink, -1)
        while (producer := self._idle(key, fingerprint)) is not None:
            # While nobody used it, a broker may have refused it, or its client have failed.
            if producer.works():
                return producer
            self.discard(producer)
        with self._lock:
            producer = LiveProducer(configure(), None, check_delivery=check_delivery)
            self._producers.setdefault(key, []).append((fingerprint, producer))
            self._start_keeper()
        return producer

    def _idle(self, key: PoolKey, fingerprint: object) -> LiveProducer | None:
        with self._lock:
            self._forget_parent_process()
            for made_for, producer in self._producers.get(key, ()):
                if made_for == fingerprint and not producer.in_use:
                    producer.in_use = True
                    return producer
        return None

    @staticmethod
    def release(producer: LiveProducer) -> None:
        """Give a producer back, to be used again if that is safe by then."""
        producer.idle_since_s = time.monotonic()
        producer.in_use = False

    def discard(self, producer: LiveProducer, *, abort: bool = False) -> None:
        """Never use a producer again; its client is dropped in the background.

        Args:
            producer: which one.
            abort: abort its open transaction first; only for one that was not handed over to the
                driver.
        """
        with self._lock:
            producer.in_use = True
            for key, producers in list(self._producers.items()):
                self._producers[key] = [
                    (made_for, p) for made_for, p in producers if p is not producer
                ]
                if not self._producers[key]:
                    del self._producers[key]
            self._start_keeper()
        self._rubbish.put((producer, abort))

    def close(self) -> None:
        """Drop all producers and end the background thread."""
        with self._lock:
            self._producers.clear()
            keeper, self._keeper = self._keeper, None
        if keeper is not None and self._process_id == os.getpid():
            self._rubbish.put(None)
            keeper.join(2 * _ABORT_DEADLINE_S)

    def _forget_parent_process(self) -> None:
        # librdkafka's threads don't survive a fork; a child must not even drop the clients.
        if self._process_id != os.getpid():
            _inherited.append(self._producers)
            self._producers, self._rubbish, self._keeper = {}, queue.SimpleQueue(), None
            self._process_id = os.getpid()

    def _start_keeper(self) -> None:
        if self._keeper is None or not self._keeper.is_alive():
            self._keeper = threading.Thread(
                target=self._keep,
                args=(self._rubbish,),
                name="onceforall-kafka-producers",
                daemon=True,
            )
            self._keeper.start()

    def _keep(self, rubbish: queue.SimpleQueue[tuple[LiveProducer, bool] | None]) -> None:
        due_s = time.monotonic() + _KEEPER_INTERVAL_S
        while True:
            left_s = due_s - time.monotonic()
            if left_s <= 0:
                self._serve_idle()
                self._serve_used()
                due_s = time.monotonic() + _KEEPER_INTERVAL_S
                continue
            try:
                entry = rubbish.get(timeout=left_s)
            except queue.Empty:
                continue
            if entry is None:
                return
            _drop(*entry)
            del entry

    def _serve_idle(self) -> None:
        """Take the statistics that idle producers make, for they pile up, and drop producers
        that nobody has used for long.
        """
        now_s = time.monotonic()
        with self._lock:
            idle = [
                p for producers in self._producers.values() for _, p in producers if not p.in_use
            ]
            old = [p for p in idle if now_s - p.idle_since_s > _IDLE_LIMIT_S]
            for producer in old:
                # A task that comes before it is discarded must not get it.
                producer.in_use = True
        # Not under the lock: a user's function may fetch a token.
        for producer in idle:
            # One that has failed is marked by that, and discarded when it is asked for.
            with contextlib.suppress(AttemptFailedError):
                producer.poll()
            producer.client.serve()
        for producer in old:
            self.discard(producer)

    def _serve_used(self) -> None:
        """Hand new tokens over to producers whose tasks may be waiting for rows, or for a broker,
        and take their statistics.

        Not under the lock: a user's function fetches the token.
        """
        with self._lock:
            used = [p for producers in self._producers.values() for _, p in producers if p.in_use]
        for producer in used:
            producer.client.serve()


_inherited: list[Any] = []


def _drop(producer: LiveProducer, abort: bool) -> None:  # noqa: FBT001
    try:
        if producer.name is None:
            producer.client.flush(_ABORT_DEADLINE_S)
        elif abort and producer.is_begun and _has_all_answers(producer):
            failpoints.hit("kafka.own_abort.before")
            producer.client.abort_transaction(_ABORT_DEADLINE_S)
            failpoints.hit("kafka.own_abort.after")
        else:
            producer.client.purge()
    except Exception as error:  # noqa: BLE001
        _log.info(
            "Giving up %s: %s (the sweep finds what it leaves open)", producer.name, text_of(error)
        )


def _has_all_answers(producer: LiveProducer) -> bool:
    """Drop the records that are not sent, wait for the others, and tell whether nothing of the
    transaction can reach a broker any more.

    A Produce request that arrives after an EndTxn(abort) finds its epoch valid; a broker that does
    not ask the coordinator (before release 3.6) appends it, and no reader gets past it, for nobody
    ever ends that. The sweep's InitProducerId leaves a newer epoch in the partitions.
    """
    producer.client.purge(in_flight=False)
    return producer.flush(_ABORT_DEADLINE_S) == 0 and producer.watch.doubt is None


def _name_of(prefix: str, attempt: TaskAttempt, turn: int) -> str:
    name = TransactionalId(
        attempt.query_id, attempt.sink, attempt.generation, attempt.incarnation, attempt.slot, turn
    )
    return format_name(prefix, name)


POOL = ProducerPool()
atexit.register(POOL.close)
