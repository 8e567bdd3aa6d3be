"""The Kafka sink: transactional producers in the tasks, EndTxn from the driver.

A task writes in a transaction of its own and flushes it; its committable says (transactional id, producer id, epoch). The driver commits it
with that alone, whatever became of the task's process. Until then no reader at ``read_committed`` sees a record of it.

Promised with ``delivery="exactly_once"``: the promise of design.md §2.5. With ``"at_least_once"``: every record of a batch is acknowledged
by all in-sync replicas before the batch is decided; a replayed batch is written again. With ``"none"``: nothing; records are handed
to librdkafka, nobody waits for them, and what fails is only logged.

Not promised: that the transactions of a batch become visible in one instant; anything to readers at ``read_uncommitted``.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from onceforall.errors import OptionError, SinkCheckError, SinkUnavailableError
from onceforall.sink import (
    Capabilities,
    CommitPermit,
    CommitReport,
    Committable,
    LostTransaction,
    StartInfo,
    Sweep,
    TaskAttempt,
    TwoPhaseCommitSink,
)
from onceforall.sinks.kafka.columns import kafka_columns
from onceforall.sinks.kafka.coordinator_client import Answers, CoordinatorClient, error_name, is_fenced, lost_reason
from onceforall.sinks.kafka.names import TransactionName, check_prefix, parse_name
from onceforall.sinks.kafka.options import (
    check_accepted,
    checked_options,
    message_max_bytes,
    message_timeout_ms,
    producer_configuration,
    transaction_timeout_ms,
)
from onceforall.sinks.kafka.producers import POOL
from onceforall.sinks.kafka.writer import KafkaTransaction
from onceforall.testing import failpoints

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_log = logging.getLogger("onceforall.sinks.kafka")

_MAX_BURNT = 1000
_PATIENCE_RESERVE_S = 10.0
_UNKNOWN_TOPIC = 3


class KafkaSink(TwoPhaseCommitSink):
    """Writes rows to Kafka topics; ``kafka_columns`` says which columns it reads."""

    kind: ClassVar[str] = "kafka"

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        topic: str | None = None,
        delivery: str = "exactly_once",
        transactional_id_prefix: str = "onceforall",
        timestamp_column: str | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            options: librdkafka's producer options, ``bootstrap.servers`` at least; module ``options`` says which are refused.
            topic: where all records go; None: each row's column ``topic`` says. It wins over that column.
            delivery: ``exactly_once``, ``at_least_once`` or ``none``.
            transactional_id_prefix: how the transactional ids begin, followed by a colon; ACLs can be granted for that.
            timestamp_column: the TIMESTAMP column that is the record's time; None: the time of sending.

        Raises:
            OptionError: naming the option, the reason and what to use instead.
        """
        if topic is not None and (not isinstance(topic, str) or not topic):
            raise OptionError(f"topic={topic!r} is no topic. Give its name, or None to take it from the column 'topic'.")
        self._options = checked_options(options, delivery)
        self._topic = topic
        self._delivery = delivery
        self._prefix = check_prefix(transactional_id_prefix)
        self._timestamp_column = timestamp_column
        self._topic_max_bytes: int | None = None
        self._burnt: tuple[str, ...] = ()
        self._make_driver_side()

    def _make_driver_side(self) -> None:
        self._lock = threading.Lock()
        self._client: CoordinatorClient | None = None
        self._doubtful: set[str] = set()
        self._start: tuple[str, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_lock", "_client", "_doubtful", "_start"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_driver_side()

    def __repr__(self) -> str:
        servers = self._options["bootstrap.servers"]
        return f"KafkaSink(bootstrap.servers={servers!r}, topic={self._topic!r}, delivery={self._delivery!r})"

    @property
    def default_name(self) -> str:
        """``kafka-<topic>``; ``kafka`` when a column names the topic."""
        return "kafka" if self._topic is None else f"kafka-{quote(self._topic, safe='')}"

    @property
    def capabilities(self) -> Capabilities:
        """Two-phase with ``exactly_once`` only; the transaction's timeout is ``transaction.timeout.ms``."""
        if self._delivery != "exactly_once":
            return Capabilities(two_phase=False, delivery=self._delivery)
        return Capabilities(two_phase=True, transaction_timeout_ms=transaction_timeout_ms(self._options))

    def columns(self, schema: StructType) -> list[Column]:
        """Return the columns to write; see ``kafka_columns``."""
        return kafka_columns(schema, topic=self._topic, timestamp_column=self._timestamp_column)

    # --- in the tasks ------------------------------------------------------------------------------------------------------

    def begin_transaction(self, attempt: TaskAttempt) -> KafkaTransaction:
        """Begin a transaction, with a live producer of this process where that is safe.

        Raises:
            AttemptFailedError: no producer could be initialised.
        """
        if self._delivery == "exactly_once":
            producer = POOL.transactional(attempt, self._prefix, self._configuration, self._burnt)
        else:
            producer = POOL.plain(attempt, self._configuration(None), check_delivery=self._delivery == "at_least_once")
        timeout_ms = message_timeout_ms(self._options, self._delivery)
        return KafkaTransaction(
            producer,
            attempt.batch,
            topic=self._topic,
            message_max_bytes=message_max_bytes(self._options),
            topic_max_bytes=self._topic_max_bytes,
            patience_s=timeout_ms / 1000 + _PATIENCE_RESERVE_S if timeout_ms else float("inf"),
        )

    def _configuration(self, transactional_id: str | None) -> dict[str, Any]:
        limit = None if "batch.size" in self._options else self._topic_max_bytes
        return producer_configuration(self._options, self._delivery, transactional_id, limit)

    def invoke(self, transaction: KafkaTransaction, rows: pa.RecordBatch) -> None:
        """Hand rows to librdkafka, which sends them in the background.

        Raises:
            RefusedRecordError, AttemptFailedError: see ``KafkaTransaction.write``.
        """
        transaction.write(rows)

    def pre_commit(self, transaction: KafkaTransaction) -> Committable | None:
        """Wait until every record is acknowledged; the transaction then waits for the driver.

        Returns:
            ``name`` (the transactional id), ``producer_id``, ``producer_epoch``, ``records``, and ``doubtful`` when a request went unanswered; None
            without records or without transactions.

        Raises:
            RefusedRecordError, AttemptFailedError: a record was not taken, or the transaction has failed.
        """
        producer = transaction.producer
        if self._delivery == "none":
            producer.poll()
        else:
            transaction.flush()
        if self._delivery != "exactly_once":
            transaction.is_over = True
            POOL.release(producer)
            return None
        if not transaction.records:
            transaction.is_over = True
            if producer.last_batch is None:
                POOL.discard(producer)
            else:
                POOL.release(producer)
            return None
        producer.check_open()
        producer_id, epoch = producer.identify()
        committable = {
            "name": producer.name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "records": transaction.records,
        }
        if producer.watch.doubt is not None:
            committable["doubtful"] = True
        producer.last_batch = transaction.batch
        producer.is_begun = False
        transaction.is_over = True
        POOL.release(producer)
        return committable

    def discard(self, transaction: KafkaTransaction) -> None:
        """Give up a transaction, and abort it in the background. Nothing is done to one that ``pre_commit`` has returned."""
        if transaction.is_over:
            return
        transaction.is_over = True
        try:
            POOL.discard(transaction.producer, abort=True)
        except Exception:  # noqa: BLE001 - discard never raises
            _log.exception("A Kafka transaction could not be given up; the sweep finds it")

    # --- on the driver -----------------------------------------------------------------------------------------------------

    def check(self, start: StartInfo) -> None:
        """Check options, brokers, topic and limits; nothing is created in the cluster.

        Raises:
            OptionError: librdkafka refuses an option.
            SinkUnavailableError: no broker can be reached.
            SinkCheckError: the topic doesn't exist, brokers are too old, or the transaction timeout is above the brokers' limit.
            MissingExtraError: confluent-kafka or kafka-python is not installed.
        """
        self._start = (start.query_id, start.sink)
        check_accepted(self._configuration(None))
        client = self._connected()
        client.metadata()
        if self._topic is not None:
            self._check_topic(client, self._topic)
        if self._delivery != "exactly_once":
            return
        client.open_transactions()
        limit = client.broker_setting("transaction.max.timeout.ms")
        timeout_ms = transaction_timeout_ms(self._options)
        if limit is None:
            _log.warning(
                "The brokers' transaction.max.timeout.ms could not be read; transaction.timeout.ms=%d is not checked",
                timeout_ms,
            )
        elif timeout_ms > int(limit):
            raise SinkCheckError(
                f"transaction.timeout.ms={timeout_ms} is above the brokers' transaction.max.timeout.ms={limit}. Lower the sink's option, or raise "
                "the brokers' setting."
            )

    def _check_topic(self, client: CoordinatorClient, topic: str) -> None:
        found = client.metadata(topic).topics[0]
        if found.error_code == _UNKNOWN_TOPIC:
            raise SinkCheckError(
                f"Topic {topic!r} does not exist at {self._options['bootstrap.servers']}. Create it first, or correct topic=."
            )
        if found.error_code and not found.partitions:
            raise SinkCheckError(
                f"Topic {topic!r} can't be used: {error_name(found.error_code)}. Grant DESCRIBE and WRITE on it, or correct topic=."
            )
        limit = client.topic_setting(topic, "max.message.bytes")
        self._topic_max_bytes = int(limit) if limit is not None else None

    def _connected(self) -> CoordinatorClient:
        with self._lock:
            if self._client is None:
                self._client = CoordinatorClient(self._options["bootstrap.servers"])
            return self._client

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """Send EndTxn(commit) for each, in parallel.

        A transaction with any repeated or unanswered request, in the task or here, now or in an earlier call, is reported as retired.

        Raises:
            SinkUnavailableError: at least one has no answer.
        """
        _log.debug("Committing %d transactions of batch %d", len(committables), permit.batch)
        answers = self._end(committables)
        with self._lock:
            self._doubtful |= answers.repeated
            doubtful = set(self._doubtful)
        refused = {name: code for name, code in answers.codes.items() if code and lost_reason(code) is None}
        if answers.missing or refused:
            raise self._unavailable("commit", answers, refused)
        completed, retired, lost = [], [], []
        for committable in committables:
            name = str(committable["name"])
            reason = lost_reason(answers.codes[name])
            if reason is not None:
                lost.append(LostTransaction(committable, f"Kafka answered {reason} to EndTxn"))
            elif name in doubtful or committable.get("doubtful"):
                retired.append(committable)
            else:
                completed.append(committable)
        return CommitReport(tuple(completed), tuple(retired), tuple(lost))

    def _end(self, committables: Sequence[Committable]) -> Answers:
        client = self._connected()
        if not failpoints.wanted("kafka.end_txn.after"):
            return client.end_transactions(committables)
        answers = Answers()
        for committable in committables:
            one = client.end_transactions([committable])
            answers.codes.update(one.codes)
            answers.repeated |= one.repeated
            answers.missing.update(one.missing)
            failpoints.hit("kafka.end_txn.after")
        return answers

    def abort(self, committables: Sequence[Committable]) -> None:
        """Fence prepared transactions that will never be decided, which aborts them.

        Raises:
            SinkUnavailableError: at least one may still be open.
        """
        self._fence([str(c["name"]) for c in committables])

    def retire(self, committables: Sequence[Committable]) -> None:
        """Fence the ids of committed transactions, so that a late request finds another epoch.

        Raises:
            SinkUnavailableError: at least one is not fenced yet.
        """
        names = [str(c["name"]) for c in committables]
        self._fence(names)
        with self._lock:
            self._doubtful -= set(names)

    def recover(self, sweep: Sweep) -> int:
        """Fence every open transaction of the cluster that the sweep covers, and return how many.

        Raises:
            SinkUnavailableError: a broker did not answer, or one may still be open.
        """
        # Also with another delivery: an earlier start may have written with transactions.
        covered = []
        for transactional_id in self._connected().open_transactions():
            name = parse_name(self._prefix, transactional_id)
            if name is not None and sweep.covers(name.query_id, name.sink, name.generation, transactional_id):
                covered.append(transactional_id)
        self._fence(covered)
        return len(covered)

    def _fence(self, names: Collection[str]) -> None:
        ours = [name for name in names if self._is_ours(parse_name(self._prefix, name))]
        if len(ours) < len(names):
            _log.error("%d transactional ids are not of this query and sink; they were left alone", len(names) - len(ours))
        if not ours:
            return
        client = self._connected()
        answers = client.fence(ours)
        client.forget(ours)
        if answers.unanswered:
            # Such a request may come later and fence whoever owns the id by then: this run gives it to nobody.
            with self._lock:
                self._burnt = tuple(dict.fromkeys([*self._burnt, *sorted(answers.unanswered)]))[-_MAX_BURNT:]
        refused = {name: code for name, code in answers.codes.items() if not is_fenced(code)}
        if answers.missing or refused:
            raise self._unavailable("fence", answers, refused)

    def _is_ours(self, name: TransactionName | None) -> bool:
        return name is not None and self._start in {None, (name.query_id, name.sink)}

    def _unavailable(self, what: str, answers: Answers, refused: Mapping[str, int]) -> SinkUnavailableError:
        reasons = {**answers.missing, **{name: f"Kafka answered {error_name(code)}" for name, code in refused.items()}}
        name, reason = next(iter(reasons.items()))
        return SinkUnavailableError(
            f"{len(reasons)} of {len(reasons) + len(answers.codes) - len(refused)} Kafka transactions could not be asked to {what}; {name}: {reason}. Asked "
            f"again. Check the brokers (bootstrap.servers={self._options['bootstrap.servers']}), and that this user may WRITE the TransactionalId."
        )

    def close(self) -> None:
        """Close the driver's connections; the next call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


__all__ = ["KafkaSink"]
