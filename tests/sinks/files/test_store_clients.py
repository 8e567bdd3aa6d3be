"""Clients of stores are kept for each process and settings."""

import os
import traceback

import pytest

from onceforall.sinks.files.places.objects.clients import Clients
from onceforall.sinks.files.places.objects.paths import ObjectPath


class Makes:
    """Counts what is made and what is closed."""

    def __init__(self):
        self.made, self.closed = [], []

    def __call__(self, settings):
        client = object()
        self.made.append((client, dict(settings)))
        return client, lambda: self.closed.append(client)


def test_the_same_settings_have_the_same_client_and_what_else_counts_is_not_given_to_it():
    make = Makes()
    clients = Clients(make)
    first = clients.of({"endpoint": "a", "region": "b"}, token="x")
    assert clients.of({"region": "b", "endpoint": "a"}, token="x") is first
    assert clients.of({"region": "b", "endpoint": "a"}, token="y") is not first
    assert [given for _, given in make.made] == [{"endpoint": "a", "region": "b"}] * 2


def test_the_oldest_is_closed_where_there_are_too_many():
    make = Makes()
    clients = Clients(make, most=2)
    first, second, third = (clients.of({"endpoint": name}) for name in "abc")
    assert make.closed == [first]
    assert clients.of({"endpoint": "b"}) is second
    assert clients.of({"endpoint": "c"}) is third
    assert clients.of({"endpoint": "a"}) is not first


def test_a_fork_has_its_own_and_closes_none_of_its_parents(monkeypatch):
    make = Makes()
    clients = Clients(make, most=1)
    parents = clients.of({"endpoint": "a"})
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert clients.of({"endpoint": "a"}) is not parents
    assert make.closed == []


def _azure():
    from azure.core.exceptions import ClientAuthenticationError, ResourceNotFoundError
    from azure.core.exceptions import ServiceRequestError as Unreachable

    from onceforall.sinks.files.places.azure.container import Container

    return Container, [ClientAuthenticationError, ResourceNotFoundError, Unreachable]


def _google():
    from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed, RetryError
    from google.auth.exceptions import RefreshError

    from onceforall.sinks.files.places.gcs.client import GcsBucket

    return GcsBucket, [
        Forbidden,
        NotFound,
        PreconditionFailed,
        RefreshError,
        lambda text: RetryError(text, ConnectionError(text)),
    ]


def _s3():
    from botocore.exceptions import ClientError, EndpointConnectionError

    from onceforall.sinks.files.places.s3.bucket import Bucket

    return Bucket, [
        lambda text: ClientError({"Error": {"Code": "AccessDenied"}}, text),
        lambda text: EndpointConnectionError(endpoint_url=text),
    ]


@pytest.mark.parametrize("store", [_azure, _google, _s3])
def test_no_error_shows_what_the_client_said_also_not_as_its_cause(store):
    """A client's text of a failed connection has the URL with its signature; a traceback prints the
    cause."""
    client, kinds = store()
    path = ObjectPath("bucket", "folder/file")
    for make in [*kinds, ValueError, OSError]:
        with pytest.raises(OSError) as raised, client._explained(None, "read", path):
            raise make("https://host/folder?sig=hunter2")
        text = "".join(traceback.format_exception(raised.value))
        assert "hunter2" not in text, make
        assert raised.value.__cause__ is None
