"""Where the time goes: of a record, of a batch, of a restart, of a task in a Python worker, and
by threads.
"""
