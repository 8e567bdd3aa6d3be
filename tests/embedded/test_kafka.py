from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from onceforall.embedded import EmbeddedKafka
from onceforall.embedded.network import broker_answers, can_listen, free_port
from onceforall.errors import EmbeddedServerError, OptionError
from support.waiting import until

pytestmark = pytest.mark.kafka

QUIET = {"log_level": 0}


def produce(broker, topic, *values):
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def consume(broker, topic, count):
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", **QUIET}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(count, timeout=30)]
    finally:
        consumer.close()


@pytest.fixture
def own_broker():
    """A broker of the test's own, which it may kill."""
    with EmbeddedKafka() as running:
        yield running


def test_records_come_back_as_they_were_sent(broker, topic):
    name = topic(partitions=1)
    produce(broker, name, b"one", b"two")
    assert consume(broker, name, 2) == [b"one", b"two"]


def test_a_transaction_commits(broker, topic):
    name = topic(partitions=1)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, **QUIET}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"whole")
    producer.commit_transaction(30)
    assert consume(broker, name, 1) == [b"whole"]


def test_the_broker_listens_on_loopback_alone(broker):
    listening = [
        c.laddr
        for c in psutil.Process(broker.pid).net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    # Java shows an IPv4 address of a dual-stack socket in its IPv6 form.
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert broker.port in {address.port for address in listening}


def test_a_topic_has_the_partitions_and_settings_asked_for_and_no_topic_makes_itself(broker, topic):
    name = topic(partitions=3, config={"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **QUIET})
    assert len(producer.list_topics(name, timeout=30).topics[name].partitions) == 3
    assert (
        producer.list_topics("nobody-made-this", timeout=30).topics["nobody-made-this"].error
        is not None
    )


def test_a_topic_that_exists_is_named(broker, topic):
    name = topic()
    with pytest.raises(EmbeddedServerError, match=f"{name}.*already exists.*Choose another name"):
        broker.create_topic(name)


def test_stop_leaves_no_process_and_no_temporary_folder():
    with EmbeddedKafka() as broker:
        pid, port, folder = broker.pid, broker.port, broker.data_dir
        assert (folder / "broker.log").is_file()
        assert broker_answers(port)
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    assert can_listen(port)
    broker.stop()
    with pytest.raises(EmbeddedServerError, match=r"Call start\(\)"):
        broker.restart()


@pytest.mark.long
def test_a_failing_block_stops_the_broker_too():
    pids = []

    def fail_inside():
        with EmbeddedKafka() as broker:
            pids.append(broker.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert not psutil.pid_exists(pids[0])


@pytest.mark.long
def test_a_killed_broker_comes_back_at_its_address_with_its_records(own_broker):
    own_broker.create_topic("kept")
    produce(own_broker, "kept", b"before")
    address, pid = own_broker.bootstrap_servers, own_broker.pid
    own_broker.kill()
    assert not psutil.pid_exists(pid)
    with pytest.raises(EmbeddedServerError, match="ended with status -9"):
        _ = own_broker.pid
    own_broker.restart()
    assert own_broker.bootstrap_servers == address
    assert consume(own_broker, "kept", 1) == [b"before"]


@pytest.mark.long
def test_a_client_reconnects_after_a_restart(own_broker):
    own_broker.create_topic("kept")
    producer = Producer({"bootstrap.servers": own_broker.bootstrap_servers, **QUIET})
    producer.produce("kept", b"before")
    assert producer.flush(30) == 0
    own_broker.restart()
    producer.produce("kept", b"after")
    assert producer.flush(30) == 0
    assert consume(own_broker, "kept", 2) == [b"before", b"after"]


@pytest.mark.long
def test_a_frozen_broker_answers_nothing_until_it_is_thawed(own_broker):
    own_broker.freeze()
    assert own_broker.is_running
    assert not broker_answers(own_broker.port)
    own_broker.thaw()
    until(lambda: broker_answers(own_broker.port), what="an answer of the thawed broker")


@pytest.mark.long
def test_a_frozen_broker_is_stopped_in_an_orderly_way(tmp_path):
    broker = EmbeddedKafka(data_dir=tmp_path)
    broker.start()
    pid = broker.pid
    broker.freeze()
    broker.stop()
    assert not psutil.pid_exists(pid)
    assert (tmp_path / "log" / ".kafka_cleanshutdown").exists()


@pytest.mark.long
def test_a_given_data_folder_is_kept_and_continued_on_other_ports(tmp_path):
    with EmbeddedKafka(data_dir=tmp_path / "data") as broker:
        broker.create_topic("kept")
        produce(broker, "kept", b"first run")
    with EmbeddedKafka(data_dir=tmp_path / "data", port=free_port()) as broker:
        assert consume(broker, "kept", 1) == [b"first run"]


def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = EmbeddedKafka(port=port)
        with pytest.raises(
            EmbeddedServerError, match=f"Port {port} of 127.0.0.1 is taken.*choose another port"
        ):
            broker.start()
    assert not broker.is_running


def test_a_setting_that_kafka_refuses_is_shown_with_what_it_said(tmp_path):
    broker = EmbeddedKafka(data_dir=tmp_path, config={"num.io.threads": "many"})
    with pytest.raises(
        EmbeddedServerError,
        match=r"(?s)settings given as config.*Invalid value many.*num\.io\.threads",
    ):
        broker.start()
    assert not broker.is_running


@pytest.mark.long
def test_a_broker_that_ends_at_its_start_is_shown_with_the_end_of_its_log(tmp_path):
    with EmbeddedKafka(data_dir=tmp_path):
        pass
    # Formatted before: this time it is the broker itself that meets the bad setting.
    broker = EmbeddedKafka(data_dir=tmp_path, config={"num.io.threads": "many"})
    with pytest.raises(
        EmbeddedServerError, match=r"(?s)ended with status 1 before it answered.*Invalid value many"
    ):
        broker.start()
    assert not broker.is_running


@pytest.mark.parametrize(
    "key", ["listeners", "log.dirs", "process.roles", "controller.quorum.voters"]
)
def test_a_setting_that_the_class_needs_for_itself_is_refused(key):
    with pytest.raises(OptionError, match=key):
        EmbeddedKafka(config={key: "x"})


def test_a_broker_that_was_not_started_says_so():
    broker = EmbeddedKafka()
    for use in (
        broker.kill,
        broker.freeze,
        broker.restart,
        lambda: broker.bootstrap_servers,
        lambda: broker.create_topic("t"),
    ):
        with pytest.raises(EmbeddedServerError, match=r"Call start\(\)"):
            use()


START_IN_A_THREAD = """
import threading, time
from onceforall.embedded import EmbeddedKafka
broker = EmbeddedKafka()
thread = threading.Thread(target=broker.start)
thread.start()
thread.join()
print(broker.pid, broker.data_dir, flush=True)
{then}
"""


def start_parent(then):
    parent = subprocess.Popen(
        [sys.executable, "-c", START_IN_A_THREAD.format(then=then)],
        stdout=subprocess.PIPE,
        text=True,
    )
    pid, folder = parent.stdout.readline().split()
    return parent, int(pid), folder


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.long
def test_a_killed_parent_takes_its_broker_along_and_an_ended_thread_does_not():
    parent, pid, folder = start_parent("time.sleep(600)")
    try:
        broker = psutil.Process(pid)
        # The thread that called start() has ended; a broker bound to it would be dead.
        assert broker.status() != psutil.STATUS_ZOMBIE
        assert parent.poll() is None
        parent.send_signal(signal.SIGKILL)
        until(
            lambda: not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE,
            what="the end of the broker",
        )
    finally:
        parent.kill()
        parent.communicate()
        subprocess.run(["rm", "-r", folder], check=True)


@pytest.mark.long
def test_a_parent_that_ends_without_stop_leaves_neither_broker_nor_folder():
    parent, pid, folder = start_parent("")
    parent.communicate(timeout=60)
    assert parent.returncode == 0
    assert not psutil.pid_exists(pid)
    assert not Path(folder).exists()


def test_a_forked_child_cannot_stop_its_parents_broker(broker):
    child = os.fork()
    if child == 0:
        broker.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert broker.is_running
    assert broker.data_dir.is_dir()
    assert broker_answers(broker.port)


@pytest.mark.long
def test_a_stopped_broker_refuses_clients(own_broker):
    port = own_broker.port
    own_broker.stop()
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "reader", **QUIET})
    with pytest.raises(KafkaException):
        consumer.list_topics(timeout=1)
    consumer.close()
