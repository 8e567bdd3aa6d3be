"""Tools for proving exactly-once.

``conformance`` checks any sink against the contract; ``checker`` judges what readers found in the sinks of a query, and ``observers`` read
them; ``failpoints`` are crash points in the production code; ``proxy`` is a network with late requests;
``simulator`` runs the protocol in a world that is made up, under very many schedules.
"""
