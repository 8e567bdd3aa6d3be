"""Who is compared: ours, Spark's own sinks, Flink, and producers alone; how each is started, and
what runs in its process.
"""
