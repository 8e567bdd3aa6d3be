"""The Kafka sink: transactional producers in the tasks, EndTxn from the driver.

A task writes in a transaction of its own and flushes it; its committable says (transactional id,
producer id, epoch). The driver commits it with that alone, whatever became of the task's process.
Until then no reader at ``read_committed`` sees a record of it.

Promised with ``delivery="exactly_once"``: that of docs/guarantees.md. With ``"at_least_once"``:
every record of a batch is acknowledged by all in-sync replicas before the batch is decided; a
replayed batch is written again. With ``"none"``: nothing; records are handed to librdkafka, nobody
waits for them, and what fails is only logged.

Not promised: that the transactions of a batch become visible in one instant; anything to readers at
``read_uncommitted``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from onceforall.common import arguments, logs
from onceforall.common.two_sided import TwoSided
from onceforall.errors import OptionError, SinkCheckError
from onceforall.failpoints import points as failpoints
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
from onceforall.sinks.kafka.access.security import (
    AccessError,
    fingerprint,
    resolved,
    secret_values,
    warn_of_weakness,
    without_values,
)
from onceforall.sinks.kafka.columns import kafka_columns
from onceforall.sinks.kafka.names import check_prefix, parse_name
from onceforall.sinks.kafka.options import (
    Delivery,
    check_accepted,
    checked_options,
    message_max_bytes,
    message_timeout_ms,
    producer_configuration,
    transaction_timeout_ms,
)
from onceforall.sinks.kafka.task import librdkafka
from onceforall.sinks.kafka.task.partitioning import PartitionRules
from onceforall.sinks.kafka.task.producers import POOL
from onceforall.sinks.kafka.task.writer import KafkaTransaction

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from onceforall.sinks.kafka.driver.committable import KafkaCommittable
    from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
    from onceforall.sinks.kafka.driver.retry import Retry
    from onceforall.sinks.kafka.driver.transaction_reader import TransactionReader

_log = logs.logger("onceforall.sinks.kafka")

_MAX_BURNT = 1000
_PATIENCE_RESERVE_S = 10.0
_CONFIRM_PATIENCE_S = 60.0
_SURE_S = 2.0
"""So long ago a commit's own confirmation may have asked, to be what it goes by."""


