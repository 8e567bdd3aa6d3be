"""The second S3 server of the tests, directly and behind the proxy of faults."""

from __future__ import annotations

import boto3
import pytest
from botocore.exceptions import ClientError

from support.http_faults import HttpProxy
from support.versitygw import VersityGateway

# The first use builds the server.
pytestmark = [pytest.mark.s3, pytest.mark.long, pytest.mark.timeout(1600)]


def test_it_checks_signatures_also_of_what_the_proxy_passes_on(second_s3_server):
    second_s3_server.create_bucket("signed")
    with HttpProxy(second_s3_server.port) as proxy:
        arguments = {**second_s3_server.client_arguments, "endpoint_url": proxy.endpoint}
        client = boto3.client("s3", **arguments)
        client.put_object(Bucket="signed", Key="a b", Body=b"1", IfNoneMatch="*")
        with pytest.raises(ClientError, match="PreconditionFailed"):
            client.put_object(Bucket="signed", Key="a b", Body=b"2", IfNoneMatch="*")
        assert client.get_object(Bucket="signed", Key="a b")["Body"].read() == b"1"
        assert proxy.count("PUT", "create") == 2
        wrong = boto3.client("s3", **{**arguments, "aws_secret_access_key": "wrong"})
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            wrong.list_buckets()
        client.close()
        wrong.close()


def test_its_objects_survive_a_kill_and_stop_removes_them():
    with VersityGateway() as server:
        server.create_bucket("kept")
        client = boto3.client("s3", **server.client_arguments)
        client.put_object(Bucket="kept", Key="k", Body=b"1")
        server.kill()
        server.restart()
        assert client.get_object(Bucket="kept", Key="k")["Body"].read() == b"1"
        client.close()
        folder = server.data_dir
    assert not folder.exists()
