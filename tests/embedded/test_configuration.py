from __future__ import annotations

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onceforall.embedded import network
from onceforall.embedded.configuration import render_properties, server_properties


def test_a_setting_of_the_user_replaces_the_default():
    properties = server_properties(
        port=1, controller_port=2, log_dir=Path("/d"), overrides={"num.partitions": "7"}
    )
    assert properties["num.partitions"] == "7"
    assert properties["auto.create.topics.enable"] == "false"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("C:\\data", "C:\\\\data"),
        ("two\nlines", "two\\nlines"),
        (" led", "\\ led"),
        ("Größe 😀", "Gr\\u00f6\\u00dfe \\ud83d\\ude00"),
    ],
)
def test_a_value_is_written_so_that_java_reads_it_back(value, written):
    assert render_properties({"a key": value}) == f"a\\ key={written}\n"


def test_a_chosen_port_is_free_and_lies_below_those_of_outgoing_connections():
    first = network._first_ephemeral_port()
    ports = {network.free_port() for _ in range(50)}
    assert len(ports) > 1
    assert all(10_000 <= port < first for port in ports)


def test_a_port_in_use_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not network.can_listen(server.getsockname()[1])


@pytest.mark.parametrize("answer", [struct.pack(">i", 2) + b"ab", struct.pack(">i", -1)])
def test_a_server_with_an_answer_of_another_protocol_is_no_broker(answer):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(answer)

        with ThreadPoolExecutor() as pool:
            served = pool.submit(serve)
            assert not network.broker_answers(server.getsockname()[1])
            served.result()


def test_a_server_that_is_no_broker_is_not_taken_for_one():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not network.broker_answers(server.getsockname()[1])
