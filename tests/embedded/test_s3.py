from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading

import psutil
import pytest

from onceforall.embedded import EmbeddedS3, moto
from onceforall.embedded.network import can_listen
from onceforall.errors import EmbeddedServerError, MissingExtraError, OptionError
from support.waiting import until

pytestmark = pytest.mark.s3


@pytest.fixture
def client(s3_server):
    import boto3

    made = boto3.client("s3", **s3_server.client_arguments)
    yield made
    made.close()


def keys_of(client, bucket):
    return [entry["Key"] for entry in client.list_objects_v2(Bucket=bucket).get("Contents", [])]


def test_objects_come_back_as_they_were_stored(client, s3_bucket):
    client.put_object(Bucket=s3_bucket, Key="a/b", Body=b"one")
    assert client.get_object(Bucket=s3_bucket, Key="a/b")["Body"].read() == b"one"
    assert keys_of(client, s3_bucket) == ["a/b"]


def test_a_bucket_that_exists_keeps_its_objects(s3_server, client, s3_bucket):
    client.put_object(Bucket=s3_bucket, Key="kept", Body=b"")
    s3_server.create_bucket(s3_bucket)
    assert keys_of(client, s3_bucket) == ["kept"]


def test_of_many_creators_of_one_key_one_wins(s3_server, client, s3_bucket):
    import obstore
    from obstore.exceptions import AlreadyExistsError
    from obstore.store import S3Store

    store = S3Store(
        s3_bucket,
        endpoint=s3_server.endpoint,
        access_key_id=s3_server.access_key,
        secret_access_key=s3_server.secret_key,
        region=s3_server.region,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    for round_number in range(5):
        key, won, start = f"claim-{round_number}", [], threading.Barrier(8)

        def create(name, key=key, won=won, start=start):
            start.wait()
            try:
                obstore.put(store, key, name, mode="create")
            except AlreadyExistsError:
                return
            won.append(name)

        threads = [threading.Thread(target=create, args=(b"%d" % n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert client.get_object(Bucket=s3_bucket, Key=key)["Body"].read() == won[0]


def test_an_upload_in_parts_is_completed_by_another_client(s3_server, client, s3_bucket):
    import boto3

    upload = client.create_multipart_upload(Bucket=s3_bucket, Key="whole")["UploadId"]
    part = {"Bucket": s3_bucket, "Key": "whole", "UploadId": upload, "PartNumber": 1}
    tag = client.upload_part(**part, Body=b"x" * 10)["ETag"]
    assert keys_of(client, s3_bucket) == []
    other = boto3.client("s3", **s3_server.client_arguments)
    other.complete_multipart_upload(
        Bucket=s3_bucket,
        Key="whole",
        UploadId=upload,
        MultipartUpload={"Parts": [{"ETag": tag, "PartNumber": 1}]},
    )
    other.close()
    assert client.head_object(Bucket=s3_bucket, Key="whole")["ContentLength"] == 10


def test_it_listens_on_loopback_alone(s3_server):
    listening = [
        c.laddr
        for c in psutil.Process(s3_server.pid).net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    assert [(address.ip, address.port) for address in listening] == [("127.0.0.1", s3_server.port)]


def test_the_settings_for_spark_are_for_all_buckets_or_for_one(s3_server):
    for_all, for_one = s3_server.spark_settings(), s3_server.spark_settings("mine")
    assert for_all["spark.hadoop.fs.s3a.endpoint"] == s3_server.endpoint
    assert for_one == {
        name.replace(".s3a.", ".s3a.bucket.mine."): value for name, value in for_all.items()
    }


@pytest.mark.parametrize("name", ["", "A", "ab", "with_underscore", "a/b", None])
def test_what_is_no_name_of_a_bucket_is_named(s3_server, name):
    with pytest.raises(OptionError, match="is no name of a bucket"):
        s3_server.create_bucket(name)


def test_stop_leaves_no_process_and_no_folder_and_the_objects_end_with_a_kill():
    import boto3

    with EmbeddedS3() as server:
        endpoint, pid, folder, port = server.endpoint, server.pid, server.data_dir, server.port
        server.create_bucket("gone")
        server.kill()
        with pytest.raises(EmbeddedServerError, match=r"ended with status -9.*restart\(\)"):
            server.create_bucket("gone")
        server.restart()
        assert server.endpoint == endpoint
        client = boto3.client("s3", **server.client_arguments)
        assert client.list_buckets()["Buckets"] == []
        client.close()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    assert can_listen(port)
    server.stop()


def test_it_ends_when_its_parent_is_killed():
    program = (
        "import time\nfrom onceforall.embedded import EmbeddedS3\nserver = EmbeddedS3()\n"
        "server.start()\nprint(server.pid, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    server = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not server.is_running(), 15, "the server ends")
    parent.stdout.close()


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(
            EmbeddedServerError, match=r"Port \d+ of 127.0.0.1 is taken.*choose another"
        ):
            EmbeddedS3(port=taken.getsockname()[1]).start()


def test_before_its_start_there_is_no_endpoint():
    with pytest.raises(EmbeddedServerError, match=r"S3 server has no port before.*start\(\)"):
        _ = EmbeddedS3().endpoint


def test_without_moto_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(moto, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"moto is not installed.*onceforall\[demo\]"):
        EmbeddedS3().start()


def test_a_server_that_ends_at_its_start_is_shown_with_its_log(monkeypatch):
    monkeypatch.setattr(moto.sys, "executable", os.path.realpath("/bin/false"))
    with pytest.raises(EmbeddedServerError, match="ended with status 1 before it answered"):
        EmbeddedS3().start()


def test_an_upload_that_asks_whether_it_may_begin_is_told_once(s3_server):
    """Netty's client, by which Spark uploads state, takes a second "100 Continue" for the answer."""
    s3_server.create_bucket("asked-once")
    with socket.create_connection(("127.0.0.1", s3_server.port), 20) as connection:
        head = "PUT /asked-once/key HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n"
        connection.sendall(f"{head}Expect: 100-continue\r\nConnection: close\r\n\r\n".encode())
        told = connection.recv(4096)
        assert told.startswith(b"HTTP/1.1 100 Continue")
        connection.sendall(b"data")
        told += b"".join(iter(lambda: connection.recv(4096), b""))
    assert re.findall(rb"HTTP/1.1 (\d+)", told) == [b"100", b"200"]
