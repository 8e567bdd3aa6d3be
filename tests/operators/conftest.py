"""Spark with what operators need: RocksDB, and folders of JSON files that queries stream."""

import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from onceforall.failpoints import points as failpoints
from onceforall.operators.state import rocksdb_state


@contextmanager
def configured(spark, settings):
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield spark
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


@pytest.fixture
def rocksdb(spark):
    """The session, with the state store that ``transformWithState`` needs, in a time zone that
    has daylight saving of its own."""
    with configured(spark, {**rocksdb_state(), "spark.sql.session.timeZone": "America/St_Johns"}):
        yield spark


class Folder:
    """A folder of JSON files, one per batch: what is added is what the next batch reads."""

    def __init__(self, spark, path, schema):
        self._spark, self._path, self._schema, self._files = spark, path, schema, 0
        path.mkdir()

    def add(self, *rows):
        new = self._path.parent / f"{self._path.name}.new"
        new.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(new, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        new.rename(self._path / f"{self._files:06d}.json")
        self._files += 1

    def stream(self, files_per_batch=1):
        reader = self._spark.readStream.schema(self._schema).option(
            "maxFilesPerTrigger", files_per_batch
        )
        return reader.json(str(self._path))


@pytest.fixture
def folder(spark, tmp_path):
    return lambda name, schema: Folder(spark, tmp_path / name, schema)


class Runs:
    """Runs queries to the end of what there is, whole or up to a failpoint."""

    def whole(self, writer):
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120), "the query did not end"
        finally:
            query.stop()
        return query

    def failing(self, writer, failpoint):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failpoints, "_failpoints", failpoints._Failpoints(failpoint, None))
            with pytest.raises(Exception, match="failpoint"):
                self.whole(writer)


@pytest.fixture
def runs():
    return Runs()


def watermarks(checkpoint):
    """The watermark of each batch in milliseconds, from Spark's offset log."""
    files = sorted(
        (file for file in Path(checkpoint, "offsets").iterdir() if file.name.isdecimal()),
        key=lambda f: int(f.name),
    )
    return [json.loads(file.read_text().splitlines()[1])["batchWatermarkMs"] for file in files]
