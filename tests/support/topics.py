"""Topics that are deleted under a query."""

from confluent_kafka.admin import AdminClient

from support.waiting import until


def delete_topic(servers, name):
    """Return when the broker does not tell of the topic any more.

    A broker follows its controller, which is the one that answers: for some milliseconds it still
    tells of a topic that is gone, and not yet of one that was made.
    """
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([name])[name].result(30)
    until(lambda: name not in admin.list_topics(timeout=10).topics, 20, f"topic {name} is gone")
