"""Tools for proving exactly-once.

``conformance`` checks any sink against the contract; ``checker`` judges what readers found in the
sinks of a query, and ``observers`` read them.
"""
