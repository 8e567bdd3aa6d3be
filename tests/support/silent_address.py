"""An address at which a connection is neither taken nor refused, as behind a firewall that drops
packets."""

import socket
from contextlib import ExitStack, contextmanager, suppress


@contextmanager
def silent_address():
    """Yield host and port of a listener whose queue is full, so that the system answers nothing."""
    with socket.socket() as full, ExitStack() as held:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        yield full.getsockname()
