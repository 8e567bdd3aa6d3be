"""``onceforall cluster check``: what is found on a cluster, and what is said of it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import tomllib

import onceforall as ofa
from onceforall.cli import main
from onceforall.embedded.network import free_port
from onceforall.operate import cluster
from onceforall.operate.cluster import Place
from support.pages import ROOT
from support.silent_address import silent_address

PACKAGES = {"onceforall": "1.2", "pyspark": "4.2.0", "pyarrow": "20", "numpy": "2"}


def place(host="a", python="3.11.7", packages=None, unreachable=None, ahead=0.0):
    return Place(
        host, "/usr/bin/python3", python, {**PACKAGES, **(packages or {})}, unreachable or {}, ahead
    )


def problems(*executors, there=None, driver=None, extras=()):
    there = len(executors) if there is None else there
    return list(cluster._problems(driver or place("driver"), executors, there, extras))


def test_nothing_is_said_of_a_cluster_that_is_right():
    assert problems(place(), place("b", python="3.11.9", ahead=2.0)) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (place(packages={"pyarrow": None}), ["The executor on a", "lacks pyarrow", "pip install"]),
        (place(packages={"onceforall": "1.1"}), ["has onceforall 1.1", "the driver has 1.2"]),
        (place(packages={"pyspark": "4.1.0"}), ["has pyspark 4.1.0", "the driver has 4.2.0"]),
        (place(python="3.12.1"), ["has Python 3.12.1", "PYSPARK_PYTHON"]),
        (place(unreachable={"b:9092": "OSError: no route"}), ["can't reach b:9092: OSError"]),
        (place(ahead=61.5), ["61.5 s or more ahead of", "NTP"]),
        (place(ahead=-61.5), ["61.5 s or more behind", "NTP"]),
    ],
)
def test_each_thing_that_is_wrong_is_named_with_its_remedy(found, words):
    (said,) = problems(place(), found)
    assert all(word in said for word in words), said


def test_the_driver_is_looked_at_too():
    (said,) = problems(place(), driver=place("d", unreachable={"b:1": "refused"}))
    assert said.startswith("The driver on d (")


def test_executors_that_do_not_answer_are_counted():
    assert "No executor has answered" in problems()[0]
    assert "2 of 3 executors have not answered" in problems(place(), there=3)[0]


def test_what_to_install_names_the_extras():
    (said,) = problems(place(packages={"psycopg": None}), extras=["kafka", "postgres"])
    assert f"pip install 'onceforall[kafka,postgres]=={ofa.__version__}'" in said


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("broker:9092", ["broker:9092"]),
        ("a:1, b:2", ["a:1", "b:2"]),
        ("postgresql://user:word@db/ads", ["db:5432"]),
        ("https://s3.example.org/bucket?x=1", ["s3.example.org:443"]),
        ("http://[::1]:9000", ["[::1]:9000"]),
    ],
)
def test_of_an_address_nothing_but_host_and_port_is_kept(text, addresses):
    assert list(cluster._addresses(text)) == addresses


@pytest.mark.parametrize(
    "text", ["broker", "", "user:hidden@", "host:99999", "a:1,,b:2", "db..example:5432", ".db:1"]
)
def test_an_address_without_a_port_is_refused_without_being_shown(text):
    with pytest.raises(ofa.OptionError, match="host:port") as raised:
        list(cluster._addresses(text))
    assert "hidden" not in str(raised.value)


def test_a_clock_is_wrong_only_as_far_as_the_jobs_own_time_does_not_explain():
    def ahead(clock):
        return cluster._place(("h", "p", "3.11.7", {}, {}, clock), 100.0, 103.0).clock_ahead_s

    assert [ahead(clock) for clock in (90.0, 100.0, 101.0, 103.0, 110.0)] == [-10, 0, 0, 0, 7]


def test_what_an_executor_sees_is_what_there_is():
    with socket.create_server(("127.0.0.1", 0)) as server:
        open_port, closed = server.getsockname()[1], free_port()
        servers = [f"127.0.0.1:{open_port}", f"127.0.0.1:{closed}"]
        ((_, answer),) = cluster._look(["pyspark", "no-such-package"], servers, 2.0, ())
    _, executable, _, versions, unreachable, _ = answer
    assert executable == sys.executable
    assert versions["no-such-package"] is None
    assert versions["pyspark"]
    assert list(unreachable) == [f"127.0.0.1:{closed}"]


def test_servers_that_answer_nothing_are_waited_for_beside_one_another():
    """Behind a firewall that drops what it forbids. Once each took its time after the other, and of
    an executor that could reach none of a dozen it was said that other jobs keep it busy."""
    with ExitStack() as held:
        silent = [held.enter_context(silent_address()) for _ in range(6)]
        servers = [f"{host}:{port}" for host, port in silent]
        began = time.monotonic()
        ((_, answer),) = cluster._look([], servers, 1.5, ())
        assert time.monotonic() - began < 6 * 1.5
    assert list(answer[4]) == servers


def test_an_extra_that_no_task_needs_is_refused():
    with pytest.raises(ofa.OptionError, match="demo"):
        cluster._extras(["demo"])


def test_every_extra_that_tasks_import_from_can_be_asked_for():
    """By what the sources say: each ``task_imports`` names its extras, and pyproject has them."""
    source = ROOT / "src" / "onceforall"
    asked = {
        extra
        for file in source.rglob("*.py")
        if "imports" in (text := file.read_text(encoding="utf-8"))
        for extra in re.findall(r'"onceforall\[(\w+)\]"', text)
    }
    assert {"kafka", "postgres", "kinesis", "pravega"} <= asked
    # Those of the whole query: the demo's and the client's are no tasks'.
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert set(cluster.EXTRAS) == set(extras) - {"demo", "connect"}
    assert asked <= set(cluster.EXTRAS)
    for extra, packages in cluster.EXTRAS.items():
        wanted = {re.split(r"[\[><=]", each)[0] for each in extras[extra]}
        assert set(packages) <= wanted, extra
    assert cluster._extras(["kinesis", "pravega"]) == ["kinesis", "pravega"]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
def test_the_command_looks_from_each_executor_of_a_cluster(tmp_path, broker):
    closed = free_port()
    command = [Path(sys.executable).with_name("onceforall"), "cluster", "check", "--json"]
    command += ["--master", "local-cluster[2,1,512]", "--executors", "2", "--extra", "kafka"]
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--kafka", broker.bootstrap_servers, "--server", f"127.0.0.1:{closed}"]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["there"] == len(report["executors"]) == 2
    assert report["servers"] == [f"127.0.0.1:{closed}", broker.bootstrap_servers]
    for each in report["executors"]:
        assert each["packages"]["onceforall"] == ofa.__version__
        assert each["packages"]["confluent-kafka"]
        assert list(each["unreachable"]) == [f"127.0.0.1:{closed}"]
        assert each["clock_ahead_s"] == 0
    # The driver and both executors.
    assert len(report["problems"]) == 3
    assert all(f"can't reach 127.0.0.1:{closed}" in each for each in report["problems"])


def test_what_belongs_to_no_option_is_refused_before_spark_is_started(tmp_path, capsys):
    settings = tmp_path / "client.properties"
    settings.write_text("# a comment\nsasl.username = ads\nnonsense\n")
    assert main(["cluster", "check", "--kafka-config", str(settings)]) == 2
    assert "Line 3 of" in capsys.readouterr().err
    assert main(["cluster", "check", "--kafka-config", str(tmp_path / "none")]) == 2
    settings.write_bytes(b"sasl.password = gr\xfcn\n")
    assert main(["cluster", "check", "--kafka-config", str(settings)]) == 2
    said = capsys.readouterr().err
    assert said.endswith("isn't in UTF-8. Write it so.\n")
    assert "gr" not in said.replace(str(tmp_path), "")
    assert main(["cluster", "check", "--conf", "nonsense"]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err
