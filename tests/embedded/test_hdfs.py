from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest

from onceforall.embedded import EmbeddedHdfs
from onceforall.embedded.network import can_listen
from onceforall.errors import EmbeddedServerError, OptionError
from support.waiting import until

pytestmark = pytest.mark.hdfs


def put(server, path, content):
    """Create a file through WebHDFS, which sends the client on to the DataNode."""
    address = f"{server.web_url}/webhdfs/v1{path}?op=CREATE&noredirect=true&user.name=root"
    with urllib.request.urlopen(urllib.request.Request(address, method="PUT")) as answer:
        location = json.loads(answer.read())["Location"]
    request = urllib.request.Request(location, data=content, method="PUT")
    request.add_header("Content-Type", "application/octet-stream")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


def get(server, path):
    with urllib.request.urlopen(f"{server.web_url}/webhdfs/v1{path}?op=OPEN") as answer:
        return answer.read()


@pytest.mark.long
def test_it_keeps_its_content_over_a_kill_a_restart_and_a_stop(tmp_path):
    folder = tmp_path / "deeper" / "hdfs"
    with EmbeddedHdfs(data_dir=folder) as server:
        put(server, "/a/one", b"one")
        url = server.url
        server.kill()
        with pytest.raises(urllib.error.URLError):
            get(server, "/a/one")
        server.restart()
        assert server.url == url
        assert get(server, "/a/one") == b"one"
        put(server, "/a/two", b"two")
        pid, port = server.pid, server.port
    assert not psutil.pid_exists(pid)
    assert can_listen(port)
    with EmbeddedHdfs(data_dir=folder) as server:
        assert (get(server, "/a/one"), get(server, "/a/two")) == (b"one", b"two")


@pytest.mark.long
def test_it_listens_on_loopback_alone(hdfs_server):
    listening = [
        c.laddr
        for c in psutil.Process(hdfs_server.pid).net_connections("inet")
        if c.status == psutil.CONN_LISTEN
    ]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert hdfs_server.port in {address.port for address in listening}


@pytest.mark.long
def test_it_ends_when_its_parent_is_killed_and_a_stop_removes_its_temporary_folder(tmp_path):
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom onceforall.embedded import EmbeddedHdfs\n"
        "server = EmbeddedHdfs(data_dir=Path(sys.argv[1]))\nserver.start()\n"
        "print(server.pid, flush=True)\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "hdfs")], stdout=subprocess.PIPE, text=True
    )
    server = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not server.is_running(), 15, "the server ends")
    parent.stdout.close()


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = EmbeddedHdfs(port=taken.getsockname()[1])
        with pytest.raises(
            EmbeddedServerError, match=r"Port \d+ of 127.0.0.1 is taken.*choose another"
        ):
            server.start()
    assert not server.is_running
    with pytest.raises(OptionError, match="port=-1"):
        EmbeddedHdfs(port=-1)


@pytest.mark.long
def test_a_folder_that_is_no_hdfs_is_shown_with_the_log_and_nothing_is_left(tmp_path):
    (tmp_path / "formatted").write_text("")
    server = EmbeddedHdfs(data_dir=tmp_path)
    with pytest.raises(EmbeddedServerError, match=r"(?s)ended with status 1 before.*data folder"):
        server.start()
    assert not server.is_running


def test_before_its_start_there_is_no_url():
    for ask in (lambda: EmbeddedHdfs().url, lambda: EmbeddedHdfs().web_url):
        with pytest.raises(EmbeddedServerError, match=r"HDFS has no port before.*start\(\)"):
            ask()


# A process of its own: its settings are for this server alone.
USE_BY_SPARK = """
import json, sys
from support.small_spark import small_spark

folder, settings = sys.argv[1], json.loads(sys.argv[2])
spark = small_spark("local[1]", settings=settings).getOrCreate()
spark.range(100).write.parquet(folder + "/numbers")
print(spark.read.parquet(folder + "/numbers").selectExpr("sum(id)").first()[0])
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.long
def test_the_installed_spark_uses_it_without_further_jars(hdfs_server, hdfs_folder, tmp_path):
    spark = subprocess.run(
        [sys.executable, "-c", USE_BY_SPARK, hdfs_folder, json.dumps(hdfs_server.spark_settings())],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert spark.returncode == 0, spark.stderr[-3000:]
    assert spark.stdout.strip().splitlines()[-1] == "4950"
