"""Small helpers around a streaming query."""

import json
import os

import pytest


class Source:
    """A folder of JSON files that a query streams, a file per batch: what a test adds is what
    the query reads."""

    def __init__(self, spark, folder):
        self._spark = spark
        self._folder = folder
        self._files = 0
        folder.mkdir()

    def add(self, *rows):
        """Add a file of rows (dicts); the next batch reads it whole."""
        new = self._folder.parent / "new.json"
        new.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(new, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
        new.rename(self._folder / f"{self._files:06d}.json")
        self._files += 1

    def stream(self, schema="key string, value string, at timestamp", files_per_batch=1):
        reader = self._spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch)
        return reader.json(str(self._folder))


@pytest.fixture
def source(spark, tmp_path):
    return Source(spark, tmp_path / "source")


def run_available(writer, deadline_s=120):
    """Start a writer with the trigger availableNow, and wait until it has taken all there is."""
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(deadline_s), "the query did not end"
    finally:
        query.stop()
    return query


@pytest.fixture
def run():
    return run_available
