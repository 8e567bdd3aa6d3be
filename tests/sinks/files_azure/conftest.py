"""Fixtures of the file sink on Azure."""

from __future__ import annotations

import uuid

import pytest

from onceforall.sinks.files.places.objects.clients import Clients
from sinks.files_azure.place import folder_on
from support.azurite import Azurite
from support.http_faults import HttpProxy

REQUESTS = {
    "complete": {"method": "PUT", "kind": "complete upload"},
    "manifest": {"method": "PUT", "key": r"/0\.json$", "kind": "create"},
    "part": {"method": "PUT", "kind": "part"},
    "parts": {"method": "GET", "kind": "list parts"},
    "record": {"method": "PUT", "key": "/uploads/", "kind": "put"},
    "look": {"method": "HEAD"},
    "read": {"method": "GET", "kind": "get"},
    "list": {"method": "GET", "kind": "list"},
    "delete": {"method": "DELETE"},
}


@pytest.fixture(scope="session")
def azurite():
    """A running Azurite for the whole session. The first use installs it: such tests are ``long``."""
    with Azurite() as running:
        yield running


@pytest.fixture
def container(azurite):
    """The name of an empty container on it, which no other test uses."""
    name = f"c-{uuid.uuid4().hex[:12]}"
    azurite.create_container(name)
    return name


@pytest.fixture
def place(azurite, container):
    """An empty folder in a container of its own."""
    return folder_on(azurite, container)


@pytest.fixture
def proxy(azurite, monkeypatch):
    from onceforall.sinks.files.places.azure import container

    for pause in ("_PAUSE_S", "_BASE_S"):
        monkeypatch.setattr(container, pause, 0)
    monkeypatch.setattr(container, "_clients", Clients(container._new_client))
    with HttpProxy(azurite.port) as running:
        yield running


@pytest.fixture
def requests():
    # Two looks whether there is a manifest come before it is put.
    behind = {"method": "GET", "key": r"/0\.json$", "nth": 3}
    return {**REQUESTS, "behind the manifest": behind}


@pytest.fixture(params=REQUESTS)
def which(request):
    return REQUESTS[request.param]


@pytest.fixture(params=["complete", "delete", "look", "parts"])
def in_a_sweep(request):
    return REQUESTS[request.param]
