"""Fixtures of the file sink on Google Cloud Storage."""

from __future__ import annotations

import uuid

import pytest

from sinks.files_gcs.place import Folder
from support.fake_gcs import FakeGcs


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
