"""The protocol, pure: it decides and does nothing.

``entries`` are what the log says, ``history`` what the sealed past decided, ``events`` and
``decisions`` what goes in and out, ``judgement`` and ``sweeping`` the rules, and ``machine`` the
one transition table. Nothing in here imports I/O, a clock, randomness, threads or pyspark; a test
says so.
"""
