"""One librdkafka producer, and what its events tell about it.

librdkafka says in its log, before the call that was hit returns, when a request may have gone
unanswered: a request that times out is logged as REQTMOUT, a connection that ends as FAIL. (It logs
an idle connection's end, which harms nothing, at a level that isn't shown. It tells neither as an
error.) The log lines come through ``poll``, in order. A connection that librdkafka closes by
itself, because a coordinator has moved, is only counted in its statistics, which are read too; a
broker that still gets a request from it refuses that with NOT_COORDINATOR.
"""

from __future__ import annotations

import json
import logging
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from onceforall.errors import AttemptFailedError
from onceforall.sinks.kafka.access.rights import Rights
from onceforall.sinks.kafka.access.security import TOKEN_OPTION, TokenSource
from onceforall.sinks.kafka.options import check_accepted, confluent_kafka
from onceforall.sinks.kafka.task.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onceforall.sinks.kafka.task.partitioning import Partitions

_log = logging.getLogger("onceforall.sinks.kafka")

_SYSLOG_DEBUG = 7
_LOCAL_COMMIT_DEADLINE_S = 10.0
_IDENTITY_DEADLINE_S = 30.0
_MAX_FAILURES = 1000
# How long ``init_transactions`` waits at a time before the events are heard, one of which may say
# that it waits in vain.
_INIT_SLICE_S = 2.0
# How long a broker's first answer may take before the events are heard, and what that grows to.
_FIRST_PATIENCE_S = 2.0
_LONGEST_PATIENCE_S = 16.0
_RENEW_AFTER_S = 30.0

# In these states of a connection nothing but its own set-up has been sent.
_HARMLESS_FAIL = re.compile(
    r"in state (INIT|DOWN|TRY_CONNECT|CONNECT|SSL_HANDSHAKE|APIVERSION_QUERY|AUTH_[A-Z]+)\b"
)
# But how a connection ends in these states (behind a load balancer, say) is told in the words of
# one that ends later, and librdkafka keeps back, for 30 s, what repeats the line before: the end
# that matters would be heard of too late, from the statistics. It matters for the coordinator's
# connection; a late Produce request is known by its sequence number.
_MUFFLING_FAIL = re.compile(r"\bTxnCoordinator\b.* in state (APIVERSION_QUERY|AUTH_[A-Z]+)\b")


def _is_harmful(failure: str) -> bool:
    return _HARMLESS_FAIL.search(failure) is None or _MUFFLING_FAIL.search(failure) is not None


@dataclass
class DeliveryFailure:
    """A record that a broker did not take."""

    error: Any
    topic: str
    partition: int
    size_bytes: int


# librdkafka goes on asking for ever; nobody but the user can mend these.
_MENDED_BY = {
    "_AUTHENTICATION": "sasl.mechanism, sasl.username and sasl.password (or oauth_cb)",
    "_SSL": "security.protocol, ssl.ca.location, and the name in bootstrap.servers against the "
    "one in the broker's certificate",
}


@dataclass
class Watch:
    """What librdkafka's events said about one producer.

    Knows nothing of the producer, so that no cycle keeps that alive.
    """

    doubt: str | None = None
    refusal: str | None = None
    is_fatal: bool = False
    transaction_error: str | None = None
    failures: list[DeliveryFailure] = field(default_factory=list)
    statistics: str = ""
    check_delivery: bool = True

    def on_log(self, level: int, facility: str, text: str) -> None:
        """Take a line of librdkafka's log."""
        is_debug = level >= _SYSLOG_DEBUG
        _log.log(logging.DEBUG if is_debug else logging.INFO, "%s: %s", facility, text)
        if facility == "TXNERR":
            self.transaction_error = text
        # What is only shown with the option ``debug`` harms nothing: an idle connection, a
        # bootstrap address that is done with.
        if is_debug:
            return
        if facility == "REQTMOUT" or (facility == "FAIL" and _is_harmful(text)):
            self.doubt = self.doubt or text

    def on_error(self, error: Any) -> None:
        """Take an error that concerns the whole client; connections are judged by the log."""
        options = _MENDED_BY.get(error.name())
        if options is not None:
            self.refusal = f"{error.str()}. Check {options}"
        if error.fatal():
            self.is_fatal = True
            self.doubt = self.doubt or str(error)

    def on_statistics(self, text: str) -> None:
        """Keep the newest statistics; they are parsed only when they are asked for."""
        self.statistics = text

    def on_failure(self, error: Any, topic: str, partition: int, size_bytes: int) -> bool:
        """Take the failure of a record; return whether to hear of further ones."""
        if not self.check_delivery:
            _log.error("A record to %s [%s] was not delivered: %s", topic, partition, error)
            return True
        self.failures.append(DeliveryFailure(error, topic, partition, size_bytes))
        return len(self.failures) < _MAX_FAILURES

    def identity(self) -> tuple[int, int] | None:
        """Return producer id and epoch as of the newest statistics; None before there are any."""
        if not self.statistics:
            return None
        statistics = json.loads(self.statistics)
        for broker in statistics.get("brokers", {}).values():
            if broker.get("disconnects", 0) or broker.get("req_timeouts", 0):
                self.doubt = (
                    self.doubt
                    or f"{broker.get('name')}: a connection was lost or a request timed out"
                )
        eos = statistics.get("eos", {})
        producer_id, epoch = int(eos.get("producer_id", -1)), int(eos.get("producer_epoch", -1))
        return (producer_id, epoch) if producer_id >= 0 else None


