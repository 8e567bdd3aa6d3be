"""What runs in the driver: the doors that a program calls, one query's run, and the coordinator
that does what ``protocol`` decides.
"""
