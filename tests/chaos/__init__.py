"""The crash campaign on real systems: `make chaos`; see docs/chaos.md."""
