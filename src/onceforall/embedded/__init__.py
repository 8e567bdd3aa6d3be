"""Real servers for demo and tests: a Kafka broker with the jars that it and Spark's Kafka
connector need, a PostgreSQL server, an S3 server, a Kinesis server, an HDFS, and a Pravega.
"""

from __future__ import annotations

from onceforall.embedded.cluster import EmbeddedKafkaCluster
from onceforall.embedded.hdfs import EmbeddedHdfs
from onceforall.embedded.jars import kafka_jars, s3a_jars, spark_kafka_jars
from onceforall.embedded.kafka import EmbeddedKafka
from onceforall.embedded.kinesis import EmbeddedKinesis
from onceforall.embedded.postgres import EmbeddedPostgres
from onceforall.embedded.pravega import EmbeddedPravega
from onceforall.embedded.s3 import EmbeddedS3

__all__ = [
    "EmbeddedHdfs",
    "EmbeddedKafka",
    "EmbeddedKafkaCluster",
    "EmbeddedKinesis",
    "EmbeddedPostgres",
    "EmbeddedPravega",
    "EmbeddedS3",
    "kafka_jars",
    "s3a_jars",
    "spark_kafka_jars",
]
