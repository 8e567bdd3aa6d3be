"""Tools for proving exactly-once: crash points in the production code (``failpoints``), a network with late requests (``proxy``)."""
