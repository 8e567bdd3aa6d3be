"""pyarrow reads from the address that the sink writes to, or says that it can't: a listener on
loopback tells what it was asked."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from onceforall.errors import UnsupportedQueryError
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.reading.sources import source_of

KEYS = {"access_key_id": "key", "secret_access_key": "secret"}
FILE = DataFile("x", 1, 10, {})
_REGION = re.compile(r"Credential=[^/]+/\d+/([^/]+)/")

_ELSEWHERE = (
    b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>no</Message>"
    b"<Region>eu-central-1</Region></Error>"
)


class Listener(BaseHTTPRequestHandler):
    """A bucket of eu-central-1 with files of ten bytes; to a container it says 404."""

    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_GET(self):
        self.asked.append(self.path)
        signed = _REGION.search(self.headers.get("Authorization", ""))
        is_here = signed is not None and signed[1] == "eu-central-1"
        self.send_response(200 if is_here else 400 if signed else 404)
        self.send_header("x-amz-bucket-region", "eu-central-1")
        self.send_header("x-ms-error-code", "BlobNotFound")
        content = b"x" * 10 if is_here else _ELSEWHERE
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815  the server's word

    def log_message(self, *_):
        """Nothing is printed."""


@pytest.fixture
def listener():
    handler = type("Handler", (Listener,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port, handler.asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def no_region(monkeypatch, tmp_path):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def opened(source):
    path, files = source.in_arrow(FILE)
    return files.open_input_file(path)


def test_pyarrow_is_told_the_region_that_boto3_finds(listener):
    port, _ = listener
    source = source_of("s3a://lake/ads", {"endpoint": f"http://127.0.0.1:{port}", **KEYS})
    assert source.tree.read(source.root / "x") == b"x" * 10
    assert opened(source).read() == b"x" * 10


@pytest.mark.parametrize("path", ["/storage/v1/s3", "/x/"])
def test_an_endpoint_of_s3_with_a_path_is_refused(path):
    endpoint = f"https://example.org{path}"
    source = source_of("s3a://lake/ads", {"endpoint": endpoint, "region": "r", **KEYS})
    with pytest.raises(UnsupportedQueryError, match=f"from {endpoint}: .*Read with to_spark"):
        source.in_arrow(FILE)


@pytest.mark.parametrize(
    ("account", "host", "path"),
    [("acct", "127.0.0.1", "/acct"), ("localhost", "localhost", "/localhost")],
)
def test_pyarrow_asks_for_the_account_where_azures_client_does(listener, account, host, path):
    port, asked = listener
    source = source_of(
        "az://c/f",
        {
            "account_name": account,
            "account_key": "aGVsbG8=",
            "endpoint": f"http://{host}:{port}{path}",
        },
    )
    assert source.tree.size(source.root / "x") is None
    with pytest.raises(FileNotFoundError):
        opened(source)
    assert [each.partition("?")[0] for each in asked][:2] == [f"{path}/c/f/x"] * 2


@pytest.mark.parametrize("endpoint", ["https://lake.example.org", "https://acct.example.org/x"])
def test_an_endpoint_of_azure_that_pyarrow_cannot_say_is_refused(endpoint):
    source = source_of(
        "az://c/f", {"account_name": "acct", "account_key": "aGVsbG8=", "endpoint": endpoint}
    )
    with pytest.raises(UnsupportedQueryError, match=f"from {endpoint}: .*Read with to_spark"):
        source.in_arrow(FILE)
