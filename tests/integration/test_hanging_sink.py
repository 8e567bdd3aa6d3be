"""A sink of the user's whose sweep, abort or close never returns keeps no query from starting, nor
from ending."""

import threading

import pytest

import onceforall as ofa
from onceforall.driver import closing, sweeper

pytestmark = pytest.mark.spark
REAL = {call: getattr(ofa.FileSink, call) for call in ("recover", "abort", "close")}


@pytest.fixture(autouse=True)
def over(monkeypatch):
    """What ends the hanging calls: the end of the test."""
    monkeypatch.setattr(sweeper, "SLOW_SWEEP_S", 0.5)
    monkeypatch.setattr(closing, "SLOW_CLOSE_S", 0.5)
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def query(source, tmp_path, monkeypatch, over):
    """Start a query with two sinks, of which one hangs in some calls on the driver:
    ``query(calls)``.
    """

    def made(*calls, fails=False):
        sinks = {name: ofa.FileSink(tmp_path / name, format="json") for name in ("quick", "slow")}
        for call in ("recover", "abort", "close"):
            monkeypatch.setattr(ofa.FileSink, call, hanging(REAL[call], call in calls, over))

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


def hanging(real, hangs, over):
    def call(sink, *arguments):
        if hangs and "/slow'" in repr(sink):
            over.wait(120)
        return real(sink, *arguments)

    return call


def written(folder):
    """Return the values in both sinks, which are the same."""
    quick, slow = (
        sorted(ofa.read_files(folder / name).to_arrow().column("value").to_pylist())
        for name in ("quick", "slow")
    )
    assert quick == slow
    return quick


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
