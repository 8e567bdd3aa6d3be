"""A second S3 server for tests, versitygw: it checks signatures, keeps objects on disk and shares no
code with moto. Go builds it once, into the cache of the jars, which takes minutes."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from onceforall.embedded import EmbeddedS3
from onceforall.embedded.jars import cache_folder
from onceforall.embedded.network import HOST
from onceforall.errors import EmbeddedServerError

VERSION = "1.8.0"
_MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"
_BUILD_DEADLINE_S = 1500.0


def versitygw():
    """Return the program, which is built when it is not in the cache."""
    program = cache_folder() / "go" / f"versitygw-{VERSION}" / "versitygw"
    if program.is_file():
        return program
    go = shutil.which("go")
    if go is None:
        raise EmbeddedServerError(
            "Tests on a second S3 server build versitygw, and there is no `go` on the PATH. "
            f"Install Go, or lay the program at {program}."
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
            raise EmbeddedServerError(f"versitygw could not be built:\n{built.stderr[-2000:]}")
        program.parent.mkdir(exist_ok=True)
        (Path(work) / "versitygw").replace(program)
    return program


class VersityGateway(EmbeddedS3):
    """As ``EmbeddedS3``; its objects survive ``kill`` and ``restart``."""

    _noun = "versitygw"
    _folder_prefix = "onceforall-versitygw-"

    def _find_programs(self):
        self._program = versitygw()

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
