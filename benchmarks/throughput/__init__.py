"""How many records or rows per second a query moves, and what CPU and memory that takes: from
Kafka to Kafka, into PostgreSQL, into files, and into all three.
"""
