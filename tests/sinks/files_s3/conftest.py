"""Fixtures of the file sink on S3."""

from __future__ import annotations

import pytest

from sinks.files_s3.place import prefix_on
from support.http_faults import HttpProxy


@pytest.fixture
def place(s3_server, s3_bucket):
    """An empty prefix in a bucket of its own."""
    return prefix_on(s3_server, s3_bucket)


@pytest.fixture
def proxy(s3_server):
    with HttpProxy(s3_server.port) as running:
        yield running
