"""The embedded Pravega: on loopback alone, and what it says where it can't do something."""

import subprocess

import pytest

from onceforall.common.pravega.controller import Controller
from onceforall.common.pravega.names import StreamName
from onceforall.embedded import EmbeddedPravega
from onceforall.errors import EmbeddedServerError, OptionError
from support.pravega import EventStream

pytestmark = pytest.mark.pravega


def test_it_listens_on_loopback_alone(pravega_server):
    listening = subprocess.run(
        ["ss", "-ltnpH"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    own = [line.split()[3] for line in listening if f"pid={pravega_server.pid}," in line]
    assert len(own) == 3
    assert all(address.startswith(("127.0.0.1:", "[::ffff:127.0.0.1]:")) for address in own)
    assert any(address.endswith(f":{pravega_server.port}") for address in own)


def test_a_stream_is_made_and_scaled(pravega_server, events_stream):
    stream = events_stream(segments=2)
    stream.scale(3)
    assert len(stream.controller.segments(stream.name)) == 3
    with pytest.raises(EmbeddedServerError, match="already"):
        pravega_server.create_stream(stream.scope, stream.stream)
    with pytest.raises(EmbeddedServerError, match="did not scale"):
        pravega_server.scale(stream.scope, "none", segments=2)
    # A stream keeps at least the segments that it was made with.
    with pytest.raises(EmbeddedServerError, match="did not scale"):
        stream.scale(1)


def test_names_and_numbers_are_checked_and_a_server_that_does_not_run_is_named():
    server = EmbeddedPravega()
    with pytest.raises(EmbeddedServerError, match="start"):
        _ = server.uri
    with pytest.raises(OptionError, match="scope"):
        server.create_stream("a b", "c")
    with pytest.raises(OptionError, match="segments"):
        server.create_stream("a", "c", segments=0)
    with pytest.raises(EmbeddedServerError, match="not started"):
        server.create_stream("a", "c")


@pytest.mark.long
def test_a_killed_one_comes_back_empty_at_its_address():
    with EmbeddedPravega() as server:
        stream = EventStream(server, 1)
        address = server.address
        server.kill()
        server.restart()
        assert server.address == address
        assert not Controller(address).exists(stream.name)
        server.create_stream(stream.scope, stream.stream)
        assert Controller(address).exists(StreamName(stream.scope, stream.stream))
