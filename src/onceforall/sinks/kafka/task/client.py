"""One librdkafka producer through its C interface: events instead of callbacks, and no Python
object per record.

What librdkafka has to tell (log lines, statistics, errors, records that were not delivered, the
wish for a new token) waits in its queue and is handed to a ``Listener`` by ``poll`` and ``flush``,
in order. All calls release the interpreter's lock while they are in librdkafka.

A client belongs to one thread at a time, but for ``serve`` and ``poll``: without a token librdkafka
opens no connection, and the thread that could hand it over may be waiting for just that connection,
or for rows. A client is dropped with ``close`` (or as garbage), which sends nothing to the brokers.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from onceforall.errors import text_of
from onceforall.sinks.kafka.access.security import TOKEN_OPTION
from onceforall.sinks.kafka.options import confluent_kafka
from onceforall.sinks.kafka.task import librdkafka as lib
from onceforall.sinks.kafka.task.partitioning import Partitions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np
    import numpy.typing as npt

_log = logging.getLogger("onceforall.sinks.kafka")

_TEXT_BYTES = 512
# While a token is good for longer, no task fetches the next one: who calls ``serve`` does.
_SLOWEST_TOKEN_S = 60
# How long ``flush`` waits before it looks whether records have failed, which keep it waiting.
_FLUSH_SLICE_MS = 50

# Ends the reason of a failure that harms nothing yet. librdkafka tells one reason once only, so the
# same one without this is told when the token has expired.
_TOKEN_KEPT = b" (the token of before is used until it expires)"


class Listener(Protocol):
    """What hears of a producer's events. It must not call the producer."""

    def on_log(self, level: int, facility: str, text: str) -> None:
        """Take a line of librdkafka's log (syslog's levels)."""

    def on_statistics(self, text: str) -> None:
        """Take statistics, as JSON."""

    def on_error(self, error: Any) -> None:
        """Take a ``confluent_kafka.KafkaError`` that concerns the whole client."""

    def on_failure(self, error: Any, topic: str, partition: int, size_bytes: int) -> bool:
        """Take the failure of a record; return whether to hear of further ones."""


