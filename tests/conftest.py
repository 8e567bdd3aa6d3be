"""Fixtures that more than one folder of tests uses: one real broker per session, and topics on it."""

from __future__ import annotations

import uuid

import pytest

from onceforall.embedded import EmbeddedKafka


@pytest.fixture(scope="session")
def broker():
    """A running broker for the whole session. A test that kills or freezes a broker starts its own."""
    with EmbeddedKafka() as running:
        yield running


@pytest.fixture
def topic(broker):
    """Make topics with unique names: ``topic(partitions=1, config=None, prefix="t")`` returns the name."""

    def make(partitions=1, config=None, prefix="t"):
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        broker.create_topic(name, partitions=partitions, config=config)
        return name

    return make
