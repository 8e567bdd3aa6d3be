"""What runs in a Python worker, and what the driver hands it: the writing of one task's rows,
rows that are kept, secret values, columns.
"""
