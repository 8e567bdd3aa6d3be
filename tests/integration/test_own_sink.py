"""The query on the page docs/own-sink.md, with the sink of that page, through a crash between
the decision and the commit."""

import json
import sys

import pytest

from onceforall.failpoints import points as failpoints
from support.own_sink import save
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
