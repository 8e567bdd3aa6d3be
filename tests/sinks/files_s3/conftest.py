"""Fixtures of the file sink on S3."""

from __future__ import annotations

import pytest

from sinks.files_s3.place import prefix_on
from support.http_faults import HttpProxy

REQUESTS = {
    "complete": {"method": "POST", "kind": "complete upload"},
    "manifest": {"method": "PUT", "key": r"/0\.json$", "kind": "create"},
    "begin": {"method": "POST", "kind": "begin upload"},
    "part": {"method": "PUT", "kind": "part"},
    "parts": {"method": "GET", "kind": "list parts"},
    "record": {"method": "PUT", "key": "/uploads/", "kind": "put"},
    "look": {"method": "HEAD"},
    "read": {"method": "GET", "kind": "get"},
    "list": {"method": "GET", "kind": "list"},
    "delete": {"method": "DELETE", "kind": "delete"},
}
EACH_TIME = ("complete", "manifest", "begin", "part")


@pytest.fixture
def place(s3_server, s3_bucket):
    """An empty prefix in a bucket of its own."""
    return prefix_on(s3_server, s3_bucket)


@pytest.fixture
def proxy(s3_server):
    with HttpProxy(s3_server.port) as running:
        yield running


@pytest.fixture
def requests():
    # Two looks whether there is a manifest come before it is put.
    behind = {"method": "GET", "key": r"/0\.json$", "nth": 3}
    return {**REQUESTS, "behind the manifest": behind}


@pytest.fixture(
    params=[
        name if name in EACH_TIME else pytest.param(name, marks=pytest.mark.long)
        for name in REQUESTS
    ]
)
def which(request):
    return REQUESTS[request.param]


@pytest.fixture
def in_a_sweep():
    return {"method": "DELETE", "kind": "abort upload"}
