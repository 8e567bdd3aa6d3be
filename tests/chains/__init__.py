"""Chains over Kinesis and Pravega under faults, for as long as one wants: ``python -m chains``."""
