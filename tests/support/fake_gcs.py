"""fake-gcs-server, an emulator of Google Cloud Storage, for tests. Go builds it once, into the cache
of the jars, which takes minutes. What it lacks stands in docs/files.md."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from onceforall.embedded.jars import cache_folder
from onceforall.embedded.moto import MotoServer
from onceforall.embedded.network import HOST
from onceforall.errors import EmbeddedServerError

VERSION = "1.52.2"
_MODULE = f"github.com/fsouza/fake-gcs-server@v{VERSION}"
_BUILD_DEADLINE_S = 1500.0


def fake_gcs_server():
    """Return the program, which is built when it is not in the cache."""
    program = cache_folder() / "go" / f"fake-gcs-server-{VERSION}" / "fake-gcs-server"
    if program.is_file():
        return program
    go = shutil.which("go")
    if go is None:
        raise EmbeddedServerError(
            "Tests on an emulator of Google Cloud Storage build fake-gcs-server, and there is no "
            f"`go` on the PATH. Install Go, or lay the program at {program}."
        )
    program.parent.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, and moved there whole: another process of the tests may build it too.
    with tempfile.TemporaryDirectory(dir=program.parent.parent) as work:
        built = subprocess.run(
            [go, "install", _MODULE],
            env={**os.environ, "GOBIN": work},
            capture_output=True,
            text=True,
            timeout=_BUILD_DEADLINE_S,
            check=False,
        )
        if built.returncode != 0:
            raise EmbeddedServerError(
                f"fake-gcs-server could not be built:\n{built.stderr[-2000:]}"
            )
        program.parent.mkdir(exist_ok=True)
        (Path(work) / "fake-gcs-server").replace(program)
    return program


class FakeGcs(MotoServer):
    """A server; its objects are in memory."""

    _noun = "fake-gcs-server"
    _folder_prefix = "onceforall-fake-gcs-"
    _log_name = "fake-gcs.log"

    def __init__(self, *, port=0):
        super().__init__(None, port)

    def _find_programs(self):
        self._program = fake_gcs_server()

    def _command(self):
        return [
            str(self._program),
            *("-scheme", "http", "-host", HOST, "-port", str(self.port)),
            *("-public-host", f"{HOST}:{self.port}", "-backend", "memory"),
            *("-log-level", "warn"),
        ]

    def _says_ready(self, status, said):
        return True

    def _answers(self):
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/_internal/healthcheck")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def client(self):
        """A client that is not the sink's."""
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        options = ClientOptions(api_endpoint=self.endpoint)
        return Client("tests", AnonymousCredentials(), client_options=options)

    def create_bucket(self, name):
        self._running_process()
        with self.client() as client:
            client.create_bucket(name)
