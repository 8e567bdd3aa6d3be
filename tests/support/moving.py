"""Faults of a cluster: leaders and transaction coordinators found, and moved without a kill, as
an operator or a balancer would."""

from onceforall.sinks.kafka.driver.coordinator_client import CoordinatorClient
from support.waiting import until

TRANSACTIONS = "__transaction_state"
_ELECTION_NOT_NEEDED = 84


def transaction_partition(cluster, transactional_id):
    """Return the partition of __transaction_state to which an id belongs: by the absolute value
    of Java's hash of it."""
    code = 0
    for character in transactional_id:
        code = (31 * code + ord(character)) & 0xFFFFFFFF
    count = sum(topic == TRANSACTIONS for topic, _ in cluster.state().partitions)
    return min(code, 0x100000000 - code) % count


def coordinator_of(cluster, transactional_id):
    """Return the node that coordinates an id."""
    return cluster.leader(TRANSACTIONS, transaction_partition(cluster, transactional_id))


def move_leader(cluster, topic, number, to):
    """Make a node the leader of a partition, by a reassignment to the same replicas in another
    order and a preferred election."""
    client = CoordinatorClient(cluster.bootstrap_servers)
    # Not at the top: the client's own import keeps kafka-python's warnings quiet.
    from kafka.protocol.admin import AlterPartitionReassignmentsRequest, ElectLeadersRequest

    try:
        replicas = [to, *(node for node in cluster.partition(topic, number).replicas if node != to)]
        reassign = AlterPartitionReassignmentsRequest
        partition = reassign.ReassignableTopic.ReassignablePartition(
            partition_index=number, replicas=replicas
        )
        wanted = reassign.ReassignableTopic(name=topic, partitions=[partition])
        answer = client.ask_any(lambda: reassign(topics=[wanted], timeout_ms=10_000))
        codes = [
            answer.error_code,
            *(p.error_code for response in answer.responses for p in response.partitions),
        ]
        assert codes == [0, 0], answer

        def led():
            chosen = ElectLeadersRequest.TopicPartitions(topic=topic, partitions=[number])
            answer = client.ask_any(
                lambda: ElectLeadersRequest(
                    election_type=0, topic_partitions=[chosen], timeout_ms=10_000
                )
            )
            assert answer.error_code in {0, _ELECTION_NOT_NEEDED}, answer
            return all(
                cluster.partition(topic, number, node).leader == to
                for node in cluster.nodes
                if cluster.is_running(node)
            )

        until(led, 20, f"node {to} leads {topic}-{number}")
    finally:
        client.close()


def leaders(cluster, topic, asked=None):
    """Return the nodes that lead partitions of a topic, by the word of one node (by default the
    first that answers)."""
    return {
        partition.leader
        for (name, _), partition in cluster.state(asked).partitions.items()
        if name == topic
    }


def move_leaders(cluster, topic, to):
    """Make a node the leader of all partitions of a topic."""
    for number in sorted(number for name, number in cluster.state().partitions if name == topic):
        move_leader(cluster, topic, number, to)
    assert leaders(cluster, topic) == {to}


def make_whole(cluster):
    """Bring every node back, whatever was done to it."""
    for node in cluster.nodes:
        if cluster.is_running(node):
            cluster.resume(node)
        else:
            cluster.restart(node)
    cluster.wait_until_whole()