class Client:
    """A producer, transactional or not."""

    def __init__(self, configuration: Mapping[str, Any], listener: Listener) -> None:
        """Make it; it connects in the background.

        Args:
            configuration: librdkafka's options, and ``oauth_cb``.
            listener: hears of its events.

        Raises:
            confluent_kafka.KafkaException: an option is unknown or refused.
        """
        self._lib = lib.load()
        self._listener = listener
        self._handle: int | None = None
        self._topics: dict[str, int] = {}
        self._token_source: Callable[[str | None], tuple[Any, ...]] | None = configuration.get(
            TOKEN_OPTION
        )
        self._token_until_s = 0.0
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        settings = self._settings(configuration, text)
        self._handle = self._lib.new(lib.PRODUCER, settings, text, _TEXT_BYTES)
        if not self._handle:
            self._lib.conf_destroy(settings)
            raise _exception(confluent_kafka().KafkaError._INVALID_ARG, text.value)  # noqa: SLF001
        self._lib.set_log_queue(self._handle, None)
        self._queue = self._lib.queue_get_main(self._handle)
        self._hearing = threading.Lock()
        self._kept: deque[int] = deque()
        self._wishes: deque[int] = deque()
        # It asks for a first token when it is made.
        self.serve()

    def _settings(self, configuration: Mapping[str, Any], text: Any) -> int:
        settings: int = self._lib.conf_new()
        events = lib.EVENT_DR | lib.EVENT_LOG | lib.EVENT_ERROR | lib.EVENT_STATS
        options = {"log.queue": True, **configuration}
        if options.pop(TOKEN_OPTION, None) is not None:
            events |= lib.EVENT_TOKEN_REFRESH
        for name, value in options.items():
            if self._lib.conf_set(
                settings, name.encode(), _setting(value).encode(), text, _TEXT_BYTES
            ):
                self._lib.conf_destroy(settings)
                raise _exception(confluent_kafka().KafkaError._INVALID_ARG, text.value)  # noqa: SLF001
        self._lib.conf_set_events(settings, events)
        return settings

    def close(self) -> None:
        """Drop it, with what it has not sent. Blocks for a moment, until its threads have ended."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        for topic in self._topics.values():
            self._lib.topic_destroy(topic)
        # A record whose failure nobody has heard of would keep it from ending.
        for event in (*self._kept, *self._wishes):
            self._lib.event_destroy(event)
        self._lib.queue_destroy(self._queue)
        self._lib.destroy(handle)

    def __del__(self) -> None:
        """Drop it, but not while the interpreter ends: the process takes it along."""
        if not sys.is_finalizing() and getattr(self, "_handle", None) is not None:
            self.close()

    # --- events -----------------------------------------------------------------------------------

    def poll(self, timeout_s: float = 0) -> None:
        """Hand over what there is to tell; wait for a first event for at most ``timeout_s``.

        Raises:
            confluent_kafka.KafkaException: the client has failed for good.
        """
        try:
            # Who holds the lock hears the events: what another thread has taken is heard when this
            # returns, too.
            with self._hearing:
                if self._kept:
                    timeout_s = 0
                while self._kept:
                    self._hear_once(self._kept.popleft())
                event = self._lib.queue_poll(self._queue, int(timeout_s * 1000))
                while event:
                    if self._lib.event_type(event) == lib.EVENT_TOKEN_REFRESH:
                        self._wishes.append(event)
                    else:
                        self._hear_once(event)
                    event = self._lib.queue_poll(self._queue, 0)
        finally:
            if self._token_until_s - time.time() < _SLOWEST_TOKEN_S:
                self._grant()

    def serve(self) -> None:
        """Hand over a token that librdkafka wishes for, and take the statistics, which would pile
        up; all else is kept for ``poll``, in its order. Any thread may call it at any time.
        """
        if not self._hearing.acquire(blocking=False):
            return  # Another thread hears them.
        try:
            while event := self._lib.queue_poll(self._queue, 0):
                kind = self._lib.event_type(event)
                if kind == lib.EVENT_TOKEN_REFRESH:
                    self._wishes.append(event)
                elif kind == lib.EVENT_STATS:
                    self._hear_once(event)
                else:
                    self._kept.append(event)
        finally:
            self._hearing.release()
            self._grant()

    def _grant(self) -> None:
        """Hand over tokens. Not while this thread hears events: a user's function fetches them, and
        may take a minute, in which the task must not wait for the thread that serves it.
        """
        with suppress(IndexError):
            while True:
                self._hear_once(self._wishes.popleft())

    def _hear_once(self, event: int) -> None:
        try:
            self._hear(event)
        finally:
            self._lib.event_destroy(event)

    def _hear(self, event: int) -> None:
        kind = self._lib.event_type(event)
        if kind == lib.EVENT_DR:
            self._hear_failures(event)
        elif kind == lib.EVENT_LOG:
            facility, line, level = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_int()
            self._lib.event_log(event, facility, line, level)
            self._listener.on_log(level.value, _text(facility.value), _text(line.value))
        elif kind == lib.EVENT_STATS:
            self._listener.on_statistics(_text(self._lib.event_stats(event)))
        elif kind == lib.EVENT_TOKEN_REFRESH:
            self._refresh_token(self._lib.event_config_string(event))
        elif kind == lib.EVENT_ERROR:
            self._hear_error(self._lib.event_error(event), self._lib.event_error_string(event))

    def _hear_error(self, code: int, reason: bytes) -> None:
        ck = confluent_kafka()
        if code != ck.KafkaError._FATAL:  # noqa: SLF001
            if reason.endswith(_TOKEN_KEPT):
                _log.warning("%s", _text(reason))
                return
            self._listener.on_error(ck.KafkaError(code, _text(reason)))
            return
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._lib.fatal_error(self._handle, text, _TEXT_BYTES) or code
        error = ck.KafkaError(code, _text(text.value) or _text(reason), fatal=True)
        self._listener.on_error(error)
        raise ck.KafkaException(error)

    def _hear_failures(self, event: int) -> None:
        ck = confluent_kafka()
        while message := self._lib.event_message_next(event):
            record = message.contents
            if not record.err:
                continue
            error = ck.KafkaError(record.err, _text(self._lib.err2str(record.err)))
            topic = _text(self._lib.topic_name(record.rkt))
            if not self._listener.on_failure(
                error, topic, record.partition, record.len + record.key_len
            ):
                return

    def _refresh_token(self, config: bytes | None) -> None:
        assert self._token_source is not None
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        try:
            token, expiry_s, *more = self._token_source(None if config is None else config.decode())
            principal = str(more[0]) if more else ""
            pairs = dict(more[1]) if len(more) > 1 else {}
            extensions = [str(part).encode() for pair in pairs.items() for part in pair]
            array = (ctypes.c_char_p * len(extensions))(*extensions)
            refused = self._lib.oauthbearer_set_token(
                self._handle,
                token.encode(),
                int(expiry_s * 1000),
                principal.encode(),
                array,
                len(extensions),
                text,
                _TEXT_BYTES,
            )
            reason = text.value if refused else None
        except Exception as error:  # noqa: BLE001  librdkafka tells it as an error of authentication, and asks again
            reason = text_of(error).encode(errors="replace")
        if reason is None:
            self._token_until_s = expiry_s
        else:
            # It asks for a new one at four fifths of a token's time, and 10 s after a failure.
            # A server of tokens may be away for a while.
            if time.time() < self._token_until_s:
                reason = reason[: _TEXT_BYTES // 2] + _TOKEN_KEPT
            self._lib.oauthbearer_set_token_failure(self._handle, reason)

    # --- records ----------------------------------------------------------------------------------

    def connect(self, timeout_s: float) -> None:
        """Wait until a broker has answered.

        Raises:
            confluent_kafka.KafkaException: none did.
        """
        told = ctypes.POINTER(lib.Metadata)()
        code = self._lib.metadata(self._handle, 0, None, ctypes.byref(told), int(timeout_s * 1000))
        if code:
            raise _exception(code, self._lib.err2str(code))
        self._lib.metadata_destroy(told)

    def topic(self, name: str) -> int:
        """Return the handle of a topic.

        Raises:
            confluent_kafka.KafkaException: librdkafka has none for such a name.
        """
        handle = self._topics.get(name)
        if handle is None:
            handle = self._lib.topic_new(self._handle, name.encode(), None)
            # A null must not be kept: librdkafka would follow it when the client is dropped.
            if handle is None:
                raise _exception(confluent_kafka().KafkaError._INVALID_ARG, b"no topic's name")  # noqa: SLF001
            self._topics[name] = handle
        return handle

    def partitions(self, name: str, timeout_s: float) -> tuple[Partitions, Any]:
        """Ask a broker for a topic's partitions.

        Returns:
            What it told, and a ``confluent_kafka.KafkaError`` or None.

        Raises:
            confluent_kafka.KafkaException: no answer.
        """
        ck = confluent_kafka()
        found = ctypes.POINTER(lib.Metadata)()
        code = self._lib.metadata(
            self._handle, 0, self.topic(name), ctypes.byref(found), int(timeout_s * 1000)
        )
        if code:
            raise _exception(code, self._lib.err2str(code))
        try:
            for topic in found.contents.topics[: found.contents.topic_cnt]:
                if topic.topic == name.encode():
                    error = (
                        ck.KafkaError(topic.err, _text(self._lib.err2str(topic.err)))
                        if topic.err
                        else None
                    )
                    told = topic.partitions[: topic.partition_cnt]
                    led = tuple(sorted(each.id for each in told if each.leader >= 0))
                    return Partitions(topic.partition_cnt, led, time.monotonic()), error
        finally:
            self._lib.metadata_destroy(found)
        code = ck.KafkaError.UNKNOWN_TOPIC_OR_PART
        return Partitions(0, (), time.monotonic()), ck.KafkaError(
            code, _text(self._lib.err2str(code))
        )

    def produce(self, topic: str, messages: npt.NDArray[np.void], *, with_partition: bool) -> int:
        """Give records to librdkafka, which copies them; see ``rd_kafka_produce_batch``.

        When its queue is full, it takes none behind the first that found no room, so their order is
        kept.

        Args:
            topic: for all of them.
            messages: in the layout of ``librdkafka.Message``; ``err`` is set for each that is not
                taken.
            with_partition: take ``partition`` of each (-1: the partitioner chooses); otherwise the
                partitioner chooses all.

        Returns:
            How many it took.
        """
        flags = lib.MSG_F_COPY | (lib.MSG_F_PARTITION if with_partition else 0)
        address = messages.ctypes.data
        return int(
            self._lib.produce_batch(
                self.topic(topic), lib.PARTITION_UNASSIGNED, flags, address, len(messages)
            )
        )

    def produce_each(self, arguments: list[int], counts: list[int]) -> tuple[int, Any]:
        """Give records with headers or timestamps to librdkafka one by one; see
        ``rd_kafka_produceva``.

        Args:
            arguments: for each record, the address of its arguments (``rd_kafka_vu_t``).
            counts: how many these are.

        Returns:
            How many it took, and the ``confluent_kafka.KafkaError`` of the next one, or None when
            it took all.
        """
        produceva, handle = self._lib.produceva, self._handle
        for position, (address, count) in enumerate(zip(arguments, counts, strict=True)):
            error = produceva(handle, address, count)
            if error:
                return position, self._taken(error)
        return len(arguments), None

    def outstanding(self) -> int:
        """Return how many records and events wait."""
        return int(self._lib.outq_len(self._handle))

    def flush(self, timeout_s: float) -> int:
        """Have all records sent at once, and wait for their answers for at most ``timeout_s``;
        return how many still wait.

        Raises:
            confluent_kafka.KafkaException: the client has failed for good.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            left_ms = max(0, int((until_s - time.monotonic()) * 1000))
            is_done = self._lib.flush(self._handle, min(left_ms, _FLUSH_SLICE_MS)) == 0
            self.poll(0)
            if is_done or left_ms == 0:
                return 0 if is_done else self.outstanding()

    def purge(self, *, in_flight: bool = True) -> None:
        """Drop the records that are not sent, and with ``in_flight`` those whose answer is not
        there.
        """
        self._lib.purge(
            self._handle, lib.PURGE_F_QUEUE | (lib.PURGE_F_INFLIGHT if in_flight else 0)
        )

    # --- transactions -----------------------------------------------------------------------------

    def init_transactions(self, timeout_s: float) -> None:
        """Get a producer id; see librdkafka's function of that name, as for the others. Raises
        ``confluent_kafka.KafkaException``.
        """
        self._check(self._lib.init_transactions(self._handle, int(timeout_s * 1000)))

    def begin_transaction(self) -> None:
        """Begin one; sends nothing."""
        self._check(self._lib.begin_transaction(self._handle))

    def commit_transaction(self, timeout_s: float) -> None:
        """Commit it."""
        self._check(self._lib.commit_transaction(self._handle, int(timeout_s * 1000)))

    def abort_transaction(self, timeout_s: float) -> None:
        """Abort it."""
        self._check(self._lib.abort_transaction(self._handle, int(timeout_s * 1000)))

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Take user and password for connections still to be made."""
        self._check(
            self._lib.sasl_set_credentials(self._handle, username.encode(), password.encode())
        )

    def _check(self, error: int | None) -> None:
        if error:
            raise confluent_kafka().KafkaException(self._taken(error))

    def _taken(self, error: int) -> Any:
        """Return an error of librdkafka's as one of confluent-kafka's, and free it."""
        try:
            return confluent_kafka().KafkaError(
                self._lib.error_code(error),
                _text(self._lib.error_string(error)),
                fatal=bool(self._lib.error_is_fatal(error)),
                retriable=bool(self._lib.error_is_retriable(error)),
                txn_requires_abort=bool(self._lib.error_txn_requires_abort(error)),
            )
        finally:
            self._lib.error_destroy(error)


def _setting(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(text: bytes | None) -> str:
    return (text or b"").decode(errors="replace")


def _exception(code: int, reason: bytes) -> Exception:
    ck = confluent_kafka()
    exception: Exception = ck.KafkaException(ck.KafkaError(code, _text(reason)))
    return exception
