"""The programs and the options on the page of Pravega."""

from __future__ import annotations

import inspect
import json
import re

import pytest

from onceforall.sinks.pravega import PravegaSink
from onceforall.sources.pravega import options
from onceforall.sources.pravega.reading import SCHEMA
from support.pages import ROOT, blocks

PAGE = (ROOT / "docs" / "pravega.md").read_text(encoding="utf-8")


@pytest.mark.spark
@pytest.mark.pravega
def test_the_programs_on_the_page_run_as_they_stand(spark, events_stream, tmp_path):
    """Addresses, names and paths are replaced by the test's own."""
    stream = events_stream(segments=2)
    real = {
        "tcp://pravega:9090": stream.server.uri,
        '"web"': repr(stream.scope),
        'stream="clicks"': f"stream={stream.stream!r}",
        '"stream", "clicks"': f'"stream", {stream.stream!r}',
        "/checkpoints/clicks": str(tmp_path / "cp"),
    }
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text(
        "".join(json.dumps({"id": n, "key": f"k{n % 2}"}) + "\n" for n in range(6))
    )
    names = {
        "spark": spark,
        "events": spark.readStream.schema("id BIGINT, key STRING").json(str(tmp_path / "in")),
    }
    for block in blocks("docs/pravega.md", "python"):
        code = block.code
        for old, new in real.items():
            code = code.replace(old, new)
        exec(compile(code, str(block), "exec"), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    found = []
    reading = names["clicks"].writeStream.foreachBatch(
        lambda batch, _: found.extend(json.loads(bytes(row.event))["id"] for row in batch.collect())
    )
    reading = reading.option("checkpointLocation", str(tmp_path / "cp2"))
    reading.trigger(availableNow=True).start().awaitTermination()
    assert sorted(found) == list(range(6))


def test_the_page_has_every_option_every_column_and_every_argument():
    reading = PAGE.partition("## Read a stream")[2]
    table = reading.partition("Options, whose names")[2].partition("Spark's offsets")[0]
    named = re.findall(
        r"`(\w+)`",
        "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")),
    )
    assert set(named) == set(options._NAMES.values())
    columns = [line.split()[0] for line in SCHEMA.split(", ")]
    table = reading.partition("| column | type | |")[2].partition("Options, whose")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == columns
    table = PAGE.partition("| argument | default |")[2].partition("Each task writes")[0]
    named = re.findall(r"`(\w+)`", "".join(row.split("|")[1] for row in table.splitlines() if row))
    assert named == list(inspect.signature(PravegaSink).parameters)


def test_the_page_begins_with_what_a_reader_must_know():
    assert PAGE.splitlines()[2].startswith("**Pravega was archived in September 2025**")
