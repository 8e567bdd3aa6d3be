"""What stands around a contender: the broker and its topics, generator and reader, child
processes, and the meter of their CPU and memory.
"""
