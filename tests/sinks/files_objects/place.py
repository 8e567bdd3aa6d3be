"""What the suite asks of a place under test: a prefix of a store of objects, its sinks, and what lies
there. Each store has its own, beside its tests."""

from __future__ import annotations

from onceforall import FileSink, read_files
from onceforall.sink import StartInfo
from sinks.files.building import QUERY


class ObjectsUnderTest:
    """A subclass has ``url`` and ``storage``, and may be pickled to other processes: it holds no
    connection. Names are below the prefix, without it."""

    key: str  # the prefix in its bucket
    part_bytes = 1 << 20
    """The smallest part that the store takes."""
    takers: str
    """Words of what the sink says of parts that are gone."""
    taken: int
    """What the store answers to a create where something stands."""
    exits_of_a_late_driver: tuple[int, ...] = (0,)
    """Whose batch somebody else has completed in between."""
    modules: tuple[str, ...]
    """Its client's."""
    spark_settings: dict[str, str] = {}  # noqa: RUF012
    """With which a session has the key."""

    def sink(self, **options):
        return FileSink(self.url, storage=self.storage, **options)

    def checked(self, **options):
        sink = self.sink(**options)
        sink.check(StartInfo(QUERY, "out"))
        return sink

    def store(self):
        """The sink's own client."""
        raise NotImplementedError

    def files(self):
        return read_files(self.url, storage=self.storage)

    def numbers(self, column="n"):
        return sorted(self.files().to_arrow().to_pydict().get(column, []))

    def through(self, endpoint):
        """The same, by way of a proxy."""
        raise NotImplementedError

    def elsewhere(self, key):
        """Another prefix in the same bucket."""
        raise NotImplementedError

    # --- what lies there --------------------------------------------------------------------------

    def keys(self, under=""):
        """The names of objects, with this beginning."""
        raise NotImplementedError

    def get(self, name):
        raise NotImplementedError

    def put(self, name, content, mark=None):
        """Write an object, over another one too; ``mark``: as the sink marks its own."""
        raise NotImplementedError

    def delete(self, name):
        raise NotImplementedError

    def begun(self):
        """The names of the files that have parts and are no objects, anybody's."""
        raise NotImplementedError

    def begin_theirs(self, name):
        """Begin such a file, as somebody else would."""
        raise NotImplementedError

    def lose(self, committable):
        """Take the parts of a transaction away; return of how many files."""
        raise NotImplementedError

    def data(self):
        return [key for key in self.keys() if "part-" in key and not key.startswith("_")]

    def left(self):
        """What lies there and is no result."""
        known = {path.partition(f"/{self.key}/")[2] for path in self.files().paths}
        return [
            *self.keys("_onceforall/uploads/"),
            *self.keys("_onceforall/probes/"),
            *(f"parts of {key}" for key in self.begun()),
            *(key for key in self.data() if key not in known),
        ]

    # --- the commands -----------------------------------------------------------------------------

    settings: tuple[str, ...] = ()
    """Those of ``storage`` that the commands take; the others are secrets."""

    @property
    def environment(self):
        """How a command has the secrets."""
        return {}

    @property
    def secrets(self):
        """What nobody may see."""
        return [value for name, value in self.storage.items() if "key" in name or "token" in name]
