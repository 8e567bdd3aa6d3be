"""A TCP relay in front of a server, which can be told to lose the server's answers, or to hang."""

import contextlib
import selectors
import socket
import threading
from urllib.parse import urlsplit, urlunsplit


class Relay:
    """Listens on a port of its own.

    ``lose_answers`` lets requests through, drops what the server says, and then cuts the
    connection. ``hang_at`` leaves the next connections
    open and without another answer as soon as they send these bytes: a server that is frozen.
    """

    def __init__(self, host, port):
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._losing = threading.Event()
        self._hang_at, self._to_hang, self._after = b"", 0, 0
        self.lost = self.hung = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()

    def url(self, url):
        """The same address, through this relay."""
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{self.port}"))

    def lose_answers(self):
        self._losing.set()

    def hang_at(self, words, connections, after=0):
        """Let each connection send so many of these before, and hang at the next one."""
        self._hang_at, self._to_hang, self._after, self.hung = words, connections, after, 0

    def work_again(self):
        self._losing.clear()
        self._to_hang = 0

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        # Not select.select: it refuses descriptors above 1,023, and a process that has run many
        # tests has those. An OSError is one end that went away; the other one is closed, as a
        # network would.
        with (
            client,
            contextlib.suppress(OSError),
            selectors.DefaultSelector() as ends,
            socket.create_connection(self._server) as server,
        ):
            ends.register(client, selectors.EVENT_READ)
            ends.register(server, selectors.EVENT_READ)
            hangs, sent = False, 0
            while True:
                for readable in [key.fileobj for key, _ in ends.select()]:
                    data = readable.recv(65536)
                    if not data:
                        return
                    if readable is server and self._losing.is_set():
                        self.lost += 1
                        return
                    if (
                        readable is client
                        and not hangs
                        and self.hung < self._to_hang
                        and self._hang_at in data
                    ):
                        sent += 1
                        if sent > self._after:
                            self.hung += 1
                            hangs = True
                    if hangs:
                        continue
                    (server if readable is client else client).sendall(data)
