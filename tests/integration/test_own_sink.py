"""The query on the page docs/own-sink.md, with the sink of that page, through a crash between
the decision and the commit."""

import json
import sys

import pytest

import onceforall as ofa
from onceforall.errors import FormerSinkError
from onceforall.failpoints import points as failpoints
from support.own_sink import JsonFileSink, save
from support.pages import Places

pytestmark = pytest.mark.spark


def rows_of(folder):
    return sorted(
        json.loads(line)["value"]
        for file in folder.glob("*.jsonl")
        for line in file.read_text().splitlines()
    )


def test_the_query_on_the_page_survives_a_crash_between_decision_and_commit(
    spark, source, tmp_path, monkeypatch
):
    for i in range(3):
        source.add(*[{"key": f"k{n % 3}", "value": f"v{100 * i + n}"} for n in range(40)])
    places = Places(tmp_path)
    out = places.path("/lake/json")
    save(tmp_path)
    code = places.real((tmp_path / "query.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "json_file_sink", raising=False)

    def start():
        names = {"spark": spark, "events": source.stream()}
        exec(compile(code, "query.py", "exec"), names)
        return names["query"]

    with monkeypatch.context() as patched:
        patched.setattr(
            failpoints, "_failpoints", failpoints._Failpoints("append_commit.after=raise@2", None)
        )
        with pytest.raises(Exception, match="failpoint append_commit.after"):
            start().awaitTermination(120)
    assert len(rows_of(out)) == 40
    assert len(list(out.glob("*.tmp"))) > 0
    query = start()
    assert query.awaitTermination(120)
    assert rows_of(out) == sorted(f"v{100 * i + n}" for i in range(3) for n in range(40))
    assert list(out.glob("*.tmp")) == []
    query = start()
    assert query.awaitTermination(120)
    assert len(rows_of(out)) == 120


def test_a_decided_batch_is_not_given_to_a_sink_of_another_kind_under_the_same_name(
    spark, source, run, tmp_path, monkeypatch
):
    """FileSink was asked for ever for what it could not commit, or said that the log is damaged."""
    former, other = tmp_path / "former", tmp_path / "other"
    former.mkdir()

    def writer(sink, **options):
        made = ofa.write_stream(source.stream()).to(sink, name="out")
        return made.options(**options).option("checkpointLocation", str(tmp_path / "cp"))

    source.add(*[{"key": "k", "value": f"v{n}"} for n in range(4)])
    with monkeypatch.context() as patched:
        points = failpoints._Failpoints("append_commit.after=raise@1", None)
        patched.setattr(failpoints, "_failpoints", points)
        with pytest.raises(Exception, match="failpoint append_commit.after"):
            run(writer(JsonFileSink(former)))
    adopting = {"onceforall.adoptTarget": "out"}
    for options in ({}, adopting):
        with pytest.raises(FormerSinkError, match="'json-files'.*kind 'file' now"):
            writer(ofa.FileSink(str(other)), **options).trigger(availableNow=True).start()
    for dry_run in (True, False):
        with pytest.raises(FormerSinkError, match="'json-files'.*kind 'file' now"):
            ofa.detach(tmp_path / "cp", {"out": ofa.FileSink(str(other))}, dry_run=dry_run)
    assert not other.exists()
    run(writer(JsonFileSink(former)))
    assert rows_of(former) == [f"v{n}" for n in range(4)]
    source.add({"key": "k", "value": "v4"})
    run(writer(ofa.FileSink(str(other)), **adopting))
    assert ofa.read_files(other).to_arrow().column("value").to_pylist() == ["v4"]
    assert len(rows_of(former)) == 4
