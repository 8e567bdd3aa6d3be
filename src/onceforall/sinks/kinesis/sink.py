"""The Kinesis sink: at least once, with an id in each record by which readers drop what came twice.

Kinesis has no transactions: what is put can be seen at once, and can't be taken back. So a batch's
records are put before the batch is decided. Promised: every record of a batch is taken by Kinesis
before the batch is decided, so none is missing; records with one partition key that a task writes
come in their order.

Not promised: once. A batch that is replayed is put again, and so is a request whose answer was
lost. A replay may put what another task of the first attempt has put already, so within a key
older records may come again behind newer ones. ``docs/kinesis.md`` has a reader that drops by id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from onceforall.common import arguments
from onceforall.common.aws import (
    Access,
    RenewedClient,
    checked_endpoint,
    checked_function,
    code_of,
    is_said,
    is_stream,
    may_succeed,
    remedy,
    request_errors,
    shared_client,
    told,
)
from onceforall.errors import AttemptFailedError, SinkCheckError, SinkUnavailableError
from onceforall.sink import (
    Capabilities,
    CommitPermit,
    CommitReport,
    Committable,
    StartInfo,
    Sweep,
    TaskAttempt,
    TwoPhaseCommitSink,
)
from onceforall.sinks.kinesis.columns import kinesis_columns
from onceforall.sinks.kinesis.writing import KinesisWriting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType

_MAX_RECORD_BYTES = 1024 * 1024


class KinesisSink(TwoPhaseCommitSink):
    """Puts rows into a Kinesis stream; ``kinesis_columns`` says which columns it reads."""

    kind: ClassVar[str] = "kinesis"

    def __init__(
        self,
        stream: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
        role_arn: str | None = None,
        credentials_function: str | None = None,
        record_id: str | None = "record_id",
        ordered: bool = True,
        max_record_bytes: int = _MAX_RECORD_BYTES,
        retry_s: float = 120.0,
    ) -> None:
        """Nothing is connected yet.

        Args:
            stream: its name or ARN.
            region: the region; None: that of the usual chain, where the code runs.
            endpoint_url: another address of Kinesis.
            profile: a profile of the AWS configuration files.
            role_arn: a role to assume.
            credentials_function: ``module:function``, which returns a ``boto3.Session``; None: the
                usual chain.
            record_id: the column with each row's id, which goes into the JSON of its record; None:
                the rows have a column ``data`` with an id in it.
            ordered: keep the order within a partition key; a key then has one record per request.
            max_record_bytes: the largest record that the stream takes.
            retry_s: for how long a task goes on when nothing is taken.

        Raises:
            OptionError: naming the argument and what to give instead.
        """
        self._stream = arguments.text("stream", stream, "the name or the ARN of a stream")
        if not is_stream(stream):
            raise arguments.wrong("stream", stream, "the name or the ARN of a Kinesis stream")
        for name, value in (
            ("region", region),
            ("profile", profile),
            ("role_arn", role_arn),
            ("record_id", record_id),
        ):
            if value is not None:
                arguments.text(name, value, "a text, or leave it out")
        self._access = Access(
            region=region,
            endpoint_url=checked_endpoint("endpoint_url", endpoint_url),
            profile=profile,
            role_arn=role_arn,
            credentials_function=checked_function("credentials_function", credentials_function),
        )
        self._record_id = record_id
        self._ordered = arguments.flag("ordered", ordered)
        self._max_record_bytes = arguments.whole("max_record_bytes", max_record_bytes, 1)
        self._retry_s = arguments.number("retry_s", retry_s, positive=True)

    def __repr__(self) -> str:
        return f"KinesisSink({self._stream!r})"

    @property
    def default_name(self) -> str:
        """``kinesis-<stream>``."""
        return f"kinesis-{quote(self._stream.rpartition('/')[2], safe='')}"

    @property
    def task_imports(self) -> Mapping[str, str]:
        """boto3."""
        return {
            "onceforall.sinks.kinesis": "onceforall[kinesis]",
            "boto3": "onceforall[kinesis]",
        }

    @property
    def capabilities(self) -> Capabilities:
        """At least once: Kinesis has no transactions."""
        return Capabilities(two_phase=False, delivery="at_least_once")

    def columns(self, schema: StructType) -> list[Column]:
        """Return the columns to write; see ``kinesis_columns``."""
        return kinesis_columns(schema, self._record_id)

    # --- in the tasks -----------------------------------------------------------------------------

    def begin_transaction(self, attempt: TaskAttempt) -> KinesisWriting:  # noqa: ARG002
        """Return what a task writes with.

        Raises:
            AttemptFailedError: credentials can't be fetched.
        """
        try:
            shared_client(self._access, retry_s=self._retry_s)
        except request_errors() as error:
            raise AttemptFailedError(
                f"boto3 can't get credentials for PutRecords to {self._stream}: {told(error)}. "
                f"{remedy(error, 'Check the credentials where the task runs.')}"
            ) from None
        return KinesisWriting(
            RenewedClient(self._access),
            self._stream,
            ordered=self._ordered,
            max_record_bytes=self._max_record_bytes,
            retry_s=self._retry_s,
        )

    def invoke(self, transaction: KinesisWriting, rows: pa.RecordBatch) -> None:
        """Put rows; readers see them at once.

        Raises:
            RefusedRecordError, AttemptFailedError: see ``KinesisWriting.write``.
        """
        transaction.write(rows)

    def pre_commit(self, transaction: KinesisWriting) -> Committable | None:
        """Return when Kinesis has taken every record; there is nothing to commit.

        Raises:
            AttemptFailedError: see ``KinesisWriting.flush``.
        """
        transaction.flush()
        return None

    # --- on the driver ----------------------------------------------------------------------------

    def identity(self, start: StartInfo) -> Mapping[str, Any] | None:  # noqa: ARG002
        """Return the stream's ARN and when it was created."""
        found = self._described()
        if found is None:
            return None
        created = int(found["StreamCreationTimestamp"].timestamp() * 1000)
        return {"stream": found["StreamARN"], "created": created}

    def check(self, start: StartInfo) -> None:  # noqa: ARG002
        """Check that the stream is there and takes records.

        Raises:
            SinkCheckError: it isn't, or it may not be asked for.
            SinkUnavailableError: no answer.
        """
        found = self._described()
        if found is None:
            raise SinkCheckError(
                f"There is no Kinesis stream {self._stream}. Create it, or check its name, region "
                "and account."
            )
        if found["StreamStatus"] not in {"ACTIVE", "UPDATING"}:
            raise SinkCheckError(
                f"The Kinesis stream {self._stream} is {found['StreamStatus']}. Start the query "
                "when it is active."
            )

    def _described(self) -> dict[str, Any] | None:
        """Return what Kinesis says of the stream; None: there is none."""
        where = {"StreamARN" if self._stream.startswith("arn:") else "StreamName": self._stream}
        try:
            answer = RenewedClient(self._access).describe_stream_summary(**where)
        except request_errors() as error:
            # Without its cause, whose message may hold a secret.
            if code_of(error) == "ResourceNotFoundException":
                return None
            if is_said(error):
                said = f"Kinesis refuses DescribeStreamSummary of {self._stream}"
                advice = "Check the stream, and the rights to DescribeStreamSummary and PutRecords."
            else:
                said = f"boto3 can't ask about the stream {self._stream}"
                advice = "Check the credentials and the region of the driver."
            if may_succeed(error):
                advice = remedy(error, "Check the network and the address, and start again.")
                raise SinkUnavailableError(
                    f"Kinesis did not answer about the stream {self._stream}: {told(error)}. "
                    f"{advice}"
                ) from None
            raise SinkCheckError(f"{said}: {told(error)}. {remedy(error, advice)}") from None
        summary: dict[str, Any] = answer["StreamDescriptionSummary"]
        return summary

    def commit(self, permit: CommitPermit, committables: Sequence[Committable]) -> CommitReport:  # noqa: ARG002
        """Do nothing: what tasks put is there."""
        return CommitReport(completed=tuple(committables))

    def abort(self, committables: Sequence[Committable]) -> None:
        """Do nothing: what tasks put can't be taken back."""

    def recover(self, sweep: Sweep) -> int:  # noqa: ARG002
        """Return 0: nothing is ever left undecided."""
        return 0
