"""A folder in a bucket of a test server: sinks on it, what is read there, and what lies there."""

from __future__ import annotations

from dataclasses import dataclass

from sinks.files_objects.place import ObjectsUnderTest


@dataclass(frozen=True)
class Folder(ObjectsUnderTest):
    """A folder of Google's."""

    name: str
    endpoint: str
    key: str = "lake/ads"

    takers = "somebody deleted its parts"
    taken = 412
    # The emulator answers 500, and not 404, to a compose of parts that are gone: it is asked again.
    exits_of_a_late_driver = (0, 1)
    modules = ("google.cloud.storage",)
    settings = ("endpoint",)

    @property
    def url(self):
        return f"gs://{self.name}/{self.key}"

    @property
    def storage(self):
        return {"endpoint": self.endpoint}

    @property
    def secrets(self):
        return []  # credentials are a file, or the machine's

    def store(self):
        return self.sink()._given.bucket()

    def through(self, endpoint):
        return Folder(self.name, endpoint, self.key)

    def elsewhere(self, key):
        return Folder(self.name, self.endpoint, key)

    def bucket(self):
        """A client of the bucket that is not the sink's."""
        from google.api_core.client_options import ClientOptions
        from google.auth.credentials import AnonymousCredentials
        from google.cloud.storage import Client

        options = ClientOptions(api_endpoint=self.endpoint)
        return Client("tests", AnonymousCredentials(), client_options=options).bucket(self.name)

    def _blob(self, name):
        return self.bucket().blob(f"{self.key}/{name}")

    def keys(self, under=""):
        found = self.bucket().list_blobs(prefix=f"{self.key}/{under}")
        return sorted(each.name.removeprefix(f"{self.key}/") for each in found)

    def get(self, name):
        return self._blob(name).download_as_bytes()

    def put(self, name, content, mark=None):
        blob = self._blob(name)
        blob.metadata = {} if mark is None else {"onceforall": mark}
        blob.upload_from_string(content)

    def delete(self, name):
        self._blob(name).delete()

    def parts(self):
        return self.keys("_onceforall/parts/")

    def begun(self):
        """By the last part of their names, in which the attempt is."""
        return sorted({key.split("/")[2] for key in self.parts()})

    def begin_theirs(self, name):
        self.put(f"_onceforall/parts/{name}/0/begun", b"")

    def lose(self, committable):
        gone = [name for name in self.begun() if committable["name"] in name]
        for key in self.parts():
            if key.split("/")[2] in gone:
                self.delete(key)
        return len(gone)
