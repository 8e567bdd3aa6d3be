"""A folder in a container of a test server: sinks on it, what is read there, and what lies there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from onceforall import FileSink, read_files
from onceforall.sink import StartInfo
from sinks.files.building import QUERY
from support.azurite import ACCOUNT


@dataclass(frozen=True)
class Folder:
    """It may be pickled to other processes: it holds no connection."""

    container: str
    storage: dict
    key: str = "lake/ads"

    @property
    def url(self):
        return f"abfss://{self.container}@{ACCOUNT}.dfs.core.windows.net/{self.key}"

    def sink(self, **options):
        return FileSink(self.url, storage=self.storage, **options)

    def checked(self, **options):
        sink = self.sink(**options)
        sink.check(StartInfo(QUERY, "out"))
        return sink

    def files(self):
        return read_files(self.url, storage=self.storage)

    def numbers(self, column="n"):
        return sorted(self.files().to_arrow().to_pydict().get(column, []))

    def through(self, address):
        """The same, by way of a proxy."""
        return Folder(
            self.container, {**self.storage, "endpoint": f"{address}/{ACCOUNT}"}, self.key
        )

    @contextlib.contextmanager
    def client(self):
        """A client of the container that is not the sink's."""
        from azure.storage.blob import ContainerClient

        with ContainerClient(
            self.storage["endpoint"],
            self.container,
            credential={"account_name": ACCOUNT, "account_key": self.storage["account_key"]},
        ) as made:
            yield made

    def keys(self, under=""):
        """The names of blobs below the folder, without it."""
        with self.client() as client:
            found = client.list_blobs(f"{self.key}/{under}")
            return sorted(each.name.removeprefix(f"{self.key}/") for each in found)

    def data(self):
        return [key for key in self.keys() if "part-" in key and not key.startswith("_")]

    def uploads(self):
        """The names of all blobs of the container that have only blocks."""
        with self.client() as client:
            every = {each.name for each in client.list_blobs(include=["uncommittedblobs"])}
            return sorted(every - {each.name for each in client.list_blobs()})

    def lose_blocks(self, name):
        """Do what Azure does a week after the last block was sent."""
        with self.client() as client:
            client.delete_blob(name)  # Azurite's way; Azure itself doesn't find such a blob

    def lose(self, committable):
        """Lose the blocks of a transaction; return of how many files."""
        there = [name for name in self.uploads() if committable["name"] in name]
        for name in there:
            self.lose_blocks(name)
        return len(there)

    def left(self):
        """What lies there and is no result."""
        known = {path.partition(f"/{self.key}/")[2] for path in self.files().paths}
        return [
            *self.keys("_onceforall/uploads/"),
            *self.keys("_onceforall/probes/"),
            *(f"blocks of {key}" for key in self.uploads()),
            *(key for key in self.data() if key not in known),
        ]


def folder_on(server, container):
    return Folder(container, {"endpoint": server.endpoint, "account_key": server.key})
