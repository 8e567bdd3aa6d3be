"""The program of the embedded S3 server: moto's server on one port of 127.0.0.1, until SIGTERM.

It is run as a process of its own (``python -m onceforall.embedded.s3_program PORT``). moto answers
each request in a thread, and looks whether a key exists before it stores one. Two conditional
creates at once could both win there, which S3 excludes. So this program reads a request's whole
body first and then lets one request at a time into moto.
"""

from __future__ import annotations

import io
import logging
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from onceforall.embedded.network import HOST

if TYPE_CHECKING:
    from collections.abc import Callable


class OneAtATime:
    """A WSGI application in front of another one, which answers one request after the other."""

    def __init__(self, application: Callable[..., Any]) -> None:
        self._application = application
        self._turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        """Answer one request."""
        # Outside the lock: a client that stops in the middle of its body stops nobody else.
        size = environ.get("CONTENT_LENGTH")
        stream = environ["wsgi.input"]
        if environ.get("wsgi.input_terminated"):
            body = stream.read()
        else:
            body = stream.read(int(size)) if size else b""
        if size and len(body) < int(size):
            raise ConnectionError("The client ended the connection within its request.")
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        with self._turn:
            answer = self._application(environ, start_response)
            try:
                return list(answer)
            finally:
                if hasattr(answer, "close"):
                    answer.close()


def main(port: int) -> None:
    """Serve until SIGTERM."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    class ContinuesOnce(MotoRequestHandler):
        def handle_expect_100(self) -> bool:
            # Werkzeug says it, too, and the second "100 Continue" would be taken for the answer.
            return True

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    application = OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server(HOST, port, application, threaded=True, request_handler=ContinuesOnce)
    # An ordinary end would wait for the threads of connections that are still open.
    server.daemon_threads = True  # type: ignore[attr-defined]
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
