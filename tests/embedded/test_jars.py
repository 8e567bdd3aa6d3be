from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from onceforall.embedded import jars as jars_module
from onceforall.embedded import kafka_jars, spark_kafka_jars
from onceforall.embedded.jars import (
    HADOOP_VERSIONS,
    connector_set,
    hadoop_set,
    hadoop_version,
    jar_folder,
    jar_set,
    pinned_jars,
)
from onceforall.errors import EmbeddedServerError, UnsupportedQueryError

from .conftest import SMALL_SET

FETCH_IN_A_PROCESS = (
    f"from onceforall.embedded.jars import jar_set; print(len(jar_set({SMALL_SET!r})))"
)


def spoil(jar):
    """Change one byte and keep the size, as a fault of a disk does."""
    content = bytearray(jar.read_bytes())
    content[len(content) // 2] ^= 0xFF
    jar.write_bytes(content)


@pytest.fixture
def hashed(monkeypatch):
    """The names of the jars whose content was read, in order."""
    names = []
    check = jars_module._check_content

    def record(jar, path, remedy):
        names.append(jar.file_name)
        check(jar, path, remedy)

    monkeypatch.setattr(jars_module, "_check_content", record)
    return names


def test_the_broker_and_the_connector_of_the_installed_spark_are_there():
    assert "kafka_2.13-4.3.1.jar" in {jar.name for jar in kafka_jars()}
    connector = spark_kafka_jars()
    assert len(connector) == 4
    assert all(jar.is_file() for jar in connector)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("4.0.1", "spark-4.0"),
        ("4.1.0", "spark-4.1"),
        ("4.2.0", "spark-4.2"),
        ("4.3.0.dev1", "spark-4.2"),
    ],
)
def test_each_supported_spark_has_a_whole_connector(version, name):
    assert connector_set(version) == name
    modules = {jar.module for jar in pinned_jars(name)}
    assert modules == {
        "spark-sql-kafka-0-10_2.13",
        "spark-token-provider-kafka-0-10_2.13",
        "kafka-clients",
        "commons-pool2",
    }


@pytest.mark.parametrize("version", ["3.5.4", "4.10.0", "5.0.0"])
def test_an_unsupported_spark_is_named_with_the_supported_ones(version):
    with pytest.raises(
        UnsupportedQueryError, match=f"pyspark {version}; there is one for 4.0, 4.1, 4.2, 4.3"
    ):
        connector_set(version)


@pytest.mark.parametrize("version", HADOOP_VERSIONS)
def test_each_pinned_hadoop_has_its_client_for_s3_and_its_servers(version):
    s3a, hdfs = (
        {jar.module: jar.revision for jar in pinned_jars(hadoop_set(kind, version))}
        for kind in ("s3a", "hdfs")
    )
    assert s3a["hadoop-aws"] == hdfs["hadoop-client-minicluster"] == version
    sdk = {
        jar.revision
        for jar in pinned_jars(hadoop_set("s3a", version))
        if jar.organisation == "software.amazon.awssdk"
    }
    assert len(sdk) == 1
    # Spark has these itself, in other versions.
    assert not {"netty-common", "slf4j-api", "httpclient", "httpcore", "commons-codec"} & set(s3a)


def test_the_hadoop_of_the_installed_spark_is_known():
    assert hadoop_version() in HADOOP_VERSIONS


@pytest.mark.parametrize("kind", ["s3a", "hdfs"])
def test_a_hadoop_without_pinned_jars_is_named_with_what_has_them(kind):
    with pytest.raises(
        UnsupportedQueryError, match=rf"Hadoop 3\.3\.6; jars for {kind}.*pyspark 4\.0\.0, 4\.1\.1"
    ):
        hadoop_set(kind, "3.3.6")


def test_a_fetch_fills_the_cache_and_leaves_nothing_else(empty_cache, repository):
    fetched = jar_set(SMALL_SET)
    assert [jar.name for jar in fetched] == [jar.file_name for jar in pinned_jars(SMALL_SET)]
    assert [path.name for path in (empty_cache / "jars").iterdir()] == [SMALL_SET]
    assert {path.name for path in jar_folder(SMALL_SET).iterdir()} == {
        jar.name for jar in fetched
    } | {"verified.json"}


def test_a_fetched_jar_that_differs_from_its_pin_is_never_put_into_the_cache(
    empty_cache, repository
):
    spoil(repository / pinned_jars(SMALL_SET)[0].file_name)
    with pytest.raises(
        EmbeddedServerError,
        match=f"{pinned_jars(SMALL_SET)[0].file_name}.*not used.*served something else",
    ):
        jar_set(SMALL_SET)
    assert list((empty_cache / "jars").iterdir()) == []


