"""Hadoop's client on S3 and on HDFS, and beside obstore's: the same answers, the same bytes."""

import threading
from types import SimpleNamespace

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from commit_log.building import commit, start
from onceforall.commit_log.stores.objects import ObjectClient
from onceforall.commit_log.stores.probing import check, probe
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.embedded import s3a_jars
from onceforall.embedded.jars import hadoop_version
from onceforall.errors import CommitLogError, FencedError, OptionError, UnsupportedQueryError
from onceforall.protocol.entries import Done
from onceforall.spark.hadoop_client import HadoopClient
from onceforall.spark.stores import Stores
from support.odd_names import ODD_NAMES

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.hdfs]


@pytest.fixture(scope="module")
def spark(s3_server, hdfs_server):
    """What ``Stores`` takes of a session, in a JVM of its own: that of the other tests in this
    process has no jars of S3A, and can't get any."""
    conf = SparkConf(loadDefaults=False)
    conf.set("spark.driver.extraClassPath", ":".join(map(str, s3a_jars())))
    gateway = launch_gateway(conf)
    configuration = gateway.jvm.org.apache.hadoop.conf.Configuration()
    settings = {**s3_server.spark_settings(), **hdfs_server.spark_settings()}
    for name, value in settings.items():
        configuration.set(name.removeprefix("spark.hadoop."), value)
    context = SimpleNamespace(
        _gateway=gateway,
        _jvm=gateway.jvm,
        _jsc=SimpleNamespace(hadoopConfiguration=lambda: configuration),
    )
    # Where the process has a session, PySpark asks its JVM what an error says.
    others = SparkContext._jvm
    SparkContext._jvm = gateway.jvm
    yield SimpleNamespace(sparkContext=context)
    SparkContext._jvm = others
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(30)


@pytest.fixture(params=["s3", "hdfs"])
def url(request):
    if request.param == "s3":
        if hadoop_version() == "3.4.1":
            pytest.skip("S3A of Hadoop 3.4.1 has no conditional puts: obstore serves the log there")
        return f"s3a://{request.getfixturevalue('s3_bucket')}/ads"
    return request.getfixturevalue("hdfs_folder")


@pytest.fixture
def client(spark, url):
    found = Stores(spark).client(url)
    assert isinstance(found, HadoopClient)
    return found


@pytest.mark.long
def test_hadoop_and_obstore_see_one_key_whatever_the_name(spark, s3_server, s3_bucket):
    settings = {
        "endpoint": s3_server.endpoint,
        "region": s3_server.region,
        "access_key_id": s3_server.access_key,
        "secret_access_key": s3_server.secret_key,
        "virtual_hosted_style_request": "false",
    }
    hadoop = Stores(spark, {"client": "hadoop"})
    for name in ODD_NAMES:
        url = f"s3a://{s3_bucket}/{name}"
        hadoop.client(url).replace("k", name.encode())
        assert ObjectClient(url, settings).read("k") == name.encode()


def test_what_a_client_promises(client):
    assert client.read("a/b") is None
    assert not client.exists("a/b")
    assert client.list("a") == []
    assert client.create("a/b", b"too late", lambda: False) == "too late"
    assert client.read("a/b") is None
    assert client.create("a/b", b"first", lambda: True) == "created"
    assert client.create("a/b", b"second") == "exists"
    assert client.read("a/b") == b"first"
    client.create("a/c/d", bytes(range(256)))
    assert client.read("a/c/d") == bytes(range(256))
    assert client.list("a") == ["b", "c/"]
    assert client.list("a/b") == []  # of a file Hadoop lists the file
    client.replace("a/b", b"third")
    assert client.read("a/b") == b"third"
    client.move("a/b", "x/y")
    assert (client.read("a/b"), client.read("x/y")) == (None, b"third")
    client.delete("x/y")
    client.delete("x/y")
    assert client.list("x") == []
    assert client.create("x/y", b"again") == "created"
    left = [name for name in client.list("") if name.startswith(".")]
    assert left == []


def test_a_file_that_is_written_over_is_whole_at_every_moment(client, monkeypatch):
    """Whoever is killed then leaves the old one. (A PUT to S3 is whole or nothing.)"""
    client.create("a/b", b"first")
    write, seen = client._write, []

    def written(path, content):
        write(path, content)
        seen.append(client._read("a/b"))

    monkeypatch.setattr(client, "_write", written)
    client.replace("a/b", b"second")
    assert seen == [b"first" if client._renames else b"second"]
    assert client.read("a/b") == b"second"
    assert [name for name in client.list("") if name.startswith(".")] == []


