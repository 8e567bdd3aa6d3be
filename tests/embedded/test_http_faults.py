"""The proxy with which tests of object stores make faults, in front of a real S3 server."""

from __future__ import annotations

import time

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionClosedError

from support.http_faults import HttpProxy

pytestmark = pytest.mark.s3

ONE_ATTEMPT = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})


@pytest.fixture
def proxy(s3_server):
    with HttpProxy(s3_server.port) as running:
        yield running


@pytest.fixture
def bucket(s3_server, s3_bucket, proxy):
    """A bucket of the proxy's, with a client that tries once."""
    arguments = {**s3_server.client_arguments, "endpoint_url": proxy.endpoint}
    client = boto3.client("s3", config=ONE_ATTEMPT, **arguments)
    yield Bucket(client, s3_bucket)
    client.close()


class Bucket:
    def __init__(self, client, name):
        self.client, self.name = client, name

    def put(self, key, content, **more):
        self.client.put_object(Bucket=self.name, Key=key, Body=content, **more)

    def get(self, key):
        try:
            return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        except self.client.exceptions.NoSuchKey:
            return None


def test_what_no_fault_takes_passes_and_is_counted_by_kind(proxy, bucket):
    bucket.put("a b/ä+1", b"x" * 200_000)
    bucket.put("once", b"", IfNoneMatch="*")
    assert bucket.get("a b/ä+1") == b"x" * 200_000
    assert bucket.client.head_object(Bucket=bucket.name, Key="once")["ContentLength"] == 0
    assert bucket.client.list_objects_v2(Bucket=bucket.name)["KeyCount"] == 2
    upload = bucket.client.create_multipart_upload(Bucket=bucket.name, Key="m")["UploadId"]
    bucket.client.abort_multipart_upload(Bucket=bucket.name, Key="m", UploadId=upload)
    bucket.client.delete_object(Bucket=bucket.name, Key="once")
    assert proxy.counts() == {
        ("PUT", "put"): 1,
        ("PUT", "create"): 1,
        ("GET", "get"): 1,
        ("HEAD", "head"): 1,
        ("GET", "list"): 1,
        ("POST", "begin upload"): 1,
        ("DELETE", "abort upload"): 1,
        ("DELETE", "delete"): 1,
    }
    assert [request.key for request in proxy.requests(kind="put")] == ["a b/ä+1"]
    proxy.forget()
    assert proxy.count() == 0


def test_a_cut_request_does_not_reach_the_server(proxy, bucket):
    fault = proxy.cut("PUT", "^k$")
    with pytest.raises(ConnectionClosedError):
        bucket.put("k", b"1")
    assert bucket.get("k") is None
    bucket.put("k", b"2")
    assert bucket.get("k") == b"2"
    assert [request.body for request in fault.requests if b"1" in request.body]


def test_of_a_lost_answer_the_request_has_reached_the_server(proxy, bucket):
    proxy.lose("PUT", kind="create")
    with pytest.raises(ConnectionClosedError):
        bucket.put("k", b"1", IfNoneMatch="*")
    assert bucket.get("k") == b"1"


def test_a_create_that_is_passed_on_twice_is_told_that_it_lost_to_itself(proxy, bucket):
    proxy.twice("PUT")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        bucket.put("k", b"1", IfNoneMatch="*")
    assert bucket.get("k") == b"1"
    assert proxy.count("PUT") == 1


def test_a_delayed_request_arrives(proxy, bucket):
    proxy.delay("PUT", delay_s=0.3)
    begun = time.monotonic()
    bucket.put("k", b"1")
    assert time.monotonic() - begun >= 0.3
    assert bucket.get("k") == b"1"


def test_a_late_request_lands_after_the_one_that_repeated_it(proxy, bucket):
    late = proxy.late("PUT", "k")
    with pytest.raises(ConnectionClosedError):
        bucket.put("k", b"old")
    assert bucket.get("k") is None
    bucket.put("k", b"new")
    assert late.wait().key == "k"
    assert [answer.status for answer in late.release()] == [200]
    assert bucket.get("k") == b"old"


def test_a_late_create_loses_to_the_one_that_repeated_it(proxy, bucket):
    late = proxy.late("PUT", kind="create")
    with pytest.raises(ConnectionClosedError):
        bucket.put("k", b"old", IfNoneMatch="*")
    bucket.put("k", b"new", IfNoneMatch="*")
    assert [answer.status for answer in late.release()] == [412]
    assert bucket.get("k") == b"new"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "AccessDenied"),
        (409, "ConditionalRequestConflict"),
        (500, "InternalError"),
        (503, "SlowDown"),
    ],
)
def test_an_answer_of_its_own_stores_nothing(proxy, bucket, status, code):
    proxy.answer(status, "PUT")
    with pytest.raises(ClientError) as raised:
        bucket.put("k", b"1")
    assert raised.value.response["Error"]["Code"] == code
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert bucket.get("k") is None


def test_a_fault_happens_to_the_nth_request_that_fits_and_so_often(proxy, bucket):
    fault = proxy.answer(503, "PUT", "^in/", nth=2, count=2)
    told = []
    for key in ["out/1", "in/1", "out/2", "in/2", "in/3", "in/4"]:
        try:
            bucket.put(key, b"")
        except ClientError:  # noqa: PERF203
            told.append(key)
    assert told == [request.key for request in fault.requests] == ["in/2", "in/3"]


def test_a_server_that_is_away_ends_the_connection_and_a_fault_that_never_comes_is_told(proxy):
    with HttpProxy(1) as lonely:
        client = boto3.client(
            "s3",
            endpoint_url=lonely.endpoint,
            aws_access_key_id="a",
            aws_secret_access_key="b",
            region_name="us-east-1",
            config=ONE_ATTEMPT,
        )
        with pytest.raises(ConnectionClosedError):
            client.list_buckets()
        client.close()
    with pytest.raises(TimeoutError, match="0 of 1 requests"):
        proxy.cut().wait(timeout_s=0.01)
