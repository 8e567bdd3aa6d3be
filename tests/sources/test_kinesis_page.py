"""The programs and the options on the page of Kinesis."""

from __future__ import annotations

import json
import re

import pytest

from onceforall.sources.kinesis import options
from onceforall.sources.kinesis.reading import SCHEMA
from onceforall.testing.sources import source_cases
from support.pages import ROOT, blocks

PAGE = (ROOT / "docs" / "kinesis.md").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.spark
def test_the_programs_on_the_page_run_as_they_stand(spark, stream, tmp_path):
    """What the sink has put twice is there once for the reader that drops by id. Regions are replaced by a server on loopback, streams and paths by the test's own."""
    source, clicks = stream(shards=2), stream()
    source.put(9)
    given = source.server.source_options
    arguments = (
        f"region={given['region']!r}, endpoint_url={given['endpointUrl']!r}, "
        f"credentials_function={given['credentialsFunction']!r}"
    )
    real = {
        '.option("region", "eu-west-1")': f".options(**{given!r})",
        'region="eu-west-1"': arguments,
        '"events"': repr(source.name),
        'KinesisSink("clicks"': f"KinesisSink({clicks.name!r}",
        '"streamName", "clicks"': f'"streamName", {clicks.name!r}',
        "/checkpoints/clicks": str(tmp_path / "cp"),
    }
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text(
        "".join(json.dumps({"id": n, "key": f"k{n % 2}"}) + "\n" for n in range(6))
    )
    events = spark.readStream.schema("id BIGINT, key STRING").json(str(tmp_path / "in"))
    names = {"spark": spark, "events": events}
    for block in blocks("docs/kinesis.md", "python"):
        code = block.code
        for old, new in real.items():
            code = code.replace(old, new)
        assert "eu-west-1" not in code
        exec(compile(code, str(block), "exec"), names)
        if "KinesisSink" in code:
            names["query"].processAllAvailable()
            names["query"].stop()
            # Another checkpoint writes everything again, as a replay does.
            exec(
                compile(code.replace(str(tmp_path / "cp"), str(tmp_path / "cp2")), "again", "exec"),
                names,
            )
            names["query"].processAllAvailable()
            names["query"].stop()
    assert len(clicks.records()) == 12
    assert read(names["records"], tmp_path / "one", "CAST(data AS STRING)") == [
        str(n) for n in range(9)
    ]
    assert read(names["clicks"], tmp_path / "two", "CAST(id AS STRING)") == [
        str(n) for n in range(6)
    ]


def read(frame, checkpoint, column):
    found = []
    query = frame.selectExpr(f"{column} AS n").writeStream.foreachBatch(
        lambda batch, _: found.extend(row.n for row in batch.collect())
    )
    query = query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return sorted(found)


def test_the_page_has_every_option_and_every_column():
    table = PAGE.partition("Options, whose names")[2].partition("A batch takes")[0]
    named = re.findall(
        r"`(\w+)`",
        "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")),
    )
    assert set(named) - {"initialPosition"} == set(options._NAMES.values())
    columns = [line.split()[0] for line in SCHEMA.split(", ")]
    table = PAGE.partition("| column | type | |")[2].partition("Options, whose")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == columns
    assert source_cases()