class KafkaSink(TwoSided, TwoPhaseCommitSink):
    """Writes rows to Kafka topics; ``kafka_columns`` says which columns it reads."""

    kind: ClassVar[str] = "kafka"

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        topic: str | None = None,
        delivery: Delivery = "exactly_once",
        transactional_id_prefix: str = "onceforall",
        timestamp_column: str | None = None,
    ) -> None:
        """Nothing is connected yet.

        Args:
            options: librdkafka's producer options, ``bootstrap.servers`` at least; module
                ``options`` says which are refused.
            topic: where all records go; None: each row's column ``topic`` says. It wins over that
                column.
            delivery: ``exactly_once``, ``at_least_once`` or ``none``.
            transactional_id_prefix: how the transactional ids begin, followed by a colon; ACLs can
                be granted for that.
            timestamp_column: the TIMESTAMP column that is the record's time; None: the time of
                sending.

        Raises:
            OptionError: naming the option, the reason and what to use instead.
        """
        if topic is not None and (not isinstance(topic, str) or not topic):
            raise OptionError(
                f"topic={arguments.shown(topic)} is no topic. Give its name, or None to take it "
                "from the column 'topic'."
            )
        self._options = checked_options(options, delivery)
        self._topic = topic
        self._delivery = delivery
        self._prefix = check_prefix(transactional_id_prefix)
        if timestamp_column is not None:
            arguments.text(
                "timestamp_column",
                timestamp_column,
                "the name of a TIMESTAMP column, or leave it out",
            )
        self._timestamp_column = timestamp_column
        self._topic_max_bytes: int | None = None
        self._batch_max_bytes: int | None = None
        self._burnt: tuple[str, ...] = ()
        self._begin_driver_side()

    def _make_driver_side(self) -> None:
        self._lock = threading.Lock()
        self._no_wait = threading.Event()
        self._client: CoordinatorClient | None = None
        self._reader: TransactionReader | None = None
        self._doubtful: set[str] = set()
        self._just_confirmed: frozenset[str] = frozenset()
        self._sure_until_s = 0.0
        self._topic_ids: dict[str, str] = {}
        self._start: tuple[str, str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self._carried(), "_options": without_values(self._options)}

    def _carried(self) -> dict[str, Any]:
        # ``restored`` puts values into the options, and not into those of another copy.
        return {**super()._carried(), "_options": dict(self._options)}

    def __repr__(self) -> str:
        servers = self._options["bootstrap.servers"]
        return (
            f"KafkaSink(bootstrap.servers={servers!r}, topic={self._topic!r}, "
            f"delivery={self._delivery!r})"
        )

    @property
    def default_name(self) -> str:
        """``kafka-<topic>``; ``kafka`` when a column names the topic."""
        return "kafka" if self._topic is None else f"kafka-{quote(self._topic, safe='')}"

    @property
    def task_imports(self) -> Mapping[str, str]:
        """librdkafka; ``kafka-python`` is for the driver alone."""
        return {
            "onceforall.sinks.kafka": "onceforall[kafka]",
            "confluent_kafka": "onceforall[kafka]",
        }

    @property
    def capabilities(self) -> Capabilities:
        """Two-phase with ``exactly_once`` only; the transaction's timeout is
        ``transaction.timeout.ms``.
        """
        if self._delivery != "exactly_once":
            return Capabilities(two_phase=False, delivery=self._delivery)
        return Capabilities(
            two_phase=True, transaction_timeout_ms=transaction_timeout_ms(self._options)
        )

    def columns(self, schema: StructType) -> list[Column]:
        """Return the columns to write; see ``kafka_columns``."""
        return kafka_columns(schema, topic=self._topic, timestamp_column=self._timestamp_column)

    # --- in the tasks -----------------------------------------------------------------------------

    @failpoints.around("kafka.begin")
    def begin_transaction(self, attempt: TaskAttempt) -> KafkaTransaction:
        """Begin a transaction, with a live producer of this process where that is safe.

        Raises:
            AttemptFailedError: no producer could be initialised.
        """
        configure = partial(self._configuration, secrets=attempt.secrets)
        if self._delivery == "exactly_once":
            producer = POOL.transactional(
                attempt, self._prefix, configure, self._fingerprint(attempt), self._burnt
            )
        else:
            plain = partial(configure, None)
            check_delivery = self._delivery == "at_least_once"
            producer = POOL.plain(
                attempt, plain, self._fingerprint(attempt), check_delivery=check_delivery
            )
        try:
            producer.renew_credentials(partial(resolved, self._options, attempt.secrets))
        except BaseException:
            POOL.discard(producer, abort=True)
            raise
        timeout_ms = message_timeout_ms(self._options, self._delivery)
        return KafkaTransaction(
            producer,
            attempt.batch,
            topic=self._topic,
            message_max_bytes=message_max_bytes(self._options),
            topic_max_bytes=self._topic_max_bytes,
            patience_s=timeout_ms / 1000 + _PATIENCE_RESERVE_S if timeout_ms else float("inf"),
            partitions=PartitionRules.of(self._options),
        )

    def secrets(self) -> Mapping[str, str]:
        """Return the secret values among the options; functions go to the tasks as they are."""
        return secret_values(self._options)

    def restored(self, secrets: Mapping[str, str], driver_only: Mapping[str, Any]) -> KafkaSink:
        """Return this sink with the secret values among its options."""
        self._options = {**self._options, **secrets}
        return super().restored({}, driver_only)

    def _configuration(
        self, transactional_id: str | None, secrets: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        limit = None if "batch.size" in self._options else self._batch_max_bytes
        options = resolved(self._options, secrets or {})
        return producer_configuration(options, self._delivery, transactional_id, limit)

    def _fingerprint(self, attempt: TaskAttempt) -> object:
        return fingerprint(self._options, attempt.secrets), self._batch_max_bytes

    @failpoints.around("kafka.invoke")
    def invoke(self, transaction: KafkaTransaction, rows: pa.RecordBatch) -> None:
        """Hand rows to librdkafka, which sends them in the background.

        Raises:
            RefusedRecordError, AttemptFailedError: see ``KafkaTransaction.write``.
        """
        transaction.write(rows)

    @failpoints.around("kafka.pre_commit")
    def pre_commit(self, transaction: KafkaTransaction) -> Committable | None:
        """Wait until every record is acknowledged; the transaction then waits for the driver.

        Returns:
            ``name`` (the transactional id), ``producer_id``, ``producer_epoch``, ``records``,
            ``doubtful`` when a request went unanswered, and ``burnt``, ids whose InitProducerId
            did; None without records or without transactions.

        Raises:
            RefusedRecordError, AttemptFailedError: a record was not taken, or the transaction has
                failed.
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
        failpoints.hit("kafka.pre_commit.identified")
        committable: dict[str, Any] = {
            "name": producer.name,
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "records": transaction.records,
        }
        if self._topic is None:
            committable["topics"] = sorted(transaction.topics)
        if producer.watch.doubt is not None:
            committable["doubtful"] = True
        if producer.burnt:
            committable["burnt"] = list(producer.burnt)
        producer.last_batch = transaction.batch
        producer.is_begun = False
        transaction.is_over = True
        POOL.release(producer)
        return committable

    @failpoints.around("kafka.discard")
    def discard(self, transaction: KafkaTransaction) -> None:
        """Give up a transaction, and abort it in the background.

        Nothing is done to one that ``pre_commit`` has returned.
        """
        if transaction.is_over:
            return
        transaction.is_over = True
        try:
            POOL.discard(transaction.producer, abort=True)
        except Exception:  # noqa: BLE001 - discard never raises
            _log.exception("A Kafka transaction could not be given up; the sweep finds it")

    # --- on the driver ----------------------------------------------------------------------------
    # What it takes is imported there: a worker has no use for it.

    def identity(self, start: StartInfo) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return the cluster's id.

        Raises:
            SinkUnavailableError: no broker can be reached.
            SinkCheckError: access is refused.
        """
        from onceforall.sinks.kafka.driver.broker_client import AccessRefusedError

        try:
            cluster = self._connected().identify().cluster
        except (AccessError, AccessRefusedError) as error:
            raise SinkCheckError(str(error)) from error
        return None if cluster is None else {"cluster": cluster}

    @failpoints.around("kafka.check")
    def check(self, start: StartInfo) -> None:
        """Check options, brokers, topic and limits; nothing is created in the cluster.

        Raises:
            OptionError: librdkafka refuses an option.
            SinkUnavailableError: no broker can be reached.
            SinkCheckError: the topic doesn't exist, brokers are too old, or the transaction timeout
                is above the brokers' limit.
            MissingExtraError: confluent-kafka or kafka-python is not installed.
        """
        from onceforall.sinks.kafka.driver.broker_client import AccessRefusedError

        self._start = (start.query_id, start.sink)
        try:
            self._check()
        except (AccessError, AccessRefusedError) as error:
            raise SinkCheckError(str(error)) from error

    def _check(self) -> None:
        from onceforall.sinks.kafka.driver.start_checks import (
            brokers_max_bytes,
            check_topic,
            check_transactions,
        )

        # Here, and not first in a task: there it would fail a batch.
        librdkafka.load()
        check_accepted(self._configuration(None))
        warn_of_weakness(self._options)
        client = self._connected()
        client.check_versions()
        if self._topic is not None:
            self._topic_max_bytes = check_topic(client, self._topic, self._options)
            self._topic_ids = dict(self._connected_reader().identify_surely([self._topic]).topics)
        # What a topic has that a column names is not known yet; most have what the brokers have.
        self._batch_max_bytes = self._topic_max_bytes or brokers_max_bytes(client)
        if self._delivery == "exactly_once":
            check_transactions(client, self._unused_name(), self._options)

    def _unused_name(self) -> str:
        assert self._start is not None
        query_id, sink = (quote(part, safe="") for part in self._start)
        return f"{self._prefix}:{query_id}:{sink}:check:"

    def _connected(self) -> CoordinatorClient:
        from onceforall.sinks.kafka.access.secure_connections import Access
        from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient

        with self._lock:
            if self._client is None:
                access = Access(self._options)
                self._client = CoordinatorClient(self._options["bootstrap.servers"], access=access)
            return self._client

    @failpoints.around("kafka.commit")
    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:
        """Send EndTxn(commit) for each, in parallel.

        A transaction with any repeated or unanswered request, in the task or here, now or in an
        earlier call, is reported as retired.

        Raises:
            SinkUnavailableError: at least one has no answer.
        """
        from onceforall.sinks.kafka.driver.committable import read

        _log.debug("Committing %d transactions of batch %d", len(committables), permit.batch)
        told = read(committables)
        self._burn([name for committable in told for name in committable.get("burnt", ())])
        confirmed_now, self._just_confirmed = self._just_confirmed, frozenset()
        if time.monotonic() > self._sure_until_s:
            # Another sink may have taken its time, and a topic have been deleted meanwhile, or a
            # partition have lost its leader.
            confirmed_now = frozenset()
        unsure = {c["name"] for c in told} - confirmed_now
        # Before anything is sent: producer ids begin anew in another cluster, and may be a
        # stranger's there.
        strange = self._in_other_clusters([c for c in told if c["name"] in unsure])
        elsewhere = {str(each.committable["name"]) for each in strange}
        gone = self._without_their_topics([c for c in told if c["name"] in unsure - elsewhere])
        if not strange and not gone:
            return self._commit(told, unsure)
        in_doubt = (*strange, *gone)
        left_out = {str(each.committable["name"]) for each in in_doubt}
        others = [c for c in told if c["name"] not in left_out]
        report = self._commit(others, unsure - left_out) if others else CommitReport()
        return replace(report, in_doubt=(*report.in_doubt, *in_doubt))

    def _commit(
        self, committables: Sequence[KafkaCommittable], unsure: Collection[str]
    ) -> CommitReport:
        from onceforall.sinks.kafka.driver.coordinator_client import lost_reason
        from onceforall.sinks.kafka.driver.outcomes import unavailable, withheld

        held = withheld(unsure, self._connected_reader(), committables)
        answers = self._connected().end_transactions(
            [c for c in committables if c["name"] not in held]
        )
        answers.missing.update(held)
        with self._lock:
            self._doubtful |= answers.repeated
            doubtful = set(self._doubtful)
        refused = {
            name: code for name, code in answers.codes.items() if code and lost_reason(code) is None
        }
        if answers.missing or refused:
            raise unavailable("commit", answers, refused, self._options)
        completed, retired, missing = [], [], []
        for committable in committables:
            name = committable["name"]
            if lost_reason(answers.codes[name]) is not None:
                missing.append(committable)
            elif name in doubtful or committable.get("doubtful"):
                retired.append(committable)
            else:
                completed.append(committable)
        report = CommitReport(tuple(completed), tuple(retired))
        return self._with_findings(report, missing, answers.codes) if missing else report

    def _with_findings(
        self, report: CommitReport, missing: Sequence[KafkaCommittable], codes: Mapping[str, int]
    ) -> CommitReport:
        from onceforall.sinks.kafka.driver.outcomes import with_findings

        found = with_findings(report, missing, codes, self._connected_reader())
        # The cluster may have been replaced while it was asked.
        strange = self._in_other_clusters(missing)
        of_others = {str(each.committable["name"]) for each in strange}
        return CommitReport(
            found.completed,
            tuple(c for c in found.retired if c["name"] not in of_others),
            tuple(each for each in found.lost if each.committable["name"] not in of_others),
            (
                *(each for each in found.in_doubt if each.committable["name"] not in of_others),
                *strange,
            ),
        )

    def _in_other_clusters(self, committables: Sequence[KafkaCommittable]) -> list[LostTransaction]:
        from onceforall.sinks.kafka.driver.outcomes import in_other_clusters

        return in_other_clusters(
            committables, self._connected(), self._options["bootstrap.servers"]
        )

    def _without_their_topics(
        self, committables: Sequence[KafkaCommittable]
    ) -> list[LostTransaction]:
        from onceforall.sinks.kafka.driver.outcomes import without_their_topics

        return without_their_topics(committables, self._connected(), self._connected_reader())

    def _connected_reader(self) -> TransactionReader:
        from onceforall.sinks.kafka.access.rights import Rights
        from onceforall.sinks.kafka.driver.transaction_reader import TransactionReader

        client = self._connected()
        with self._lock:
            if self._reader is None:
                self._reader = TransactionReader(client, Rights.of(self._options))
            return self._reader

    def stop_waiting(self) -> None:
        """End what ``confirm`` waits for: brokers that don't answer, or partitions without a
        leader.
        """
        self._no_wait.set()

    def _confirm_retry(self) -> Retry:
        from onceforall.sinks.kafka.driver.retry import Retry

        # Brokers take some ten seconds to find that one of them is dead, and who follows it. What
        # is left of the transaction's time is compared with the reserve behind it.
        timeout_s = transaction_timeout_ms(self._options) / 1000
        return Retry(
            max(self._connected().deadline_s, min(_CONFIRM_PATIENCE_S, timeout_s / 4)),
            "Before the decision, the Kafka brokers didn't tell all that is needed",
            "Nothing is decided. Check the brokers "
            f"(bootstrap.servers={self._options['bootstrap.servers']}), and restart.",
            self._no_wait.is_set,
        )

    @failpoints.around("kafka.confirm")
    def confirm(self, committables: Sequence[Committable]) -> Sequence[Committable]:
        """See that every transaction is still open, and note where the log will prove what became
        of it (module ``evidence``).

        Returns:
            The committables, with ``cluster``, its id, and ``proof``: ``topic`` and its
            ``topic_id``, ``partition`` and ``offset``; where they have written to more topics,
            ``topic_ids`` has those of the others.

        Raises:
            AttemptFailedError: one is not open any more: it timed out, or was fenced. Or a topic
                was deleted, or made again, while the query ran.
            SinkUnavailableError: not all brokers answered that have to, for a quarter of the
                transaction's timeout, or a minute; or a partition that was written to has had no
                leader for so long.
        """
        from onceforall.sinks.kafka.driver.committable import read
        from onceforall.sinks.kafka.driver.outcomes import confirmed

        if not committables:
            return committables
        self._no_wait.clear()
        told = read(committables)
        topics = (
            {self._topic} if self._topic is not None else {t for c in told for t in c["topics"]}
        )
        retry = self._confirm_retry()
        found = confirmed(told, topics, self._connected_reader(), self._topic_ids, retry)
        self._just_confirmed = frozenset(str(c["name"]) for c in found)
        self._sure_until_s = retry.turn_s + _SURE_S
        return found

    @failpoints.around("kafka.abort")
    def abort(self, committables: Sequence[Committable]) -> None:
        """Fence prepared transactions that will never be decided, which aborts them.

        Raises:
            SinkUnavailableError: at least one may still be open.
        """
        from onceforall.sinks.kafka.driver.committable import read

        # Names are enough; what is known otherwise tells where they have written to.
        told = read(c for c in committables if "producer_id" in c)
        self._fence_ours([str(c["name"]) for c in committables], told)

    @failpoints.around("kafka.retire")
    def retire(self, committables: Sequence[Committable]) -> None:
        """Fence the ids of committed transactions, so that a late request finds another epoch.

        Raises:
            SinkUnavailableError: at least one is not fenced yet.
        """
        names = [str(c["name"]) for c in committables]
        self._fence_ours(names)
        with self._lock:
            self._doubtful -= set(names)

    @failpoints.around("kafka.recover")
    def recover(self, sweep: Sweep) -> int:
        """Fence every open transaction of the cluster that the sweep covers, and return how many.

        Raises:
            SinkUnavailableError: a broker did not answer, or one may still be open.
        """
        # Also with another delivery: an earlier start may have written with transactions.
        covered = [
            name for name in self._connected().open_transactions() if self._is_covered(sweep, name)
        ]
        failpoints.hit("kafka.recover.listed")
        self._fence(covered)
        return len(covered)

    def _is_covered(self, sweep: Sweep, transactional_id: str) -> bool:
        parsed = parse_name(transactional_id)
        if parsed is None or (self._start is not None and parsed[1].query_id != self._start[0]):
            return False
        prefix, name = parsed
        # A run writes under one prefix: what another one has of its own generation is the work of a
        # copied checkpoint.
        if name.generation >= sweep.generation and prefix != self._prefix:
            return False
        return sweep.covers(name.query_id, name.sink, name.generation, transactional_id)

    def _fence_ours(
        self, names: Collection[str], committables: Sequence[KafkaCommittable] = ()
    ) -> None:
        ours = [name for name in names if self._is_ours(name)]
        if len(ours) < len(names):
            _log.error(
                "%d transactional ids are not of this query and sink; they were left alone",
                len(names) - len(ours),
            )
        self._fence(ours, committables)

    def _fence(self, ours: Collection[str], committables: Sequence[KafkaCommittable] = ()) -> None:
        from onceforall.sinks.kafka.driver.coordinator_client import is_fenced
        from onceforall.sinks.kafka.driver.outcomes import unavailable, withheld

        if not ours:
            return
        client = self._connected()
        held = withheld(ours, self._connected_reader(), committables)
        failpoints.hit("kafka.fence.before")
        answers = client.fence([name for name in ours if name not in held])
        failpoints.hit("kafka.fence.after")
        client.forget(ours)
        answers.missing.update(held)
        self._burn(sorted(answers.unanswered))
        refused = {name: code for name, code in answers.codes.items() if not is_fenced(code)}
        if answers.missing or refused:
            raise unavailable("fence", answers, refused, self._options)

    def _burn(self, names: Sequence[str]) -> None:
        # An InitProducerId that was not answered may come later and fence whoever owns the id by
        # then: this run gives it to nobody.
        if names:
            with self._lock:
                self._burnt = tuple(dict.fromkeys([*self._burnt, *names]))[-_MAX_BURNT:]

    def _is_ours(self, transactional_id: str) -> bool:
        # The prefix may have been changed since. Before ``check``, though, it is all that is known.
        parsed = parse_name(transactional_id)
        if parsed is None:
            return False
        prefix, name = parsed
        return (
            prefix == self._prefix
            if self._start is None
            else (name.query_id, name.sink) == self._start
        )

    def close(self) -> None:
        """Close the driver's connections; the next call opens new ones."""
        with self._lock:
            client, self._client, self._reader = self._client, None, None
        if client is not None:
            client.close()


__all__ = ["KafkaSink"]
