"""Fixtures of the file sink on Azure."""

from __future__ import annotations

import uuid

import pytest

from sinks.files_azure.place import folder_on
from support.azurite import Azurite
from support.http_faults import HttpProxy


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

    monkeypatch.setattr(container, "_PAUSE_S", 0)
    monkeypatch.setattr(container, "_clients", {})
    with HttpProxy(azurite.port) as running:
        yield running
