"""Streams for tests of sources."""

from __future__ import annotations

import pytest

from support.kinesis import Stream


@pytest.fixture
def stream(kinesis_server):
    """Make streams: ``stream(shards=1)``."""
    return lambda shards=1: Stream(kinesis_server, shards)


@pytest.fixture
def ordered_stream(ordered_server):
    """Make streams on the server whose clock and faults are the test's."""
    yield lambda shards=1: Stream(ordered_server, shards)
    ordered_server.heal()
