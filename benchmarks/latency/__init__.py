"""How long it takes until a reader is shown a record, and how much of that are a decision and
its commits.
"""
