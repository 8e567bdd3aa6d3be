"""The Kafka sink (extra ``kafka``: confluent-kafka in the tasks, kafka-python on the driver)."""

from onceforall.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
