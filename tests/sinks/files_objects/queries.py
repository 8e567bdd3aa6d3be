"""Queries that write to a store of objects, with a session's own key where it has one, in processes of
their own, which may be killed.

These are tests; each store's folder has a module that imports them, with its marks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
import onceforall as ofa
from support.small_spark import small_spark

folder, url, options, settings, storage = sys.argv[1], sys.argv[2], *map(json.loads, sys.argv[3:])
spark = small_spark("local[2]", settings=settings).getOrCreate()
rows = spark.readStream.schema("n BIGINT, day STRING").option("maxFilesPerTrigger", 1).json(folder + "/input")
writing = (
    ofa.write_stream(rows)
    .to(ofa.FileSink(url, partition_by=["day"], storage=storage))
    .option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True)
)
for name, value in options.items():
    writing = writing.option(name, value)
query = writing.start()
query.awaitTermination(120)
assert query.exception() is None, query.exception()
spark.stop()
"""


class Query:
    """A query in a folder of its own."""

    def __init__(self, place, folder, **options):
        self.place, self._folder, self._options = place, folder, options
        (folder / "input").mkdir()
        self._files = 0
        self.said = ""

    def give(self, *rows):
        lines = "\n".join(json.dumps({"n": n, "day": day}) for n, day in rows)
        (self._folder / "input" / f"{self._files}.json").write_text(lines)
        self._files += 1

    def run(self, failpoints=""):
        storage = {name: self.place.storage[name] for name in self.place.settings}
        given = [self._options, self.place.spark_settings, storage]
        command = [sys.executable, "-c", PROGRAM, str(self._folder), self.place.url]
        # No key in the environment: the tasks have it from the session, by the driver.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("AZURE_", "AWS_"))}
        tests = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
        environment |= {"PYTHONPATH": path, "ONCEFORALL_FAILPOINTS": failpoints}
        done = subprocess.run(
            [*command, *map(json.dumps, given)],
            env={**environment, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.said += done.stdout + done.stderr
        return done.returncode

    def runs(self):
        assert self.run() == 0, self.said[-3000:]

    def shows_no_secret(self):
        kept = [path for path in (self._folder / "checkpoint").rglob("*") if path.is_file()]
        texts = [self.said, *(path.read_text(errors="replace") for path in kept)]
        return not [text for text in texts for secret in self.place.secrets if secret in text]


def test_a_query_writes_with_the_sessions_own_key_and_goes_on_when_it_is_started_again(
    place, tmp_path
):
    query = Query(place, tmp_path)
    query.give((0, "a"), (1, "ü/*."))
    query.runs()
    query.give((2, "b"))
    query.runs()
    assert "can't be compared" not in query.said, "a start compares columns with the same key"
    files = place.files()
    assert sorted(files.to_arrow().to_pylist(), key=lambda row: row["n"]) == [
        {"n": 0, "day": "a"},
        {"n": 1, "day": "ü/*."},
        {"n": 2, "day": "b"},
    ]
    assert len(files.batches) == 2
    assert place.left() == []
    assert query.shows_no_secret()


@pytest.mark.parametrize(
    "point", ["file.commit.renamed", "file.manifest.before", "append_done.before"]
)
def test_a_query_that_is_killed_in_its_commit_writes_each_row_once(place, tmp_path, point):
    query = Query(place, tmp_path)
    for n in range(3):
        query.give((2 * n, "a"), (2 * n + 1, "b"))
    assert query.run(f"{point}=kill@2") == -signal.SIGKILL
    query.runs()
    assert place.numbers() == list(range(6))
    assert len(place.files().batches) == 3
    assert place.left() == []
    assert query.shows_no_secret()
