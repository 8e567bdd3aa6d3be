"""What the file sink does in a Python worker: rows from Arrow to temp files, which are ended and
synced.
"""
