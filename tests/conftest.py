"""Fixtures that more than one folder of tests uses: one real broker per session with topics, and one PostgreSQL with databases."""

from __future__ import annotations

import uuid

import pytest

from onceforall.embedded import EmbeddedKafka, EmbeddedPostgres
from support.databases import drop_database, make_database


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


@pytest.fixture(scope="session")
def postgres():
    """A running PostgreSQL for the whole session. A test that kills or freezes a server starts its own."""
    with EmbeddedPostgres(settings={"max_prepared_transactions": 40}) as running:
        yield running


@pytest.fixture
def database(postgres):
    """The URL of an empty database on it, as superuser; the test fails when the library leaves something behind there."""
    name = make_database(postgres)
    try:
        yield postgres.url(name)
    finally:
        left = drop_database(postgres, name)
    assert not left, f"left behind: {left}"
