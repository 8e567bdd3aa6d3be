"""A Kinesis server for demo and tests: moto's, in a process of its own, on a loopback address only,
with what it lacks of Kinesis added (`onceforall.embedded.kinesis_program` says what).

The caller's sequence::

    with EmbeddedKinesis() as server:
        server.create_stream("events", shards=2)
        boto3.client("kinesis", **server.client_arguments)   # any client
        server.fail("GetRecords", "ProvisionedThroughputExceededException", times=3)
        server.advance_clock(hours=25)                       # retention passes

The records are in the memory of that process: they outlive the programs that use it, and are gone
after `stop`, `kill` and `restart`.

Not for production, and no proof about Kinesis itself: its limits are those that this project has
read about, and one request at a time is served.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from onceforall.common import arguments
from onceforall.embedded.moto import MotoServer
from onceforall.errors import EmbeddedServerError

_ACTIVE_DEADLINE_S = 20.0


def session() -> Any:
    """Return a ``boto3.Session`` with the keys of these servers: the source's option
    ``credentialsFunction`` takes it as ``onceforall.embedded.kinesis:session``.
    """
    import boto3

    return boto3.Session(
        aws_access_key_id=MotoServer.access_key,
        aws_secret_access_key=MotoServer.secret_key,
        region_name=MotoServer.region,
    )


class EmbeddedKinesis(MotoServer):
    """A Kinesis server in a child process, with its records in memory.

    It ends with this process: at `stop`, at an ordinary end of the interpreter, and on Linux also
    when this process is killed. Not safe for use by several threads at once; its clients may be
    many.
    """

    _noun = "Kinesis server"
    _folder_prefix = "onceforall-kinesis-"
    _log_name = "kinesis.log"
    _program = "onceforall.embedded.kinesis_program"
    _service = "kinesis"

    def __init__(self, *, port: int = 0) -> None:
        """Nothing is started yet.

        Args:
            port: the port of 127.0.0.1; 0 chooses a free one at the first start.

        Raises:
            OptionError: the port is impossible.
        """
        super().__init__(None, port)

    @property
    def source_options(self) -> dict[str, str]:
        """Options for ``spark.readStream.format("kinesis")``, besides the stream.

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        return {
            "endpointUrl": self.endpoint,
            "region": self.region,
            "credentialsFunction": "onceforall.embedded.kinesis:session",
        }

    def create_stream(self, name: str, *, shards: int = 1) -> str:
        """Create a stream, and return its ARN.

        Args:
            name: the stream's.
            shards: how many shards it begins with.

        Raises:
            OptionError: that is no number of shards, or no name.
            EmbeddedServerError: the server does not run, or refused.
        """
        arguments.text("name", name)
        arguments.whole("shards", shards, 1)
        made = self._control("create", {"stream": name, "shards": shards})
        return str(made["arn"])

    def fail(
        self,
        operation: str,
        error: str | None = None,
        *,
        times: int = 1,
        after: int = 0,
        done: bool = False,
        records: Sequence[int] = (),
    ) -> None:
        """Let the next requests fail.

        Args:
            operation: Kinesis's name of the request, as ``GetRecords``.
            error: the code of the error; None: only `records` fail.
            times: how many requests.
            after: how many succeed before.
            done: the request is carried out, and only its answer is an error.
            records: of ``PutRecords``, the places of the records that are throttled.

        Raises:
            EmbeddedServerError: the server does not run.
        """
        self._control(
            "fail",
            {
                "operation": operation,
                "error": error,
                "times": times,
                "after": after,
                "done": done,
                "records": list(records),
            },
        )

    def heal(self) -> None:
        """Take back what `fail` and `keep_limits` have set.

        Raises:
            EmbeddedServerError: the server does not run.
        """
        self._control("heal", {})

    def advance_clock(self, *, hours: float) -> None:
        """Let the server's clock run ahead, and forget what retention then has passed: records, and
        closed shards without any.

        Raises:
            EmbeddedServerError: the server does not run.
        """
        self._control("advance", {"seconds": hours * 3600})

    def expire_iterators(self) -> None:
        """Let every iterator that was given out be expired.

        Raises:
            EmbeddedServerError: the server does not run.
        """
        self._control("expire", {})

    def keep_limits(self) -> None:
        """Refuse more than five ``GetRecords`` per shard and second, and more than 2 MB.

        Raises:
            EmbeddedServerError: the server does not run.
        """
        self._control("limits", {})

    def calls(self) -> list[dict[str, Any]]:
        """Return the requests since the last call of this: ``operation``, ``time``, ``error``.

        Raises:
            EmbeddedServerError: the server does not run.
        """
        return list(self._control("calls", {})["calls"])

    def _control(self, verb: str, what: dict[str, Any]) -> dict[str, Any]:
        self._running_process()
        deadline = time.monotonic() + _ACTIVE_DEADLINE_S
        while True:
            try:
                status, said = self._ask(
                    "POST", f"/onceforall/{verb}", json.dumps(what).encode("utf-8")
                )
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"The Kinesis server did not answer: {error}. Look whether it is frozen, "
                        "and try again."
                    ) from error
        if status != 200:
            raise EmbeddedServerError(f"The Kinesis server refused {verb}: {said}")
        answer: dict[str, Any] = json.loads(said)
        return answer

    def _says_ready(self, status: int, said: str) -> bool:
        return status == 200 and "ready" in said

    def _answers(self) -> bool:
        try:
            status, said = self._ask("POST", "/onceforall/ready", b"{}")
        except OSError:
            return False
        return self._says_ready(status, said)
