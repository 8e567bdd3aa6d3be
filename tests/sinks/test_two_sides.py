"""What only a sink's driver has goes into no pickle and into no copy."""

import copy
import pickle

import pytest

import onceforall as ofa

SINKS = {
    "kafka": lambda folder: ofa.KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, topic="t"),
    "files": lambda folder: ofa.FileSink(str(folder), format="parquet"),
    "postgres": lambda folder: ofa.PostgresSink("host=127.0.0.1 dbname=d", "t"),
    "pravega": lambda folder: ofa.PravegaSink("tcp://127.0.0.1:1", scope="s", stream="t"),
}


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("again", [copy.copy, lambda sink: pickle.loads(pickle.dumps(sink))])
def test_the_drivers_side_is_made_anew_wherever_a_sink_arrives(tmp_path, kind, again):
    sink = SINKS[kind](tmp_path)
    assert sink._driver_side
    assert not sink._driver_side & set(sink.__getstate__())
    for name in sink._driver_side:
        setattr(sink, name, "of this driver")
    other = again(sink)
    assert set(vars(other)) == set(vars(sink))
    assert "of this driver" not in vars(other).values()
    assert "of this driver" not in vars(again(other)).values()
