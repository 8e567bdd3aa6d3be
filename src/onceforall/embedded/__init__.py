"""Real servers for demo and tests: a Kafka broker with the jars that it and Spark's Kafka
connector need, and a PostgreSQL server.
"""

from __future__ import annotations

from onceforall.embedded.cluster import EmbeddedKafkaCluster
from onceforall.embedded.jars import kafka_jars, spark_kafka_jars
from onceforall.embedded.kafka import EmbeddedKafka
from onceforall.embedded.postgres import EmbeddedPostgres

__all__ = [
    "EmbeddedKafka",
    "EmbeddedKafkaCluster",
    "EmbeddedPostgres",
    "kafka_jars",
    "spark_kafka_jars",
]
