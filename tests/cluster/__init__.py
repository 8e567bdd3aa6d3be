"""A Spark cluster of several machines, made of network namespaces, and what is done to it."""
