"""Which published results are of the code that is checked out, and what would have to be
measured again: ``make evidence``.
"""
