"""A real Pravega for demo and tests: controller, segment store and ZooKeeper in a Java process of
its own, on 127.0.0.1 only (release 0.13.0, the last one).

The caller's sequence::

    with EmbeddedPravega() as server:           # fetches 38 MB of jars once; ready in 10 s
        server.create_stream("clicks", "events", segments=2)
        server.uri                              # tcp://127.0.0.1:port of the controller
        server.scale("clicks", "events", segments=3)
        server.freeze()                         # faults: freeze, thaw, kill, restart

Everything is in memory: it outlives the programs that use it, and is gone after `stop`, `kill` and
`restart`. There is no authentication and no TLS.

The shortest lease of a transaction is 1 s, in place of Pravega's 10 s, so that tests can wait for
the end of one. Nothing else is set differently from Pravega's defaults.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from onceforall.common import arguments
from onceforall.common.pravega.answers import NoAnswerError, RefusedError
from onceforall.common.pravega.controller import Controller
from onceforall.common.pravega.names import StreamName, stream_name
from onceforall.embedded.jars import jar_set
from onceforall.embedded.java_program import JavaProgramServer
from onceforall.embedded.network import HOST
from onceforall.errors import EmbeddedServerError

PRAVEGA_VERSION = "0.13.0"
_SCALE_DEADLINE_S = 30.0
_POLL_INTERVAL_S = 0.02


class EmbeddedPravega(JavaProgramServer):
    """A Pravega in a child process, with its content in memory.

    It ends with this process: at `stop`, at an ordinary end of the interpreter, and on Linux also
    when this process is killed (then a temporary data folder with its log stays behind). Not safe
    for use by several threads at once; its clients may be many.
    """

    _noun = "Pravega"
    _folder_prefix = "onceforall-pravega-"
    _log_name = "pravega.log"
    _program = "LoopbackPravega.java"
    _heap_mb = 512
    _jvm_options = (
        *(
            f"--add-opens=java.base/{package}=ALL-UNNAMED"
            for package in ("java.nio", "sun.nio.ch", "java.lang", "java.util")
        ),
        f"-Dpravegaservice.service.listener.host.nameOrIp={HOST}",
        f"-Dpravegaservice.service.published.host.nameOrIp={HOST}",
        "-Dcontroller.transaction.lease.count.min=1000",
    )
    _further_ports = 2

    def __init__(self, *, port: int = 0) -> None:
        """Nothing is started yet.

        Args:
            port: the controller's port of 127.0.0.1; 0 chooses a free one at the first start.

        Raises:
            OptionError: the port is impossible.
        """
        super().__init__(None, port)

    @property
    def address(self) -> str:
        """``127.0.0.1:port`` of the controller.

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        return f"{HOST}:{self.port}"

    @property
    def uri(self) -> str:
        """``tcp://127.0.0.1:port`` of the controller.

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        return f"tcp://{self.address}"

    def create_stream(self, scope: str, stream: str, *, segments: int = 1) -> None:
        """Create a stream, and its scope if that is missing.

        Args:
            scope: the scope's name.
            stream: the stream's.
            segments: how many segments it begins with.

        Raises:
            OptionError: a name is impossible, or the number.
            EmbeddedServerError: the server does not run, or refused; there may be such a stream.
        """
        name = stream_name(scope, stream, ("scope", "stream"))
        arguments.whole("segments", segments, 1)
        controller = self._controller()
        try:
            controller.create_scope(scope)
            made = controller.create_stream(name, segments)
        except (NoAnswerError, RefusedError) as error:
            raise EmbeddedServerError(
                f"Pravega did not create the stream {name}: {error}. Look into its log."
            ) from error
        if not made:
            raise EmbeddedServerError(f"There is a stream {name} already. Choose another name.")

    def scale(self, scope: str, stream: str, *, segments: int) -> None:
        """Seal all segments of a stream, and put others in their place, each with an equal part of
        the keys; return when this is done.

        Args:
            scope: the scope's name.
            stream: the stream's.
            segments: how many segments the stream has then.

        Raises:
            OptionError: a name is impossible, or the number.
            EmbeddedServerError: the server does not run, or refused.
        """
        name = stream_name(scope, stream, ("scope", "stream"))
        arguments.whole("segments", segments, 1)
        try:
            self._scale(name, segments)
        except (NoAnswerError, RefusedError) as error:
            raise EmbeddedServerError(
                f"Pravega did not scale the stream {name}: {error}. Look into its log."
            ) from error

    def _scale(self, name: StreamName, segments: int) -> None:
        controller = self._controller()
        sealed = [each.number for each in controller.segments(name)]
        bounds = [place / segments for place in range(segments + 1)]
        ranges = list(itertools.pairwise(bounds))
        epoch = controller.scale(name, sealed, ranges, int(time.time() * 1000))
        deadline = time.monotonic() + _SCALE_DEADLINE_S
        while not controller.is_scaled(name, epoch):
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"Pravega did not scale the stream {name} in {_SCALE_DEADLINE_S:.0f} s. Look "
                    "into its log."
                )
            time.sleep(_POLL_INTERVAL_S)

    def _controller(self) -> Controller:
        self._running_process()
        return Controller(self.address)

    def _find_class_path(self) -> list[Path]:
        return jar_set(f"pravega-{PRAVEGA_VERSION}")

    @property
    def _shown_address(self) -> str:
        return self.uri
