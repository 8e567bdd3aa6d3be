"""What each row of the table in ``machine`` does, by the part of a batch's life: start, recover,
redo, write, decide. Pure.
"""
