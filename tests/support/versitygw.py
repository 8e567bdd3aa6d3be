"""A second S3 server for tests, versitygw: it checks signatures, keeps objects on disk and shares no
code with moto. Go builds it once, into the cache of the jars, which takes minutes."""

from __future__ import annotations

import http.client

from onceforall.embedded import EmbeddedS3
from onceforall.embedded.network import HOST
from support.go_programs import built

VERSION = "1.8.0"
_MODULE = "github.com/versity/versitygw/cmd/versitygw"


class VersityGateway(EmbeddedS3):
    """As ``EmbeddedS3``; its objects survive ``kill`` and ``restart``."""

    _noun = "versitygw"
    _folder_prefix = "onceforall-versitygw-"

    def _find_programs(self):
        self._program = built("versitygw", _MODULE, VERSION)

    def _command(self):
        for folder in ("objects", "metadata"):
            (self.data_dir / folder).mkdir(exist_ok=True)
        options = ["--port", f"{HOST}:{self.port}", "--region", self.region, "--health", "/health"]
        options += ["--access", self.access_key, "--secret", self.secret_key]
        options += ["--quiet", "--keep-alive"]
        # Not every file system of temporary folders has extended attributes.
        metadata = ["--sidecar", str(self.data_dir / "metadata")]
        return [
            str(self._program),
            *options,
            "posix",
            *metadata,
            str(self.data_dir / "objects"),
        ]

    def _answers(self):
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def create_bucket(self, name):
        import boto3

        self._running_process()
        client = boto3.client("s3", **self.client_arguments)
        client.create_bucket(Bucket=name)
        client.close()
