"""Real servers for demo and tests: a Kafka broker, and the jars that it and Spark's Kafka connector need."""

from __future__ import annotations

from onceforall.embedded.cluster import EmbeddedKafkaCluster
from onceforall.embedded.jars import kafka_jars, spark_kafka_jars
from onceforall.embedded.kafka import EmbeddedKafka

__all__ = ["EmbeddedKafka", "EmbeddedKafkaCluster", "kafka_jars", "spark_kafka_jars"]