def test_what_a_killed_writer_left_is_cleaned_and_nothing_else(client):
    left = f".00000003.json.{'0' * 32}.tmp"
    client.replace(left, b"half")
    client.create("kept.json", b"whole")
    assert client.clean_temporary_files() == 0, "it may be a live writer's"
    cleaned = client.clean_temporary_files(older_than_s=-1)
    assert cleaned == (0 if client.is_far else 1), "S3 has none, for a PUT is whole or nothing"
    assert client.read("kept.json") == b"whole"


@pytest.mark.sample(1)
def test_of_many_creators_one_wins(client):
    found = check(lambda: RemoteStore(client), creators=4, rounds=5)
    assert found.kept, found.verdicts
    probe(RemoteStore(client))


def test_a_batch_that_is_stopped_does_not_interrupt_a_create(client, spark):
    """Spark interrupts its thread; Hadoop's calls are made in others."""
    jvm = spark.sparkContext._jvm
    answers = []

    def work():
        jvm.java.lang.Thread.currentThread().interrupt()
        answers.append(client.create("stopped", b"x"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert answers == ["created"]


@pytest.mark.long
def test_a_driver_with_one_client_follows_a_driver_with_the_other(spark, s3_server, s3_bucket):
    url = f"s3a://{s3_bucket}/ads"
    by_hadoop = RemoteStore(Stores(spark).client(url), "onceforall")
    by_obstore_client = Stores(spark, {"client": "obstore"}).client(url)
    assert isinstance(by_obstore_client, ObjectClient)
    by_obstore = RemoteStore(by_obstore_client, "onceforall")
    stores = [by_hadoop, by_obstore, by_hadoop, by_obstore]
    before = None
    for batch, store in enumerate(stores):
        log, generation, history = start(store, keep_ends=True)
        assert generation == batch
        if before is not None:
            assert history.decided.commit == commit(batch - 1)
            with pytest.raises(FencedError):
                before.append(generation - 1, commit(99))
        log.append(generation, commit(batch))
        log.append(generation, Done(batch))
        before = log
    threads, outcomes = [], []

    def race(store):
        log, generation, _ = start(store, keep_ends=True)
        try:
            log.append(generation, commit(50, f"g{generation}"))
            outcomes.append(generation)
        except FencedError:
            outcomes.append(None)

    for store in (by_hadoop, by_obstore):
        threads.append(threading.Thread(target=race, args=(store,)))
        threads[-1].start()
    for thread in threads:
        thread.join(60)
    assert len(outcomes) == 2
    assert max(filter(None, outcomes)) == 5


def test_what_is_wrong_is_told_in_a_sentence(spark, hdfs_server):
    with pytest.raises(CommitLogError, match="no such bucket"):
        Stores(spark).client("s3a://no-such-bucket-anywhere/a").create("x", b"")
    with pytest.raises(UnsupportedQueryError, match="ftp"):
        Stores(spark).client("ftp://host/a")
    with pytest.raises(OptionError, match="obstore"):
        Stores(spark, {"client": "curl"})
    with pytest.raises(CommitLogError, match="doesn't answer"):
        Stores(spark).client("hdfs://127.0.0.1:9/a").read("x")


def test_a_start_with_other_credentials_gets_a_client_with_them(spark, s3_bucket):
    """A program that starts its query again when the keys have been replaced."""
    url = f"s3a://{s3_bucket}/keys"
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    key = configuration.get("fs.s3a.secret.key")
    before = Stores(spark).client(url)
    assert Stores(spark).client(url) is before
    configuration.set("fs.s3a.secret.key", "another")
    try:
        client = Stores(spark).client(url)
        assert client is not before
        assert client._system.getConf().get("fs.s3a.secret.key") == "another"
    finally:
        configuration.set("fs.s3a.secret.key", key)
    assert Stores(spark).client(url) is before
    assert before.read("x") is None


def test_hdfs_in_safe_mode_is_told_and_works_again_afterwards(spark, hdfs_server, hdfs_folder):
    client = Stores(spark).client(hdfs_folder)
    client.create("before", b"x")
    jvm = spark.sparkContext._jvm
    system = jvm.org.apache.hadoop.fs.Path(hdfs_folder).getFileSystem(
        spark.sparkContext._jsc.hadoopConfiguration()
    )
    action = jvm.org.apache.hadoop.fs.SafeModeAction
    system.setSafeMode(action.ENTER)
    try:
        assert client.read("before") == b"x"
        with pytest.raises(CommitLogError, match="safe mode"):
            client.create("within", b"x")
    finally:
        system.setSafeMode(action.LEAVE)
    assert client.create("within", b"x") == "created"
