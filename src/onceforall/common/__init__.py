"""What every room uses, and what knows none of them: checks of arguments, loggers, the clock,
threads that outlive Python's end.
"""
