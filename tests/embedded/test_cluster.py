from __future__ import annotations

import os
from pathlib import Path

import pytest

from onceforall.embedded import EmbeddedKafkaCluster
from onceforall.embedded.jars import KAFKA_VERSIONS, kafka_version, pinned_jars
from onceforall.embedded.metadata import cluster_state
from onceforall.errors import EmbeddedServerError, OptionError
from support.waiting import until


def test_a_version_is_named_in_whole_or_by_its_beginning():
    assert kafka_version("3.9") == kafka_version("3.9.2") == "3.9.2"
    assert kafka_version("4.3") == kafka_version("4") == "4.3.1"
    with pytest.raises(OptionError, match=r"'3\.8'.*4\.3\.1 and 3\.9\.2"):
        kafka_version("3.8")


@pytest.mark.parametrize("version", KAFKA_VERSIONS)
def test_each_pinned_version_is_a_whole_broker_of_that_version(version):
    revisions = {jar.module: jar.revision for jar in pinned_jars(f"kafka-{version}")}
    assert (
        revisions["kafka_2.13"]
        == revisions["kafka-clients"]
        == revisions["kafka-transaction-coordinator"]
        == version
    )


def test_a_cluster_that_was_not_started_says_so():
    cluster = EmbeddedKafkaCluster()
    for call in (
        lambda: cluster.bootstrap_servers,
        lambda: cluster.restart(1),
        lambda: cluster.log(1),
    ):
        with pytest.raises(EmbeddedServerError, match=r"start\(\)"):
            call()
    with pytest.raises(EmbeddedServerError, match="Node 2 does not run"):
        cluster.kill(2)
    cluster.stop()
    with pytest.raises(OptionError, match="nodes=0"):
        EmbeddedKafkaCluster(0)
    with pytest.raises(OptionError, match=r"log\.dirs"):
        EmbeddedKafkaCluster(config={"log.dirs": "/elsewhere"})


def test_nobody_answers_on_a_port_where_nobody_listens():
    assert cluster_state(1) is None


@pytest.mark.long
@pytest.mark.kafka
def test_a_cluster_moves_leaders_away_from_lost_nodes_takes_them_back_and_leaves_nothing():
    with EmbeddedKafkaCluster() as cluster:
        cluster.create_topic("t", 3)
        folder, pids = Path(cluster._folder), [cluster.pid(node) for node in cluster.nodes]
        for number in range(3):
            assert (
                sorted(cluster.partition("t", number).replicas)
                == sorted(cluster.partition("t", number).in_sync)
                == [1, 2, 3]
            )
        with pytest.raises(EmbeddedServerError, match="could not be created"):
            cluster.create_topic("t", 3)
        with pytest.raises(EmbeddedServerError, match="no partition nowhere-0"):
            cluster.leader("nowhere", 0)

        killed = cluster.leader("t", 0)
        cluster.kill(killed)
        assert not cluster.is_running(killed)
        until(lambda: cluster.leader("t", 0) not in {killed, -1}, 30, "another leader")
        cluster.restart(killed)
        cluster.wait_until_whole()

        paused = cluster.leader("t", 1)
        cluster.pause(paused)
        assert cluster_state(int(cluster.address(paused).split(":")[1])) is None
        cluster.wait_until_whole(without=[paused])
        assert cluster.leader("t", 1) != paused
        cluster.resume(paused)
        cluster.wait_until_whole()

        stopped = cluster.leader("t", 2)
        cluster.stop(stopped)
        until(lambda: cluster.leader("t", 2) not in {stopped, -1}, 30, "another leader")
        pids.append(cluster.pid(next(node for node in cluster.nodes if node != stopped)))
    assert not folder.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.kafka
def test_a_node_that_does_not_start_is_named_with_its_log():
    with pytest.raises(EmbeddedServerError, match=r"(?s)could not be formatted.*num\.io\.threads"):
        EmbeddedKafkaCluster(config={"num.io.threads": "none"}).start()
