"""Fixtures of the file sink on Google Cloud Storage."""

from __future__ import annotations

import uuid

import pytest

from sinks.files_gcs.place import Folder
from support.fake_gcs import FakeGcs
from support.http_faults import HttpProxy

REQUESTS = {
    "complete": {"method": "POST", "kind": "compose"},
    "manifest": {"method": "POST", "key": r"/0\.json$", "kind": "create"},
    "begin": {"method": "POST", "key": "/begun$", "kind": "put"},
    "part": {"method": "POST", "key": r"/\d{5}$", "kind": "put"},
    "parts": {"method": "GET", "key": "/parts/.*/[0-9a-f]{32}/$", "kind": "list"},
    "record": {"method": "POST", "key": "/uploads/", "kind": "put"},
    "look": {"method": "GET", "kind": "head"},
    "read": {"method": "GET", "kind": "get"},
    "list": {"method": "GET", "kind": "list"},
    "delete": {"method": "DELETE"},
}


@pytest.fixture(scope="session")
def gcs_server():
    """A running emulator for the whole session. The first use builds it: such tests are ``long``."""
    with FakeGcs() as running:
        yield running


@pytest.fixture
def place(gcs_server):
    """An empty folder in a bucket of its own."""
    name = f"b-{uuid.uuid4().hex[:12]}"
    gcs_server.create_bucket(name)
    return Folder(name, gcs_server.endpoint)


@pytest.fixture
def proxy(gcs_server, monkeypatch):
    from onceforall.sinks.files.places.gcs import client

    monkeypatch.setattr(client, "_RETRY_FOR_S", 4.0)
    with HttpProxy(gcs_server.port) as running:
        yield running


@pytest.fixture
def requests():
    # Two looks whether there is a manifest come before it is put.
    behind = {"method": "GET", "kind": "get", "key": r"/0\.json$", "nth": 3}
    return {**REQUESTS, "behind the manifest": behind}


@pytest.fixture(params=REQUESTS)
def which(request):
    return REQUESTS[request.param]


@pytest.fixture(params=["list", "delete"])
def in_a_sweep(request):
    return REQUESTS[request.param]