def test_a_jar_that_no_repository_has_is_named(empty_cache, repository):
    (repository / "kafka-clients-3.9.0.jar").unlink()
    with pytest.raises(
        EmbeddedServerError,
        match=r"(?s)jars could not be fetched.*kafka-clients;3\.9\.0: not found",
    ):
        jar_set(SMALL_SET)
    assert list((empty_cache / "jars").iterdir()) == []


def test_without_a_network_the_folder_and_the_files_are_named(empty_cache, tmp_path, monkeypatch):
    with socket.socket() as bound:
        # Bound and not listening: connections are refused, and nobody else gets the port.
        bound.bind(("127.0.0.1", 0))
        settings = tmp_path / "ivysettings.xml"
        settings.write_text(
            '<ivysettings><settings defaultResolver="dead"/><resolvers><ibiblio name="dead" '
            'm2compatible="true" '
            'usepoms="false" '
            f'root="http://user:secret@127.0.0.1:{bound.getsockname()[1]}/"/></resolvers></ivysettings>'
        )
        monkeypatch.setenv("ONCEFORALL_IVY_SETTINGS", str(settings))
        with pytest.raises(EmbeddedServerError) as raised:
            jar_set(SMALL_SET)
    message = str(raised.value)
    assert f"lay these files into {jar_folder(SMALL_SET)} by hand" in message
    assert "ONCEFORALL_IVY_SETTINGS" in message
    assert all(jar.file_name in message for jar in pinned_jars(SMALL_SET))
    assert "secret" not in message


def test_ivy_settings_that_do_not_exist_are_named(empty_cache, tmp_path, monkeypatch):
    monkeypatch.setenv("ONCEFORALL_IVY_SETTINGS", str(tmp_path / "none.xml"))
    with pytest.raises(EmbeddedServerError, match=r"none\.xml, and there is no such file"):
        jar_set(SMALL_SET)


def test_two_fetches_at_once_leave_one_whole_cache(empty_cache, repository):
    fetches = [
        subprocess.Popen(
            [sys.executable, "-c", FETCH_IN_A_PROCESS],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ends = [(*fetch.communicate(timeout=120), fetch.returncode) for fetch in fetches]
    assert [(output.strip(), status) for output, _, status in ends] == [("4", 0), ("4", 0)], ends
    assert [path.name for path in (empty_cache / "jars").iterdir()] == [SMALL_SET]
    assert len(jar_set(SMALL_SET)) == 4


def test_jars_laid_by_hand_need_no_fetch_and_are_verified_once(filled_cache, hashed, monkeypatch):
    monkeypatch.setenv("ONCEFORALL_IVY_SETTINGS", "/nowhere")
    jar_set(SMALL_SET)
    assert len(hashed) == 4
    jar_set(SMALL_SET)
    assert len(hashed) == 4


def test_only_what_is_missing_is_fetched(filled_cache, repository):
    missing, *others = pinned_jars(SMALL_SET)
    (filled_cache / missing.file_name).unlink()
    for jar in others:
        (repository / jar.file_name).unlink()
    assert len(jar_set(SMALL_SET)) == 4


def test_a_spoiled_jar_in_the_cache_is_named_and_not_used(filled_cache):
    jar = filled_cache / pinned_jars(SMALL_SET)[2].file_name
    spoil(jar)
    with pytest.raises(EmbeddedServerError, match=f"{jar} is not the pinned.*Delete {jar}"):
        jar_set(SMALL_SET)


def test_a_jar_that_is_spoiled_after_it_was_verified_is_found(filled_cache):
    jar_set(SMALL_SET)
    spoil(filled_cache / pinned_jars(SMALL_SET)[0].file_name)
    with pytest.raises(EmbeddedServerError, match="is not the pinned"):
        jar_set(SMALL_SET)


def test_a_torn_marker_only_costs_the_hashes(filled_cache, hashed):
    jar_set(SMALL_SET)
    (filled_cache / "verified.json").write_text('{"torn')
    jar_set(SMALL_SET)
    assert len(hashed) == 8


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    # A file where the folder should be: a missing permission would not stop root.
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("ONCEFORALL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(EmbeddedServerError, match=r"cannot be written.*ONCEFORALL_CACHE"):
        jar_set(SMALL_SET)


def test_what_a_killed_fetch_left_is_removed_after_a_day(empty_cache, repository):
    old, young = empty_cache / "jars" / ".fetch-old", empty_cache / "jars" / ".fetch-young"
    for leftover in (old, young):
        leftover.mkdir(parents=True)
    os.utime(old, (0, 0))
    jar_set(SMALL_SET)
    assert not old.exists()
    assert young.exists()
