"""A folder in a container of a test server: sinks on it, what is read there, and what lies there."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from sinks.files_objects.place import ObjectsUnderTest
from support.azurite import ACCOUNT


@dataclass(frozen=True)
class Folder(ObjectsUnderTest):
    """A folder of Azure's."""

    container: str
    storage: dict
    key: str = "lake/ads"

    takers = "a week after"
    taken = 409
    modules = ("azure.storage.blob",)
    settings = ("endpoint",)

    @property
    def url(self):
        return f"abfss://{self.container}@{ACCOUNT}.dfs.core.windows.net/{self.key}"

    @property
    def environment(self):
        return {"AZURE_STORAGE_ACCOUNT_KEY": self.storage["account_key"]}

    @property
    def spark_settings(self):
        name = f"spark.hadoop.fs.azure.account.key.{ACCOUNT}.dfs.core.windows.net"
        return {name: self.storage["account_key"]}

    def store(self):
        return self.sink()._given.container()

    def through(self, endpoint):
        storage = {**self.storage, "endpoint": f"{endpoint}/{ACCOUNT}"}
        return Folder(self.container, storage, self.key)

    def elsewhere(self, key):
        return Folder(self.container, self.storage, key)

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
        with self.client() as client:
            found = client.list_blobs(f"{self.key}/{under}")
            return sorted(each.name.removeprefix(f"{self.key}/") for each in found)

    def get(self, name):
        with self.client() as client:
            return client.download_blob(f"{self.key}/{name}").readall()

    def put(self, name, content, mark=None):
        metadata = None if mark is None else {"onceforall": mark}
        with self.client() as client:
            client.upload_blob(f"{self.key}/{name}", content, overwrite=True, metadata=metadata)

    def delete(self, name):
        with self.client() as client:
            client.delete_blob(f"{self.key}/{name}")

    def begun(self):
        with self.client() as client:
            every = {each.name for each in client.list_blobs(include=["uncommittedblobs"])}
            found = every - {each.name for each in client.list_blobs()}
            return sorted(name.removeprefix(f"{self.key}/") for name in found)

    def begin_theirs(self, name):
        with self.client() as client:
            blob = client.get_blob_client(f"{self.key}/{name}")
            blob.stage_block(f"{'0' * 32}-00001", b"theirs")

    def lose_blocks(self, name):
        """Do what Azure does a week after the last block was sent."""
        self.delete(name)  # Azurite's way; Azure itself doesn't find such a blob

    def lose(self, committable):
        there = [name for name in self.begun() if committable["name"] in name]
        for name in there:
            self.lose_blocks(name)
        return len(there)


def folder_on(server, container):
    return Folder(container, {"endpoint": server.endpoint, "account_key": server.key})
