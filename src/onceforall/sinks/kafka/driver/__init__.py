"""What the Kafka sink asks of a cluster from the driver: to end, fence and list transactions,
and what became of one. No worker imports it.
"""
