"""Named places in production code at which a test can kill, freeze or fail a process: ``points``
acts, ``catalogue`` lists them.

Nothing is armed unless the environment or a test says so, and an unarmed point costs one look at a
dictionary.
"""
