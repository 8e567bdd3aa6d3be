"""One pipeline per test: its own checkpoint and output topic, on the session's broker."""

import pytest

from support import class_archive
from support.driver import Pipeline
from support.sinks import make_table


@pytest.fixture(scope="session", autouse=True)
def _class_archive(tmp_path_factory):
    class_archive.make(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def pipeline(tmp_path, broker, topic):
    made = Pipeline(tmp_path, broker.bootstrap_servers, topic(partitions=3))
    yield made
    made.close()


@pytest.fixture
def pipeline_on(tmp_path):
    """Make a pipeline on another broker."""
    made = []

    def make(broker, **config):
        broker.create_topic("out", partitions=3)
        made.append(Pipeline(tmp_path, broker.bootstrap_servers, "out", **config))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


@pytest.fixture
def pipeline_of(tmp_path, broker, topic, database):
    """Make a pipeline with these sinks and this configuration."""
    made = []

    def make(*kinds, **config):
        make_table(database)
        more = {"sinks": list(kinds), "files": str(tmp_path / "files"), "database": database}
        servers, name = broker.bootstrap_servers, topic(partitions=3)
        made.append(Pipeline(tmp_path, servers, name, until_batch=10_000, **more, **config))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()
