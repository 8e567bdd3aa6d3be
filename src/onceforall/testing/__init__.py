"""Tools for proving exactly-once.

``conformance`` checks any sink against the contract; ``failpoints`` are crash points in the production code; ``proxy`` is a network
with late requests.
"""
