"""A URL means one place to every client of a store, whatever characters it has: what stands in the
URL is the key. What not everybody reads alike is refused."""

from __future__ import annotations

import http.server
import io
import json
import threading
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import boto3
import pytest

from commit_log.building import start
from onceforall.commit_log import binding
from onceforall.commit_log.stores.local import LocalStore
from onceforall.commit_log.stores.locations import remote_url
from onceforall.commit_log.stores.objects import ObjectClient
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.common.object_stores import opened
from onceforall.errors import CheckpointMismatchError, OptionError
from onceforall.sinks.files.places.azure import azure_target
from onceforall.sinks.files.places.gcs import gcs_target
from onceforall.sinks.files.places.hdfs import hdfs_root
from onceforall.sinks.files.places.s3 import s3_root
from onceforall.sinks.files.places.s3.bucket import Bucket
from onceforall.spark.stores import Stores
from onceforall.task.row_places.objects import ObjectRows
from support.odd_names import ODD_NAMES


@pytest.fixture
def settings(s3_server):
    return {
        "endpoint": s3_server.endpoint,
        "region": s3_server.region,
        "access_key_id": s3_server.access_key,
        "secret_access_key": s3_server.secret_key,
        "virtual_hosted_style_request": "false",
    }


@pytest.mark.s3
def test_on_s3_a_log_kept_rows_and_files_lie_where_the_url_says(s3_server, s3_bucket, settings):
    for name in ODD_NAMES:
        url = f"s3a://{s3_bucket}/{name}/x"
        client = ObjectClient(url, settings)
        assert client.create("log/k", b"1") == "created"
        ObjectRows(url, settings).put("rows", io.BytesIO(b"2"), 1)
        root = s3_root(url)
        Bucket(root, settings).put_new(root / "file", b"3")
        assert client.list("") == ["file", "log/", "rows"]
        assert client.read("rows") == b"2"
    boto = boto3.client("s3", **s3_server.client_arguments)
    found = [each["Key"] for each in boto.list_objects_v2(Bucket=s3_bucket)["Contents"]]
    assert sorted(found) == sorted(
        f"{name}/x/{key}" for name in ODD_NAMES for key in ("log/k", "rows", "file")
    )


@pytest.fixture
def recorder():
    """A server that takes everything, and its record of the paths of requests."""
    paths = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self):
            self.rfile.read(int(self.headers["content-length"]))
            paths.append(urlsplit(self.path).path)
            self.send_response(201)
            self.send_header("etag", '"1"')
            self.send_header("x-goog-generation", "1")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", paths
        server.shutdown()


GOOGLE = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
AZURE = {"account_name": "acc", "account_key": "aHVzaA=="}


@pytest.mark.parametrize(
    ("url", "more"),
    [
        ("az://lake", AZURE),
        ("abfss://lake@acc.dfs.core.windows.net", AZURE),
        ("gs://lake", GOOGLE),
    ],
    ids=["az", "abfss", "gs"],
)
def test_on_azure_and_google_a_log_lies_where_the_url_says(recorder, url, more, monkeypatch):
    endpoint, paths = recorder
    if url.startswith("gs"):
        # The way to another address that obstore has; the variable allows plain HTTP.
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        key = {**more, "gcs_base_url": endpoint, "disable_oauth": True}
        more = {"service_account_key": json.dumps(key)}
    else:
        more = {**more, "endpoint": endpoint}
    for name in ODD_NAMES:
        ObjectClient(f"{url}/{name}/x", more).replace("k", b"1")
    assert len(paths) == len(ODD_NAMES)
    assert [unquote(each).partition("lake/")[2] for each in paths] == [
        f"{name}/x/k" for name in ODD_NAMES
    ]


READERS = {
    "s3": (s3_root, "s3a://lake/x"),
    "gcs": (lambda url: gcs_target(url, None).root, "gs://lake/x"),
    "azure": (
        lambda url: azure_target(url, None).root,
        "abfss://lake@acc.dfs.core.windows.net/x",
    ),
    "hdfs": (hdfs_root, "hdfs://nn/x"),
    "checkpoint": (lambda url: remote_url(url, what="The checkpoint"), "s3a://lake/x"),
    "log": (binding.log_location, "hdfs://nn/x"),
    "local log": (binding.log_location, "file:/x"),
    "path": (lambda path: remote_url(path, "hdfs://nn", what="The checkpoint"), "/x"),
    "obstore": (lambda url: opened(url, {}, retries=0), "s3a://lake/x"),
}