class LiveProducer:
    """One librdkafka producer with what is known about it. Used by one task at a time."""

    def __init__(
        self, configuration: Mapping[str, Any], name: str | None, *, check_delivery: bool = True
    ) -> None:
        self.name = name
        self.watch = Watch(check_delivery=check_delivery)
        ck = confluent_kafka()
        self.rights = Rights.of(configuration)
        self.configured_s = time.monotonic()
        token_source = configuration.get(TOKEN_OPTION)
        if isinstance(token_source, TokenSource):
            token_source.fetch(configuration.get("sasl.oauthbearer.config"))
        try:
            self.client = Client(configuration, self.watch)
        except ck.KafkaException as error:
            check_accepted(configuration)
            raise AttemptFailedError(
                f"A Kafka producer could not be made: {error.args[0].str()}"
            ) from error
        self.producer_id = -1
        self.epoch = -1
        self.last_batch: int | None = None
        self.is_begun = False
        self.in_use = True
        self.burnt: tuple[str, ...] = ()
        self.idle_since_s = time.monotonic()
        self.topics: dict[str, Partitions] = {}
        """What is known of those that it has written to, in any transaction."""

    def poll(self, timeout_s: float = 0) -> None:
        """Hear the events, waiting for at most ``timeout_s``.

        Raises:
            AttemptFailedError: the client has failed for good, for example because it was fenced.
        """
        self._call(self.client.poll, timeout_s)

    def works(self) -> bool:
        """Tell whether nothing was heard, now or before, that fails whatever is done with it."""
        with suppress(AttemptFailedError):
            self.poll(0)
        return self.watch.refusal is None and not self.watch.is_fatal

    def flush(self, timeout_s: float) -> int:
        """Wait for the records that are under way, and return how many still are.

        Raises:
            AttemptFailedError: the client has failed for good.
        """
        return int(self._call(self.client.flush, timeout_s))

    def _call(self, function: Any, timeout_s: float) -> Any:
        try:
            answer = function(timeout_s)
        except confluent_kafka().KafkaException as error:
            self._fail(error)
        self._check_access()
        return answer

    def _fail(self, error: BaseException) -> NoReturn:
        self.watch.doubt = self.watch.doubt or str(error)
        raise AttemptFailedError(
            f"The Kafka producer of {self.name} has failed: {error}{self._missing_right(error)}"
        ) from error

    def _check_access(self) -> None:
        refusal = self.watch.refusal
        if refusal is not None:
            self.watch.doubt = self.watch.doubt or refusal
            raise AttemptFailedError(
                f"A broker can't be used by the Kafka producer of {self.name}: {refusal}."
            )

    def _missing_right(self, reason: Any) -> str:
        error = reason.args[0] if isinstance(reason, BaseException) and reason.args else reason
        name = error.name() if hasattr(error, "name") else ""
        if name == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED":
            return f". {self.rights.transactional_id(str(self.name))}"
        return ""

    def renew_credentials(self, resolve: Callable[[], Mapping[str, Any]]) -> None:
        """Take user and password anew, for connections still to be made, when those we have are not
        of this moment.

        Args:
            resolve: calls the user's functions and returns the options.

        Raises:
            AttemptFailedError: a function failed.
        """
        if time.monotonic() - self.configured_s < _RENEW_AFTER_S:
            return
        options = resolve()
        if "sasl.username" in options:
            self.client.set_sasl_credentials(options["sasl.username"], options["sasl.password"])
        self.configured_s = time.monotonic()

    def connect(self, deadline_s: float) -> bool:
        """Wait until a broker has answered, before anything is sent in the producer's name.

        librdkafka drops its first connection for one to a broker that it knows by name, and when it
        looks for a coordinator between the two it looks again after 500 ms only
        (``rd_kafka_idemp_pid_timer_restart``).

        Args:
            deadline_s: of ``time.monotonic``. When no broker was reached by then, ``initialise``
                says why.

        Returns:
            False when a request timed out or a connection was lost: what librdkafka tells of that
            cannot be told from the same in ``initialise``, so another producer must be made. It may
            have this one's name.

        Raises:
            AttemptFailedError: the cluster refuses, or connections are still being lost at the
                deadline.
        """
        ck = confluent_kafka()
        patience_s = _FIRST_PATIENCE_S
        while True:
            try:
                self.client.connect(max(0.1, min(patience_s, deadline_s - time.monotonic())))
                is_answered = True
            except ck.KafkaException:
                is_answered = False
            self.poll(0)
            is_late = time.monotonic() > deadline_s
            if self.watch.doubt is not None:
                if is_late:
                    raise AttemptFailedError(
                        f"No broker answered the new Kafka producer of {self.name} in time: "
                        f"{self.watch.doubt}."
                        " Check the brokers, and the network between them and the executors."
                    )
                return False
            if is_answered or is_late:
                return True
            # A broker that is slow would be slower still with a request every other second.
            patience_s = min(2 * patience_s, _LONGEST_PATIENCE_S)

    def initialise(self, deadline_s: float) -> None:
        """Get a producer id of our own for the name, which aborts what an earlier owner of the name
        left open.

        Raises:
            AttemptFailedError: no answer before the deadline (of ``time.monotonic``), or the
                cluster refuses.
        """
        ck = confluent_kafka()
        while True:
            try:
                self.client.init_transactions(
                    max(0.1, min(_INIT_SLICE_S, deadline_s - time.monotonic()))
                )
            except ck.KafkaException as error:
                reason = error.args[0]
                if reason.retriable() and time.monotonic() < deadline_s:
                    self.poll(0)
                    continue
                raise AttemptFailedError(
                    f"Kafka gave no producer id for transactional id {self.name}: {reason.str()}"
                    f"{self._missing_right(reason) or '. Check that the brokers can be reached from the executors.'}"  # noqa: E501
                ) from error
            break
        self.poll(0)

    def identify(self) -> tuple[int, int]:
        """Return the producer id and epoch of the transaction that is open.

        The epoch only changes after an error that the transaction can't survive, which
        ``check_open`` sees.

        Raises:
            AttemptFailedError: librdkafka gives no statistics, or others than before.
        """
        deadline_s = time.monotonic() + _IDENTITY_DEADLINE_S
        while (identity := self.watch.identity()) is None:
            if time.monotonic() > deadline_s:
                raise AttemptFailedError(
                    f"librdkafka reported no producer id for {self.name} in "
                    f"{_IDENTITY_DEADLINE_S:.0f} s."
                )
            self.poll(0.005)
        if self.producer_id >= 0 and identity != (self.producer_id, self.epoch):
            raise AttemptFailedError(
                f"The producer of {self.name} changed its id or epoch within a transaction. The "
                "attempt is repeated."
            )
        self.producer_id, self.epoch = identity
        return identity

    def check_open(self) -> None:
        """Check that librdkafka, too, holds the transaction to be good.

        ``begin_transaction`` is not allowed in an open transaction and says in which state it is,
        without any request.

        Raises:
            AttemptFailedError: the transaction has failed.
        """
        ck = confluent_kafka()
        try:
            self.client.begin_transaction()
        except ck.KafkaException as error:
            reason = error.args[0]
            if reason.code() == ck.KafkaError._STATE and reason.str().endswith("InTransaction"):  # noqa: SLF001
                return
            raise AttemptFailedError(
                f"The transaction of {self.name} failed: {reason.str()}"
            ) from error
        raise AttemptFailedError(f"The transaction of {self.name} was not open.")

    def advance(self) -> bool:
        """Bring the client past the transaction that the driver has committed, and begin the next
        one.

        The client's own commit is answered as "already committed" (a repeated EndTxn, which Kafka
        takes as a success).

        Returns:
            False when this producer must be discarded: it said, now or before, that a request went
            unanswered, or refused.
        """
        ck = confluent_kafka()
        try:
            self.poll(0)
            if not self._is_beyond_doubt():
                return False
            if not self.is_begun:
                self.client.commit_transaction(_LOCAL_COMMIT_DEADLINE_S)
                self.poll(0)
                if not self._is_beyond_doubt():
                    return False
                self.client.begin_transaction()
        except (ck.KafkaException, AttemptFailedError) as error:
            _log.info("The producer of %s is not used again: %s", self.name, error)
            return False
        self.is_begun = True
        return True

    def _is_beyond_doubt(self) -> bool:
        if self.name is not None:
            identity = self.watch.identity()
            if identity != (self.producer_id, self.epoch):
                return False
        if self.watch.doubt is not None:
            _log.info("The producer of %s is not used again: %s", self.name, self.watch.doubt)
        return self.watch.doubt is None and not self.watch.failures

    def matches(self, reusable: Mapping[str, Mapping[str, Any]]) -> bool:
        """Tell whether the driver says that exactly this producer's last transaction is
        complete.
        """
        entry = reusable.get(self.name or "")
        return (
            entry is not None
            and self.last_batch is not None
            and entry["batch"] == self.last_batch
            and entry["producer_id"] == self.producer_id
            and entry["producer_epoch"] == self.epoch
        )
