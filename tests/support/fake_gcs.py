"""fake-gcs-server, an emulator of Google Cloud Storage, for tests. Go builds it once, into the cache
of the jars, which takes minutes. What it lacks stands in docs/files.md."""

from __future__ import annotations

import http.client

from onceforall.embedded.moto import MotoServer
from onceforall.embedded.network import HOST
from support.go_programs import built

VERSION = "1.52.2"
_MODULE = "github.com/fsouza/fake-gcs-server"


class FakeGcs(MotoServer):
    """A server; its objects are in memory."""

    _noun = "fake-gcs-server"
    _folder_prefix = "onceforall-fake-gcs-"
    _log_name = "fake-gcs.log"

    def __init__(self, *, port=0):
        super().__init__(None, port)

    def _find_programs(self):
        self._program = built("fake-gcs-server", _MODULE, VERSION)

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
