"""What the embedded servers that are moto's have in common: a process of their own, on a loopback
address only.
"""

from __future__ import annotations

import abc
import http.client
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from onceforall.embedded.network import HOST
from onceforall.embedded.process import GuardedProcess
from onceforall.embedded.server import EmbeddedServer
from onceforall.errors import EmbeddedServerError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Mapping

_START_DEADLINE_S = 60.0
_POLL_INTERVAL_S = 0.02
_REQUEST_DEADLINE_S = 30.0
_MODULES = {"moto": "moto", "flask": "flask", "flask_cors": "flask-cors"}


class MotoServer(EmbeddedServer):
    """A server of moto's in a child process, with its data in memory.

    Attributes:
        access_key: what clients give as access key; any is taken.
        secret_key: the secret of it.
        region: the region.
    """

    access_key = "onceforall"
    secret_key = "no-secret"  # noqa: S105  moto checks none
    region = "us-east-1"
    _program: ClassVar[str]
    _service: ClassVar[str]

    @property
    def endpoint(self) -> str:
        """``http://127.0.0.1:port``; the same over `kill` and `restart`.

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        return f"http://{HOST}:{self.port}"

    @property
    def client_arguments(self) -> dict[str, str]:
        """Arguments for ``boto3.client(...)``.

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        return {
            "endpoint_url": self.endpoint,
            "aws_access_key_id": self.access_key,
            "aws_secret_access_key": self.secret_key,
            "region_name": self.region,
        }

    @abc.abstractmethod
    def _says_ready(self, status: int, said: str) -> bool:
        """Tell whether an answer to GET / is that of a server that is ready."""

    def _find_programs(self) -> None:
        for module, package in _MODULES.items():
            if find_spec(module) is None:
                raise MissingExtraError(package, "demo")

    def _command(self) -> list[str]:
        return [sys.executable, "-m", self._program, str(self.port)]

    def _launch(self) -> None:
        folder = self._choose_data_dir()
        with (folder / self._log_name).open("ab") as log:
            log_start = log.tell()
            self._own(GuardedProcess(self._command(), directory=folder, log=log))
        process = self._started_process()
        deadline = time.monotonic() + _START_DEADLINE_S
        while not self._answers():
            if not process.is_running:
                raise self._start_failure(
                    f"ended with status {process.return_code} before it answered", log_start
                )
            if time.monotonic() > deadline:
                raise self._start_failure(
                    f"did not answer at {self.endpoint} in {_START_DEADLINE_S:.0f} s", log_start
                )
            time.sleep(_POLL_INTERVAL_S)

    def _start_failure(self, what: str, log_start: int) -> EmbeddedServerError:
        tail = self._log_tail(log_start)
        remedy = "Check that moto is whole (pip install 'onceforall[demo]') and the end of its log"
        if "Address already in use" in tail:
            remedy = (
                "Another program has taken its port. Choose another port (0 chooses a free one)"
            )
        return EmbeddedServerError(
            f"The embedded {self._noun} {what}. {remedy}:\n{tail or '(the log is empty)'}"
        )

    def _answers(self) -> bool:
        try:
            status, said = self._ask("GET", "/")
        except OSError:
            return False
        return self._says_ready(status, said)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        # moto chooses the service by the scope in this header, and checks no signature.
        scope = f"{self.access_key}/20260101/{self.region}/{self._service}/aws4_request"
        headers: Mapping[str, str] = {
            "Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"
        }
        connection = http.client.HTTPConnection(HOST, self.port, timeout=_REQUEST_DEADLINE_S)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except http.client.HTTPException as error:
            raise ConnectionError(f"no HTTP: {error!r}") from error
        finally:
            connection.close()
