"""An HTTP proxy in front of a server of S3, Azure or Google Cloud Storage, with which a test loses
requests and answers, repeats requests, makes them late, and answers them itself.

Clients are sent through it by their endpoint::

    with HttpProxy(server.port) as proxy:
        late = proxy.late("PUT", r"commits/7$")     # the client is told: connection closed
        ...                                         # it tries again, and comes to some decision
        late.wait()
        late.release()                              # only now does the server get the first one
        assert proxy.count("PUT", "create") == 2

It takes each request in whole before anything happens to it, and passes it on as it came, the Host
included, which S3's signatures cover. A thread serves each connection; connections are kept alive.
"""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import re
import socket
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, unquote, urlsplit

from onceforall.embedded.network import HOST

_DEADLINE_S = 20.0
_OF_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "expect"}
_CODES = {
    400: "InvalidRequest",
    403: "AccessDenied",
    404: "NoSuchUpload",
    409: "ConditionalRequestConflict",
    500: "InternalError",
    503: "SlowDown",
}
_AZURE_CODES = {
    403: "AuthorizationPermissionMismatch",
    404: "BlobNotFound",
    409: "BlobAlreadyExists",
    500: "InternalError",
    503: "ServerBusy",
}
"""What Azure says, in a header."""
_GOOGLE = re.compile(r"^/(?:(upload|download)/)?storage/v1/b/[^/]+(/o)?(?:/([^/?]*)(/compose)?)?$")
"""The JSON API: of an upload, an object's metadata or content, the list of all, or the bucket."""


@dataclass(frozen=True)
class Request:
    """One request of a client; ``target`` is the path with its query, as it was sent."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def key(self):
        """The object's key; empty for a request about a bucket. Of Google's, what a list is of."""
        if self._google is not None:
            return self._google[1]
        return unquote(urlsplit(self.target).path).lstrip("/").partition("/")[2]

    def header(self, name):
        """A header's value, or None."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    @property
    def kind(self):
        """What it does: ``put``, ``create`` (only if there is none), ``replace`` (only if
        unchanged), ``copy``, ``get``, ``head``, ``list``, ``delete``, ``begin upload``, ``part``,
        ``complete upload``, ``abort upload``, ``list parts``, or ``other``. On Azure an upload is
        aborted as it is completed; Google's have ``compose`` instead of all these."""
        if self._google is not None:
            return self._google[0]
        query = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        if "comp" in query:
            of_azure = {("PUT", "block"): "part", ("PUT", "blocklist"): "complete upload"}
            of_azure |= {("GET", "blocklist"): "list parts", ("GET", "list"): "list"}
            return of_azure.get((self.method, query["comp"][0]), "other")
        if "uploadId" in query:
            of_upload = {"PUT": "part", "POST": "complete upload", "DELETE": "abort upload"}
            kind = of_upload.get(self.method, "list parts")
        elif self.method == "POST":
            kind = (
                "begin upload" if "uploads" in query else "delete" if "delete" in query else "other"
            )
        elif not self.key:
            kind = "list" if self.method == "GET" else "other"
        elif self.method != "PUT":
            kind = self.method.lower()
        elif self.header("x-amz-copy-source"):
            kind = "copy"
        elif self.header("if-none-match") == "*":
            kind = "create"
        else:
            kind = "replace" if self.header("if-match") else "put"
        return kind

    @property
    def _google(self):
        """Kind and key of a request to Google's JSON API; None for others."""
        parts = urlsplit(self.target)
        found = _GOOGLE.match(parts.path)
        if found is None:
            return None
        way, of_objects, name, compose = found.groups()
        query = parse_qs(parts.query)
        if of_objects is None:
            return "other", ""
        is_new = query.get("ifGenerationMatch") == ["0"]
        if way == "upload":
            # The first part of a multipart body says which, or the query.
            named = re.search(rb'"name": *("(?:[^"\\]|\\.)*")', self.body)
            key = json.loads(named[1]) if named else query.get("name", [""])[0]
            return "create" if is_new else "put", key
        if name is None:
            return "list", query.get("prefix", [""])[0]
        kinds = {"POST": "compose" if compose else "other", "DELETE": "delete", "GET": "head"}
        return "get" if way else kinds.get(self.method, "other"), unquote(name)