@pytest.mark.parametrize("end", ["?", "#", "?a", "#a", "\ty", "\ny", "\ry"], ids=range(7))
@pytest.mark.parametrize("reader", READERS)
def test_what_a_parser_of_urls_would_drop_is_refused(reader, end):
    read, url = READERS[reader]
    assert read(url)
    for text in (url + end, url.removesuffix("x") + end + "/x"):
        with pytest.raises(OptionError):
            read(text)


def test_the_character_that_is_refused_is_named():
    with pytest.raises(OptionError, match=r"The log 's3a://b/a\\tb' has the character U\+0009"):
        remote_url("s3a://b/a\tb", what="The log")
    with pytest.raises(OptionError, match=r"has a \? or a # in it") as refused:
        remote_url("s3a://b/a?sig=hush", what="The log")
    assert "hush" not in str(refused.value)


@pytest.mark.s3
def test_a_log_that_was_written_where_the_url_was_unquoted_is_not_forgotten(
    tmp_path, s3_bucket, settings
):
    """Until this was mended, obstore wrote it there. A start says that it isn't where it should be,
    and follows it by the name of the place where it is."""

    def opening(location):
        return RemoteStore(ObjectClient(location, settings))

    home = LocalStore(tmp_path / "onceforall")
    written, named = f"s3a://{s3_bucket}/logs x", f"s3a://{s3_bucket}/logs%20x"
    # As it was: the pointer names one place, and the log lies in the other.
    to_old_place = {named: written}.get
    bound = binding.bind(
        home, "/c", named, query_id=None, open_store=lambda at: opening(to_old_place(at, at))
    )
    start(bound.store, keep_ends=True)
    with pytest.raises(CheckpointMismatchError, match="lies in .*logs%20x, but there is none"):
        binding.find(home, open_store=opening)
    with pytest.raises(CheckpointMismatchError, match="there is none"):
        binding.bind(home, "/c", named, query_id=None, open_store=opening)
    found = binding.find(home, written, adopt=True, open_store=opening)
    assert found.location == written
    assert found.id == bound.id


@pytest.mark.parametrize("endpoint", ["localhost:1", "http:localhost", "http://[x"])
@pytest.mark.parametrize(
    ("url", "own", "foreign"),
    [
        ("s3a://lake/x", "AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT"),
        ("az://lake/x", "AZURE_STORAGE_ENDPOINT", "AWS_ENDPOINT_URL"),
        ("abfss://c@a.dfs.core.windows.net/x", "AZURE_ENDPOINT", "AWS_ENDPOINT"),
    ],
)
def test_an_endpoint_without_a_scheme_is_refused_wherever_it_is_said(
    monkeypatch, endpoint, url, own, foreign
):
    """For some of them obstore panics: the error is none that anybody catches."""
    settings = {"account_name": "a", "account_key": "a2V5"} if "AZURE" in own else {}
    for name in (own.lower(), "endpoint"):
        with pytest.raises(OptionError, match="must begin with http"):
            opened(url, {**settings, name: endpoint}, retries=0)
    monkeypatch.setenv(foreign, endpoint)
    opened(url, settings, retries=0)
    monkeypatch.setenv(own, endpoint)
    with pytest.raises(OptionError, match=f"{own}.* must begin with http"):
        opened(url, settings, retries=0)


@pytest.mark.parametrize("name", ["allow_http", "proxy_url", "timeout"])
def test_a_setting_of_the_http_client_is_refused_by_its_name(name):
    """obstore panics: the error is none that anybody catches."""
    with pytest.raises(
        OptionError, match=rf"can't be opened with these settings \({name}\)"
    ) as told:
        opened("s3a://lake/x", {name: "hunter2"}, retries=0)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize("value", [12345678, "", " ", "hunter2\udce9x", b"hunter2", None])
def test_a_setting_of_a_store_is_never_shown(value):
    with pytest.raises(OptionError, match=r"settings\['account_key'\] is no text") as raised:
        Stores(None, {"account_key": value})
    assert "hunter2" not in str(raised.value)
    assert "12345678" not in str(raised.value)


def test_what_names_no_host_is_where_hadoop_says(monkeypatch):
    def launched(stores):
        stores._configuration = {"fs.defaultFS": "hdfs://ns"}

    monkeypatch.setattr(Stores, "_launch", launched)
    monkeypatch.setattr(Stores, "client", lambda _, url: SimpleNamespace(url=url))
    assert Stores().log_location("hdfs:///logs/ads") == "hdfs://ns/logs/ads"
    assert str(Stores().checkpoint("hdfs:/checkpoints/ads")) == "hdfs://ns/checkpoints/ads"
    assert Stores().log_location("hdfs://nn:8020/logs") == "hdfs://nn:8020/logs"
    assert Stores().log_location("/logs") == "file:///logs"
