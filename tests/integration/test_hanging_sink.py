"""A sink of the user's whose sweep, abort or close never returns keeps no query from starting, nor
from ending."""

import json
import threading

import pytest

import onceforall as ofa
from onceforall.driver import closing, sweeper
from support.own_sink import JsonFileSink

pytestmark = pytest.mark.spark
OVER = threading.Event()


class HangingSink(JsonFileSink):
    """The sink of the page, of which some calls hang until the test is over."""

    def __init__(self, folder, *calls):
        super().__init__(folder)
        self.calls = calls

    def _hang(self, call):
        if call in self.calls:
            OVER.wait(120)

    def recover(self, sweep):
        self._hang("recover")
        return super().recover(sweep)

    def abort(self, committables):
        self._hang("abort")
        super().abort(committables)

    def close(self):
        self._hang("close")


@pytest.fixture(autouse=True)
def hanging(monkeypatch):
    OVER.clear()
    monkeypatch.setattr(sweeper, "SLOW_SWEEP_S", 0.5)
    monkeypatch.setattr(closing, "SLOW_CLOSE_S", 0.5)
    yield
    OVER.set()


@pytest.fixture
def query(source, tmp_path):
    """Start a query that has such a sink beside another one: ``query(calls, function)``."""
    (tmp_path / "own").mkdir()

    def made(*calls, fails=False):
        sinks = {
            "files": ofa.FileSink(tmp_path / "files", format="json"),
            "own": HangingSink(tmp_path / "own", *calls),
        }

        @ofa.exactly_once(tmp_path / "cp", sinks=sinks)
        def process(batch, batch_id, transaction):
            for name in sinks:
                transaction.write(name, batch.select("value"))
            if fails:
                raise RuntimeError("the user's own error")

        return lambda: (
            source.stream()
            .writeStream.foreachBatch(process)
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )

    return made


def written(folder):
    files = folder.glob("own/*.jsonl")
    return sorted(json.loads(line)["value"] for f in files for line in f.read_text().splitlines())


def test_a_query_starts_beside_a_sink_whose_sweep_hangs(source, query, tmp_path):
    source.add({"key": "k", "value": "a"})
    started = query("recover")()
    assert started.awaitTermination(60)
    assert written(tmp_path) == ["a"]


@pytest.mark.parametrize("call", ["recover", "abort"])
def test_a_query_whose_batch_fails_ends_beside_a_sink_that_hangs_and_its_restart_writes_once(
    source, query, tmp_path, call
):
    source.add({"key": "k", "value": "a"})
    with pytest.raises(Exception, match="the user's own error"):
        assert query(call, fails=True)().awaitTermination(60)
    assert query()().awaitTermination(60)
    assert written(tmp_path) == ["a"]


def test_one_function_is_started_again_though_its_sinks_close_hangs(source, query, tmp_path):
    start = query("close")
    for value in "ab":
        source.add({"key": "k", "value": value})
        assert start().awaitTermination(60)
    assert written(tmp_path) == ["a", "b"]
