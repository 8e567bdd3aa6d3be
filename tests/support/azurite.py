"""Azurite, Microsoft's emulator of Azure Blob Storage, for tests. npm installs it once, into the
cache of the jars."""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import shutil
import subprocess
import tempfile
from pathlib import Path

from onceforall.embedded.jars import cache_folder
from onceforall.embedded.moto import MotoServer
from onceforall.embedded.network import HOST
from onceforall.errors import EmbeddedServerError

VERSION = "3.37.0"
_INSTALL_DEADLINE_S = 600.0
ACCOUNT = "tests"
KEY = base64.b64encode(b"hush, this is the key of the tests' account").decode()


def azurite():
    """Return the program, which is installed when it is not in the cache."""
    folder = cache_folder() / f"azurite-{VERSION}"
    program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if program.is_file():
        return program
    npm = shutil.which("npm")
    if npm is None:
        raise EmbeddedServerError(
            "Tests on Azure's emulator install azurite, and there is no `npm` on the PATH. Install "
            f"Node.js 20 or later, or lay the package at {folder}."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place, and moved there whole: another process of the tests may install it too.
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        done = subprocess.run(
            [npm, "install", "--prefix", work, f"azurite@{VERSION}"],
            capture_output=True,
            text=True,
            timeout=_INSTALL_DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            raise EmbeddedServerError(f"azurite could not be installed:\n{done.stderr[-2000:]}")
        if not program.is_file():
            Path(work).rename(folder)
            Path(work).mkdir()
    return program


class Azurite(MotoServer):
    """A server with one account; its blobs are in a folder of its own."""

    _noun = "Azurite"
    _folder_prefix = "onceforall-azurite-"
    _log_name = "azurite.log"
    account, key = ACCOUNT, KEY

    def __init__(self, *, port=0):
        super().__init__(None, port)

    @property
    def endpoint(self):
        """The account's, as ``FileSink(storage=…)`` takes it."""
        return self.through(f"http://{HOST}:{self.port}")

    def through(self, address):
        """The same account by way of another address, such as a proxy's."""
        return f"{address}/{self.account}"

    def _find_programs(self):
        self._node, self._program = shutil.which("node"), azurite()
        if self._node is None:
            raise EmbeddedServerError(
                "Azurite needs `node`, which is not on the PATH. Install Node.js 20 or later."
            )

    def _command(self):
        return [
            *("/usr/bin/env", f"AZURITE_ACCOUNTS={self.account}:{self.key}"),
            *(self._node, str(self._program)),
            *("--blobHost", HOST, "--blobPort", str(self.port)),
            *("--location", str(self.data_dir)),
            *("--silent", "--disableTelemetry", "--skipApiVersionCheck"),
        ]

    def _says_ready(self, status, said):
        return True

    def _answers(self):
        connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
        try:
            connection.request("GET", f"/{self.account}?comp=list")
            return connection.getresponse().status == 403
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def service(self):
        """A client that is not the sink's."""
        from azure.storage.blob import BlobServiceClient

        credential = {"account_name": self.account, "account_key": self.key}
        return BlobServiceClient(self.endpoint, credential=credential)

    def create_container(self, name):
        self._running_process()
        with self.service() as client:
            client.create_container(name)

    def sas_token(self, permission="racwdl", minutes=60):
        from azure.storage.blob import ResourceTypes, generate_account_sas

        return generate_account_sas(
            self.account,
            self.key,
            ResourceTypes(service=True, container=True, object=True),
            permission,
            dt.datetime.now(dt.timezone.utc) + dt.timedelta(minutes=minutes),
        )
