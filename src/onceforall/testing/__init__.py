"""Tools for proving exactly-once: named crash points in the production code (``failpoints``)."""
