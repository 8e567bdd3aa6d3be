"""Machines on one machine: a network namespace for each, on a bridge that leads nowhere else.

A machine reaches the driver and Spark's master over the bridge, and each server (broker, database,
store) at the same loopback address and port as the driver does: a door of its own, which can be
shut for this machine alone. What was sent into a shut door, or into a cut cable, is delivered when
it is open again, if the sender's TCP has not given up: so a zombie's late requests arrive.

It takes the rights to make namespaces (root), and ``ip`` of iproute2.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_CHUNK = 1 << 16


class NoRightsError(Exception):
    """Namespaces can't be made here."""


def check_rights():
    """Look whether namespaces can be made.

    Raises:
        NoRightsError: they can't; the message says what is missing.
    """
    if shutil.which("ip") is None:
        raise NoRightsError("A cluster in namespaces takes the command ip (package iproute2).")
    name = f"ofa-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        raise NoRightsError(
            f"A cluster in namespaces takes root's rights: ip netns add: {made.stderr.strip()}"
        )
    _ip("netns", "del", name)


class Network:
    """A bridge with the driver's addresses, and machines on it; a context manager."""

    def __init__(self, machines, addresses=3):
        """Args: machines: how many. addresses: how many of the driver's side."""
        number = os.getpid() % 250
        self._prefix = f"10.99.{number}"
        self._bridge = f"ofab{number}"
        self.addresses = [f"{self._prefix}.{n}" for n in range(1, addresses + 1)]
        self.machines = [
            Machine(f"ofa{number}-{n}", f"{self._prefix}.{100 + n}") for n in range(machines)
        ]
        self._doors = None

    def __enter__(self):
        check_rights()
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            for address in self.addresses:
                _ip("addr", "add", f"{address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for machine in self.machines:
                machine.make(self._bridge)
            self._doors = _Loop()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._doors is not None:
            self._doors.close()
        for machine in self.machines:
            machine.remove()
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)

    def open_doors(self, ports):
        """Let each machine reach servers of this machine's loopback.

        Args: ports: by the service's name.
        """
        for machine in self.machines:
            for service, port in ports.items():
                listener = machine.listener(port)
                machine.doors[service] = self._doors.serve(listener, port)


class Machine:
    """A namespace with an address on the bridge.

    Attributes: name: of the namespace. address: on the bridge. doors: by service.
    """

    def __init__(self, name, address):
        self.name = name
        self.address = address
        self.doors = {}
        self._cable = f"{name.replace('-', '')}r"

    def make(self, bridge):
        inside = f"{self._cable[:-1]}i"
        _ip("netns", "add", self.name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", inside)
        _ip("link", "set", inside, "netns", self.name)
        _ip("link", "set", self._cable, "master", bridge)
        _ip("link", "set", self._cable, "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", inside)
        _ip("-n", self.name, "link", "set", inside, "up")
        _ip("-n", self.name, "link", "set", "lo", "up")

    def remove(self):
        for command in (["link", "del", self._cable], ["netns", "del", self.name]):
            subprocess.run(["ip", *command], capture_output=True, check=False)

    def command(self, arguments):
        """Return the command that runs another one on this machine; its process id is that of
        the other one."""
        return ["ip", "netns", "exec", self.name, *map(str, arguments)]

    def pull_cable(self):
        """Cut the machine off from the driver, the master and the other machines."""
        _ip("link", "set", self._cable, "down")

    def plug_in(self):
        _ip("link", "set", self._cable, "up")

    def listener(self, port):
        """Return a socket that listens on a port of this machine's loopback."""
        made = []

        def listen():
            # A thread's namespace is its own (setns(2)); a socket stays in the one it was made in.
            with Path("/run/netns", self.name).open() as namespace:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                    made.append(OSError(ctypes.get_errno(), f"setns to {self.name}"))
                    return
            try:
                made.append(socket.create_server(("127.0.0.1", port), backlog=128))
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        if isinstance(made[0], OSError):
            raise made[0]
        return made[0]


class Door:
    """The way from one machine to one server. Shut, it takes connections and bytes, and passes
    nothing on."""

    def __init__(self, loop):
        self._loop = loop
        self._open = asyncio.Event()
        self._open.set()
        self._transports = set()

    def shut(self):
        self._loop.call_soon_threadsafe(self._open.clear)

    def open(self):
        self._loop.call_soon_threadsafe(self._open.set)

    def reset(self):
        """End all connections at once, as a firewall does that forgets them."""

        def end():
            for transport in list(self._transports):
                transport.abort()

        self._loop.call_soon_threadsafe(end)

    async def carry(self, port, reader, writer):
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        mine = {writer.transport, back.transport}
        self._transports |= mine
        try:
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._transports -= mine
            for transport in mine:
                transport.abort()

    async def _pump(self, reader, writer):
        while data := await reader.read(_CHUNK):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        await self._open.wait()
        with contextlib.suppress(OSError):
            writer.write_eof()


class _Loop:
    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._servers = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def serve(self, listener, port):
        door = Door(self._loop)

        async def start():
            async def connected(reader, writer):
                await door.carry(port, reader, writer)

            self._servers.append(await asyncio.start_server(connected, sock=listener))

        asyncio.run_coroutine_threadsafe(start(), self._loop).result(30)
        return door

    def close(self):
        async def end():
            for server in self._servers:
                server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


def _ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