@dataclass(frozen=True)
class Answer:
    """The server's answer to a request."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)


class Fault:
    """Something that happens to requests; made by ``HttpProxy``. Safe to use from any thread."""

    def __init__(self, does, method, key, kind, nth, count, value):
        self.does, self.value = does, value
        self._method, self._key, self._kind = method, re.compile(key), kind
        self._before, self._left = nth - 1, count
        self._change = threading.Condition()
        self._released = threading.Event()
        self._dropped = False
        self._requests: list[Request] = []
        self._answers: list[Answer | None] = []

    @property
    def requests(self):
        """The requests that it has happened to, in order."""
        with self._change:
            return tuple(self._requests)

    def takes(self, request):
        """Whether it happens to this request; it is then counted (called by the proxy)."""
        if self._method not in {None, request.method} or self._kind not in {None, request.kind}:
            return False
        if not self._key.search(request.key):
            return False
        with self._change:
            if self._before:
                self._before -= 1
                return False
            if self._left <= 0:
                return False
            self._left -= 1
            self._requests.append(request)
            self._change.notify_all()
            return True

    def wait(self, count=1, timeout_s=_DEADLINE_S):
        """Wait until it has happened to so many requests, and return the last of these."""
        with self._change:
            if not self._change.wait_for(lambda: len(self._requests) >= count, timeout_s):
                raise TimeoutError(
                    f"{self.does!r} has happened to {len(self._requests)} of {count} requests "
                    f"after {timeout_s} s. Check its method, key and kind, and the client's "
                    "endpoint."
                )
            return self._requests[count - 1]

    def release(self, timeout_s=_DEADLINE_S):
        """Let the late requests go to the server now, and return its answers; None where it gave
        none. It happens to no further request."""
        with self._change:
            self._left = 0
            self._released.set()
            if not self._change.wait_for(
                lambda: len(self._answers) >= len(self._requests), timeout_s
            ):
                raise TimeoutError(f"the server has not answered within {timeout_s} s")
            return list(self._answers)

    def end(self):
        """It happens to no further request."""
        with self._change:
            self._left = 0

    def drop(self):
        """What is late and not released never reaches the server (called by the proxy)."""
        if not self._released.is_set():
            self._dropped = True
            self._released.set()

    def deliver_late(self, forward):
        """Pass a request on once it is released (called by the proxy, in a thread)."""
        self._released.wait()
        if self._dropped:
            return
        answer = forward()
        with self._change:
            self._answers.append(answer)
            self._change.notify_all()


class HttpProxy:
    """A proxy on a free port of 127.0.0.1, from entry to exit.

    Each fault takes the method (None: any), a regular expression that is found in the key, and
    ``kind`` (see ``Request.kind``); it happens to ``count`` requests from the ``nth`` on that fit.
    Of several that fit, the one planned first happens.
    """

    def __init__(self, server_port):
        self._server_port = server_port
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._requests: list[Request] = []
        self._failure: BaseException | None = None
        self._stopping = threading.Event()

    @property
    def port(self):
        return self._listener.server_address[1]

    @property
    def endpoint(self):
        """``http://127.0.0.1:port``."""
        return f"http://{HOST}:{self.port}"

    def __enter__(self):
        self._listener = _Listener((HOST, 0), _Handler)
        self._listener.proxy = self
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        self._listener.shutdown()
        self._listener.end_connections()
        self._listener.server_close()
        self._thread.join()
        for fault in self._faults:
            fault.drop()
        if self._failure is not None:
            raise self._failure

    # --- faults -----------------------------------------------------------------------------------

    def cut(self, method=None, key="", **which):
        """End the connection; the server doesn't get the request."""
        return self._plan("cut", method, key, **which)

    def lose(self, method=None, key="", **which):
        """Pass the request on, and end the connection when the server has answered."""
        return self._plan("lose", method, key, **which)

    def twice(self, method=None, key="", **which):
        """Pass the request on twice; the client gets the second answer."""
        return self._plan("twice", method, key, **which)

    def delay(self, method=None, key="", *, delay_s, **which):
        """Wait before the request is passed on."""
        return self._plan("delay", method, key, value=delay_s, **which)

    def late(self, method=None, key="", **which):
        """End the connection now, and pass the request on when ``Fault.release`` is called."""
        return self._plan("late", method, key, **which)

    def answer(self, status, method=None, key="", **which):
        """Answer with 400 (InvalidRequest), 403, 404 (NoSuchUpload, on Azure BlobNotFound), 409, 500 or 503; the server
        doesn't get the request."""
        assert status in _CODES
        return self._plan("answer", method, key, value=status, **which)

    def without(self, header, method=None, key="", *, count=1_000_000, **which):
        """Pass the request on without a header, named in lower case."""
        return self._plan("without", method, key, value=header, count=count, **which)

    def bare_404(self, method=None, key="", **which):
        """Answer as a gateway would that doesn't know S3."""
        return self._plan("bare 404", method, key, **which)

    def say(self, body, method=None, key="", **which):
        """Answer 200 with this body; the server doesn't get the request."""
        return self._plan("say", method, key, value=body, **which)

    def _plan(self, does, method, key, *, kind=None, nth=1, count=1, value=None):
        fault = Fault(does, method, key, kind, nth, count, value)
        with self._lock:
            self._faults.append(fault)
        return fault

    # --- what came --------------------------------------------------------------------------------

    def requests(self, method=None, kind=None, key=""):
        """The requests that came from clients, in order."""
        with self._lock:
            return [
                request
                for request in self._requests
                if method in {None, request.method}
                and kind in {None, request.kind}
                and re.search(key, request.key)
            ]

    def count(self, method=None, kind=None, key=""):
        """How many requests came from clients."""
        return len(self.requests(method, kind, key))

    def counts(self):
        """How many requests came, by (method, kind)."""
        return Counter((request.method, request.kind) for request in self.requests())

    def forget(self):
        """Count from nothing again; faults stay."""
        with self._lock:
            self._requests.clear()

    # --- in the threads of the connections --------------------------------------------------------

    def serve(self, request):
        """Return the answer for the client; None: its connection is to be ended."""
        with self._lock:
            self._requests.append(request)
            fault = next((fault for fault in self._faults if fault.takes(request)), None)
        does = None if fault is None else fault.does
        if does == "cut":
            return None
        if does == "late":
            threading.Thread(
                target=fault.deliver_late, args=(lambda: self._forward(request),), daemon=True
            ).start()
            return None
        if does == "answer":
            return _own_answer(fault.value, request)
        if does == "bare 404":
            return Answer(
                404, "Not Found", (("Content-Type", "text/plain"),), b"404 page not found"
            )
        if does == "say":
            return Answer(200, "OK", (("Content-Type", "application/xml"),), fault.value)
        if does == "without":
            left = tuple(h for h in request.headers if h[0].lower() != fault.value)
            request = replace(request, headers=left)
        if does == "delay":
            self._stopping.wait(fault.value)
        if does == "twice":
            self._forward(request)
        answer = self._forward(request)
        return None if does == "lose" else answer

    def _forward(self, request):
        connection = http.client.HTTPConnection(HOST, self._server_port, timeout=_DEADLINE_S)
        try:
            connection.putrequest(
                request.method, request.target, skip_host=True, skip_accept_encoding=True
            )
            names = {name.lower() for name, _ in request.headers}
            for name, value in request.headers:
                if name.lower() not in _OF_A_CONNECTION:
                    connection.putheader(name, value)
            if request.body and "content-length" not in names:
                connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body or None)
            got = connection.getresponse()
            return Answer(got.status, got.reason, tuple(got.getheaders()), got.read())
        except (OSError, http.client.HTTPException):
            return None  # the server is away
        finally:
            connection.close()

    def failed(self, error):
        self._failure = self._failure or error


