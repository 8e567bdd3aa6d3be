"""Clients of stores are kept for each process and settings."""

import os

from onceforall.sinks.files.places.objects.clients import Clients


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
