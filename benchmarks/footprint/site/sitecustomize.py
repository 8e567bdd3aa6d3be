"""Python imports this at its start, from a folder on its path."""

from benchmarks.footprint.recorder import record

record()