def _own_answer(status, request):
    code = _CODES[status]
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>by the test</Message></Error>'
    headers = (("Content-Type", "application/xml"),)
    if _GOOGLE.match(urlsplit(request.target).path):
        headers = (("Content-Type", "application/json"),)
        body = json.dumps({"error": {"code": status, "message": "by the test"}})
    if any(name.lower() == "x-ms-version" for name, _ in request.headers):
        headers, body = (("x-ms-error-code", _AZURE_CODES[status]),), ""
    return Answer(status, code, headers, body.encode())


class _Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, *arguments):
        self._open = set()
        super().__init__(*arguments)

    def process_request(self, request, client_address):
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self._open.discard(request)
        super().shutdown_request(request)

    def end_connections(self):
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self.proxy.failed(error)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def handle_expect_100(self):
        going_on = super().handle_expect_100()
        self.wfile.flush()
        return going_on

    def _serve(self):
        body = self._body()
        headers = tuple(self.headers.items())
        answer = self.server.proxy.serve(Request(self.command, self.path, headers, body))
        if answer is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status, answer.reason)
        names = set()
        for name, value in answer.headers:
            if name.lower() not in _OF_A_CONNECTION:
                names.add(name.lower())
                self.send_header(name, value)
        if "content-length" not in names and answer.status not in {204, 304}:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)
        self.wfile.flush()

    def _body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            size = int(self.headers.get("Content-Length", 0))
            body = self.rfile.read(size)
            if len(body) < size:
                raise ConnectionError("the client ended within its request")
            return body
        parts = []
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815
