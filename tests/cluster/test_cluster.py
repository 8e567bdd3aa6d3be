"""The cluster of ``make chaos-cluster`` itself: that a cut machine is cut, and the four jobs under
a few faults."""

import socket
import subprocess
import sys
import threading

import pytest

from cluster.ads import AdsOnCluster
from cluster.network import Network
from support.waiting import until

# They take root, for namespaces; a machine that gives none fails them, and says so.
pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

ASK = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20); "
HEAR = ASK + "s.sendall(b'question'); print(s.recv(64).decode()); s.close()"


class Echo:
    """A server that answers on this machine's loopback."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"heard " + connection.recv(64))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()


def asks(machine, port):
    """Start a process on a machine that asks the server."""
    return subprocess.Popen(
        machine.command([sys.executable, "-c", HEAR, port]), stdout=subprocess.PIPE, text=True
    )


def test_a_machine_reaches_a_server_at_its_own_loopback_and_waits_before_a_shut_door():
    with Echo() as echo, Network(2) as network:
        network.open_doors({"echo": echo.port})
        first, second = network.machines
        assert asks(first, echo.port).communicate(timeout=60)[0] == "heard question\n"
        first.doors["echo"].shut()
        waiting = asks(first, echo.port)
        assert asks(second, echo.port).communicate(timeout=60)[0] == "heard question\n"
        assert waiting.poll() is None
        first.doors["echo"].open()
        # What was sent into the shut door arrives.
        assert waiting.communicate(timeout=60)[0] == "heard question\n"


def test_a_machine_whose_cable_is_pulled_reaches_nobody_on_the_bridge():
    with Network(1) as network:
        (machine,) = network.machines
        with socket.create_server((network.addresses[1], 0)) as server:
            port = server.getsockname()[1]
            program = (
                "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"
            )
            command = machine.command(
                [sys.executable, "-c", program, network.addresses[1], str(port)]
            )
            assert subprocess.run(command, check=False).returncode == 0
            machine.pull_cable()
            cut = subprocess.run(command, check=False, capture_output=True)
            assert cut.returncode != 0
            machine.plug_in()
            until(lambda: subprocess.run(command, check=False).returncode == 0, 60, "the way back")


@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.postgres
def test_the_ledgers_agree_after_a_few_faults_of_each_side(tmp_path):
    kinds = [
        "executor killed",
        "machine cut off from everything",
        "driver killed",
        "Python workers frozen, their executor killed",
        "worker and its executors killed",
        "master killed",
    ]
    with AdsOnCluster(tmp_path / "run", seed=7, faults=6, events=100_000, only=kinds) as run:
        result = run.run()
    assert result.failures == []
    assert set(result.faults) == set(kinds)
    for account in result.accounts.values():
        assert account["read"] == account["expected"] > 1000
