"""Fixtures that more than one folder of tests uses, one of each per session: Spark, a real
broker with topics, a PostgreSQL with databases."""

from __future__ import annotations

import os
import sys
import uuid
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, settings

from onceforall.embedded import (
    EmbeddedHdfs,
    EmbeddedKafka,
    EmbeddedKinesis,
    EmbeddedPostgres,
    EmbeddedPravega,
    EmbeddedS3,
    spark_kafka_jars,
)
from onceforall.failpoints import points as failpoints
from support.databases import drop_database, make_database
from support.disks import small_disk
from support.ended_runs import end_sweeps
from support.opened_sockets import tell_where_sockets_are_opened
from support.pravega import EventStream
from support.small_spark import small_spark
from support.versitygw import VersityGateway

tell_where_sockets_are_opened()

# How long a busy machine takes over an example says nothing about the code.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")

pytest.register_assert_rewrite("sinks.files_objects")
"""Its tests are imported by those of each store."""


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    """Leave most of a sampled test's cases to `make test-all`; and refuse unsteady names.

    A name with an address in it is another in every process: the processes of `make test`
    would then not agree on what to run."""
    unsteady = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unsteady:
        raise pytest.UsageError(
            f"give these tests names (ids=) that are the same in every process: {unsteady}"
        )
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("long"):
            cases[item.nodeid.split("[")[0]].append(item)
    for of_one in cases.values():
        (count,) = of_one[0].get_closest_marker("sample").args
        kept = {round(i * len(of_one) / count) for i in range(count)}
        for number, item in enumerate(of_one):
            if number not in kept:
                item.add_marker(pytest.mark.long)


@pytest.fixture
def caplog(caplog):
    """Pytest's own, without lines of queries that earlier tests have ended."""
    end_sweeps()
    return caplog


@pytest.fixture(scope="session")
def broker():
    """A running broker for the whole session.

    A test that kills or freezes a broker starts its own.
    """
    with EmbeddedKafka() as running:
        yield running


@pytest.fixture
def topic(broker):
    """Make topics with unique names: ``topic(partitions=1, config=None, prefix="t")`` returns
    the name."""

    def make(partitions=1, config=None, prefix="t"):
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        broker.create_topic(name, partitions=partitions, config=config)
        return name

    return make


@pytest.fixture(scope="session")
def postgres():
    """A running PostgreSQL for the whole session.

    A test that kills or freezes a server starts its own.
    """
    with EmbeddedPostgres(settings={"max_prepared_transactions": 40}) as running:
        yield running


@pytest.fixture
def database(postgres):
    """The URL of an empty database on it, as superuser; the test fails when the library leaves
    something behind there."""
    name = make_database(postgres)
    try:
        yield postgres.url(name)
    finally:
        left = drop_database(postgres, name)
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="session")
def s3_server():
    """A running S3 server for the whole session.

    A test that kills or freezes a server starts its own.
    """
    with EmbeddedS3() as running:
        yield running


@pytest.fixture
def s3_bucket(s3_server):
    """The name of an empty bucket on it, which no other test uses."""
    name = f"b-{uuid.uuid4().hex[:12]}"
    s3_server.create_bucket(name)
    return name


@pytest.fixture(scope="session")
def second_s3_server():
    """A running versitygw for the whole session, with the interface of ``s3_server``: for what
    must hold on more than moto. The first use builds it, which takes minutes: such tests are
    ``long``."""
    with VersityGateway() as running:
        yield running


@pytest.fixture(scope="session")
def kinesis_server():
    """A running Kinesis server for the whole session; tests set no clock of it."""
    with EmbeddedKinesis() as running:
        yield running


@pytest.fixture(scope="session")
def ordered_server():
    """Another one, of which tests set the clock and order faults."""
    with EmbeddedKinesis() as running:
        yield running


@pytest.fixture(scope="session")
def hdfs_server():
    """A running HDFS for the whole session.

    A test that kills or freezes a server starts its own.
    """
    with EmbeddedHdfs() as running:
        yield running


@pytest.fixture(scope="session")
def pravega_server():
    """A running Pravega for the whole session.

    A test that kills or freezes a server starts its own.
    """
    with EmbeddedPravega() as running:
        yield running


@pytest.fixture
def events_stream(pravega_server):
    """Make streams: ``events_stream(segments=2)``."""
    return lambda segments=2: EventStream(pravega_server, segments)


@pytest.fixture
def hdfs_folder(hdfs_server):
    """The URL of a folder on it, which no other test uses; it is not there yet."""
    return f"{hdfs_server.url}/t-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def disk(tmp_path):
    """A small file system of the test's own: it can be full, and read-only."""
    with small_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def armed(monkeypatch):
    """Switch failpoints on in this process until the test ends: ``armed("name=action")``."""
    monkeypatch.setattr(failpoints, "_failpoints", failpoints._failpoints)
    return failpoints.arm


@pytest.fixture(scope="session")
def spark():
    """A session for all tests of this process: a second one would be the same, and its end the
    end of both."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = ",".join(str(jar) for jar in spark_kafka_jars())
    session = small_spark(settings={"spark.jars": jars}).appName("onceforall-tests").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
