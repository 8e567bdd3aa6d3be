"""A broker of a test's own, for tests that kill or freeze it."""

from onceforall.embedded import EmbeddedKafka


def own_broker(folder):
    return EmbeddedKafka(data_dir=folder / "broker")
