"""One Connect server for the tests that kill none, and a pipeline per test."""

import pytest

from support import class_archive
from support.connect_server import ConnectPipeline, ConnectServer
from support.waiting import until


@pytest.fixture(scope="session")
def _class_archive(tmp_path_factory):
    class_archive.make(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="package")
def connect_server(tmp_path_factory, _class_archive):
    """A server whose event log is kept."""
    folder = tmp_path_factory.mktemp("connect") / "server"
    events = folder.parent / "events"
    events.mkdir()
    settings = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file:{events}"}
    server = ConnectServer(folder, settings=settings)
    server.events = events
    yield server
    server.close()


@pytest.fixture
def pipeline(request, tmp_path, _class_archive):
    made = ConnectPipeline(tmp_path)
    yield made
    made.close()
    if "connect_server" in request.fixturenames:
        server = request.getfixturevalue("connect_server")
        until(lambda: not server.children(), 60, "no query goes on, beside all later tests")
