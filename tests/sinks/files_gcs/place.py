"""A folder in a bucket of a test server: sinks on it, what is read there, and what lies there."""

from __future__ import annotations

from dataclasses import dataclass

from onceforall import FileSink, read_files
from onceforall.sink import StartInfo
from sinks.files.building import QUERY


@dataclass(frozen=True)
class Folder:
    """It may be pickled to other processes: it holds no connection."""

    name: str
    endpoint: str
    key: str = "lake/ads"

    @property
    def url(self):
        return f"gs://{self.name}/{self.key}"

    @property
    def storage(self):
        return {"endpoint": self.endpoint}

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

    def bucket(self):
        """A client of the bucket that is not the sink's."""
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        options = ClientOptions(api_endpoint=self.endpoint)
        return Client("tests", AnonymousCredentials(), client_options=options).bucket(self.name)

    def keys(self, under=""):
        """The names of objects below the folder, without it."""
        found = self.bucket().list_blobs(prefix=f"{self.key}/{under}")
        return sorted(each.name.removeprefix(f"{self.key}/") for each in found)

    def data(self):
        return [key for key in self.keys() if "part-" in key and not key.startswith("_")]

    def parts(self):
        return self.keys("_onceforall/parts/")

    def lose(self, committable):
        """Delete the parts of a transaction; return how many objects went."""
        gone = [key for key in self.parts() if committable["name"] in key]
        for key in gone:
            self.bucket().blob(f"{self.key}/{key}").delete()
        return len(gone)

    def left(self):
        """What lies there and is no result."""
        known = {path.partition(f"/{self.key}/")[2] for path in self.files().paths}
        return [
            *self.keys("_onceforall/uploads/"),
            *self.keys("_onceforall/probes/"),
            *self.parts(),
            *(key for key in self.data() if key not in known),
        ]
