"""What the Kafka sink does in a Python worker: rows from Arrow to librdkafka, in a transaction
per task.
"""
