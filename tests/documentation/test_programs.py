"""The blocks of Python on the pages, run as they stand: those of a page in their order and in one
namespace, and a query to the end of its input.

A page may take for granted what its reader has (a session ``spark`` and the streams of
``STREAMS``), and nothing else: what else it uses must stand in one of its blocks. Hosts, paths and
topics are replaced by real ones (``support.pages``). What a block claims is looked at behind it:
``behind`` of the page's test.
"""

import contextlib
import json
import os
import re
import struct
from collections import Counter
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
import pytest
from pyspark.errors import StreamingQueryException

import onceforall as ofa
from onceforall.operators import rocksdb_state
from onceforall.spark import checkpoint as spark_checkpoint
from support.pages import Places, all_blocks, blocks, elsewhere
from support.reading import released, values

pytestmark = [pytest.mark.spark]

SCHEMA = {
    "events": (
        "id BIGINT, key STRING, value STRING, campaign_id STRING, spend DECIMAL(10, 2), day "
        "STRING, valid BOOLEAN, time TIMESTAMP, "
        "event_id STRING, happened TIMESTAMP, event_time TIMESTAMP"
    ),
    "clicks": (
        "click_id STRING, user_id STRING, visitor STRING, campaign STRING, campaign_id STRING, "
        "page STRING, price DECIMAL(10, 2), clicked_at TIMESTAMP"
    ),
    "orders": "order_id STRING, user_id STRING, ordered_at TIMESTAMP",
}
STREAMS = tuple(SCHEMA)


class World:
    """What the reader of a page has: a session, streams with some input, servers and folders."""

    def __init__(self, spark, folder, places):
        self.spark, self.folder, self.places, self.rows = (
            spark,
            folder,
            places,
            {name: [] for name in STREAMS},
        )
        self.names = {"spark": spark, "__name__": "page"}
        for name in STREAMS:
            (folder / name).mkdir()
            reader = spark.readStream.schema(SCHEMA[name]).option("maxFilesPerTrigger", 1)
            self.names[name] = reader.json(str(folder / name))

    def add(self, stream, *rows):
        """Add a file of rows, which is a batch."""
        number = len(list((self.folder / stream).iterdir()))
        new = self.folder / "new.json"
        new.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(new, (1_700_000_000 + number,) * 2)
        new.rename(self.folder / stream / f"{number}.json")
        self.rows[stream] += rows

    def run(self, code, name):
        """Run code as it stands on the page, and the queries that it starts to the end of what
        there is."""
        try:
            exec(compile(self.places.real(code), name, "exec"), self.names)
            for query in self.spark.streams.active:
                query.processAllAvailable()
        finally:
            for query in self.spark.streams.active:
                query.stop()

    def run_page(self, page, behind=None, before=None):
        """Run all blocks of a page that are run here; ``behind(number)`` looks at what block
        ``number`` claims, ``before(number)`` makes ready for it."""
        for number, block in enumerate(blocks(page, "python")):
            if block.is_fragment or elsewhere(block):
                continue
            if before is not None:
                before(number)
            self.run(block.code, str(block))
            if behind is not None:
                behind(number)

    def read(self, topic):
        """What a reader of one of the page's topics sees, sorted."""
        name = self.places.topic(topic)
        released(self.places.servers, name)
        return values(self.places.servers, name)

    def files(self, folder):
        return ofa.read_files(str(self.places.path(folder))).to_arrow()


def an_event(n):
    moment = f"2026-11-21T{10 + n // 60 % 10}:{n % 60:02}:00Z"
    return {
        "id": n, "key": f"k{n % 3}", "value": f"v{n}", "campaign_id": f"c{n % 3}", "spend": f"{n}.25", "day": f"2026-11-2{1 + n % 2}", "valid": n % 4 != 0,
        "time": moment, "event_id": f"e{n}", "happened": moment, "event_time": moment,
    }  # fmt: skip


@pytest.fixture
def world(spark, tmp_path):
    """A world without servers."""
    return World(spark, tmp_path, Places(tmp_path))


@pytest.fixture
def served(spark, tmp_path, broker, topic, database):
    """A world with a Kafka cluster and a PostgreSQL database."""
    (tmp_path / "run" / "secrets").mkdir(parents=True)
    (tmp_path / "run" / "secrets" / "ads").write_text(unquote(urlsplit(database).password) + "\n")
    places = Places(tmp_path, broker.bootstrap_servers, topic, database)
    with psycopg.connect(database, autocommit=True) as connection:
        made = World(spark, tmp_path, places)
        made.sql = lambda statement: connection.execute(statement)
        yield made


def sums(rows, number=Decimal):
    found = {}
    for row in rows:
        spend, count = found.get(row["campaign_id"], (number(0), 0))
        found[row["campaign_id"]] = spend + number(row["spend"]), count + 1
    return found


def test_every_page_with_python_is_run_here():
    pages = {
        block.page
        for block in all_blocks("python")
        if not block.is_fragment and not elsewhere(block)
    }
    text = Path(__file__).read_text()
    assert {page for page in pages if f'run_page("{page}"' not in text} == set()


# --- the pages ------------------------------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.postgres
def test_start(served):
    """The function of one's own keeps both topics."""
    served.add("events", *map(an_event, range(8)))
    served.add("events", *map(an_event, range(8, 16)))

    looked = []

    def behind(number):
        if "rejected" not in blocks("docs/start.md", "python")[number].code:
            return  # One that makes topics.
        assert served.read("attributed") == sorted(f"v{n}" for n in range(16) if n % 4)
        assert served.read("rejected") == sorted(f"v{n}" for n in range(16) if n % 4 == 0)
        looked.append(number)

    served.run_page("docs/start.md", behind)
    assert len(looked) == 1


@pytest.mark.kafka
@pytest.mark.postgres
def test_the_two_line_change_of_the_readme_goes_on_with_the_plain_querys_checkpoint(served):
    [block] = blocks("README.md", "diff")
    assert block.code.count("\n+") == 3
    before, after = (
        "".join(f"{line[1:]}\n" for line in block.code.splitlines() if not line.startswith(sign))
        for sign in "+-"
    )
    served.add("events", *map(an_event, range(8)))
    plain = before.replace(
        '"topic", "attributed"', f'"topic", "{served.places.topic("attributed")}"'
    )
    served.run(plain, "before")
    assert served.read("attributed") == sorted(f"v{n}" for n in range(8))
    served.add("events", *map(an_event, range(8, 16)))
    served.run(after, "after")
    assert served.read("attributed") == sorted(f"v{n}" for n in range(16))


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.long
def test_several_sinks(served):
    served.sql("CREATE TABLE spend (campaign_id text PRIMARY KEY, spend numeric(20, 2))")
    served.add("events", *map(an_event, range(20)))
    served.add("events", *map(an_event, range(20, 40)))

    def behind(_):
        assert dict(served.sql("SELECT campaign_id, spend FROM spend").fetchall()) == {
            campaign: spend for campaign, (spend, _) in sums(served.rows["events"]).items()
        }
        assert served.read("attributed") == sorted(f"v{n}" for n in range(40))
        assert sorted(served.files("/lake/attributed").column("id").to_pylist()) == list(range(40))

    served.run_page("docs/several-sinks.md", behind)


@pytest.mark.kafka
@pytest.mark.postgres
def test_aggregates(served):
    served.sql(
        "CREATE TABLE spend (campaign_id text PRIMARY KEY, spend numeric(20, 2), n bigint, "
        "last_seen timestamptz)"
    )
    served.add("events", *map(an_event, range(20)))
    served.add("events", *map(an_event, range(20, 40)))

    def behind(_):
        found = {
            campaign: (spend, n)
            for campaign, spend, n in served.sql(
                "SELECT campaign_id, spend, n FROM spend"
            ).fetchall()
        }
        assert found == sums(served.rows["events"])
        [(seen,)] = served.sql("SELECT max(last_seen) FROM spend").fetchall()
        assert seen.isoformat() == "2026-11-21T10:39:00+00:00"

    served.run_page("docs/aggregates.md", behind)


def test_files(world, capsys):
    world.add("events", *map(an_event, range(20)))
    code = [block.code for block in blocks("docs/files.md", "python")]
    made = {}

    def before(number):
        if number == 0:
            # The block reads what its sink has written.
            exec(compile(world.places.real(code[0].partition("files =")[0]), "sink", "exec"), made)
            write(world, made["sink"], "first")

    def behind(number):
        if number == 0:
            assert sorted(world.names["table"].column("id").to_pylist()) == list(range(20))
        else:
            world.add("events", *map(an_event, range(20, 30)))
            write(world, world.names["sink"], "second")
            announced = re.findall(
                r"ADD IF NOT EXISTS PARTITION \(day='([^']+)'\) LOCATION '([^']+)'",
                capsys.readouterr().out,
            )
            assert {day for day, _ in announced} == {"2026-11-21", "2026-11-22"}
            assert all(Path(place.removeprefix("file:")).is_dir() for _, place in announced)

    world.run_page("docs/files.md", behind, before)


def write(world, sink, name):
    """Write the world's events with a sink that a page has made."""
    query = (
        ofa.write_stream(world.names["events"])
        .to(sink)
        .option("checkpointLocation", str(world.folder / name))
    )
    started = query.trigger(availableNow=True).start()
    assert started.awaitTermination(60)


@pytest.mark.kafka
@pytest.mark.postgres
def test_changing(served, capsys, monkeypatch):
    """The commands and the function make a plain checkpoint of a query that was stopped; and the
    log of a new query lies elsewhere."""
    from onceforall.cli import main

    served.add("events", *map(an_event, range(8)))
    sink = ofa.KafkaSink(
        {"bootstrap.servers": served.places.servers}, topic=served.places.topic("attributed")
    )
    checkpoint = served.places.path("/checkpoints/ads")
    monkeypatch.chdir(served.folder)
    monkeypatch.syspath_prepend(str(served.folder))
    (served.folder / "my_job.py").write_text(
        "import onceforall as ofa\n"
        f"SINKS = {{'out': ofa.KafkaSink({{'bootstrap.servers': {served.places.servers!r}}}, "
        f"topic={served.places.topic('attributed')!r})}}\n"
    )

    def run_query():
        query = (
            ofa.write_stream(served.names["events"])
            .to(sink, name="out")
            .option("checkpointLocation", str(checkpoint))
        )
        assert query.trigger(availableNow=True).start().awaitTermination(60)

    run_query()
    [commands] = blocks("docs/changing.md", "sh")
    dry, real = [
        line.partition("#")[0].split() for line in served.places.real(commands.code).splitlines()
    ]
    assert main(dry[1:]) == 0
    assert "Nothing is changed" in capsys.readouterr().out
    assert spark_checkpoint.is_ours(checkpoint)
    assert main(real[1:]) == 0
    assert not spark_checkpoint.is_ours(checkpoint)
    served.add("events", *map(an_event, range(8, 16)))

    def before(number):
        if number == 0:
            # And back again, so that there is something to leave.
            run_query()
            assert spark_checkpoint.is_ours(checkpoint)
            capsys.readouterr()

    def behind(number):
        if number == 0:
            assert "is a plain Spark query's" in capsys.readouterr().out
            assert not spark_checkpoint.is_ours(checkpoint)
            assert served.read("attributed") == sorted(f"v{n}" for n in range(16))
        else:
            assert sorted(served.files("/lake/ads").column("id").to_pylist()) == list(range(16))
            assert list((served.places.path("/volume/logs/ads") / "chains").rglob("*.json"))

    served.run_page("docs/changing.md", behind, before)


VALUES_OF_THE_CHECKERS_PAGE = (
    "*",
    (
        "array(named_struct('key', 'source', 'value', CAST('web' AS BINARY)), "
        "named_struct('key', 'campaign', 'value', CAST(NULL AS BINARY))) AS headers"
    ),
    "CAST(CAST(id AS DECIMAL(10, 0)) / 100 AS DECIMAL(12, 2)) AS price",
    "timestamp_seconds(unix_seconds(TIMESTAMP '2026-11-26 00:00:00+00:00') + id) AS at",
)


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.long
def test_checker(served, capsys):
    """The first block prints what stands below it; the others find nothing wrong with a query
    that is right, and would else raise."""
    from onceforall.testing import checker

    served.sql("CREATE TABLE spend (id bigint, campaign_id text, price numeric, at timestamptz)")
    for batch in range(2):
        served.add(
            "events",
            *({**an_event(n), "value": str(n)} for n in range(1000 * batch, 1000 * (batch + 1))),
        )

    def query():
        servers = {"bootstrap.servers": served.places.servers}
        topic = served.places.topic("attributed")
        return (
            ofa.write_stream(served.names["events"].selectExpr(*VALUES_OF_THE_CHECKERS_PAGE))
            .to(ofa.KafkaSink(servers, topic=topic, timestamp_column="at"), name="topic")
            .to(ofa.FileSink(str(served.places.path("/lake/attributed"))), name="files")
            .to(
                ofa.PostgresSink(served.places.database, table="spend"),
                name="table",
                transform=lambda batch: batch.select("id", "campaign_id", "price", "at"),
            )
            .option("checkpointLocation", str(served.places.path("/checkpoints/ads")))
            .trigger(availableNow=True)
            .start()
        )

    def before(number):
        if number == 1:
            assert query().awaitTermination(120)
        if number == 4:
            served.add("events", *({**an_event(n), "value": str(n)} for n in range(2000, 3000)))
            served.names["query"] = query()

    def behind(number):
        if number == 0:
            shown = next(block for block in blocks("docs/checker.md", "text"))
            assert capsys.readouterr().out == shown.code
        if number == 1:
            counts = {
                name: (found.records, found.expected)
                for name, found in served.names["report"].sinks.items()
            }
            assert counts == dict.fromkeys(("topic", "files", "table"), (2000, 2000))
        if number == 2:
            assert len(served.names["views"]["table"]) == 2000
        if number == 4:
            assert isinstance(served.names["check"], checker.RunningCheck)

    served.run_page("docs/checker.md", behind, before)


@pytest.mark.kafka
@pytest.mark.postgres
def test_kafka(served):
    def behind(number):
        assert isinstance(served.names["sink"], ofa.KafkaSink)

    served.run_page("docs/kafka.md", behind)


@pytest.mark.kafka
@pytest.mark.postgres
def test_postgres(served):
    served.run_page("docs/postgres.md", lambda _: None)
    assert isinstance(served.names["sink"], ofa.PostgresSink)


def failing(world):
    """Start a query whose own function fails, as ``query`` of a page."""
    world.add("events", an_event(0))

    def fails(batch):
        raise ValueError("of the program's own")

    writer = ofa.write_stream(world.names["events"]).to(
        ofa.FileSink(str(world.folder / "files"), format="json"), transform=fails
    )
    query = world.names["query"] = writer.option(
        "checkpointLocation", str(world.folder / "checkpoint")
    ).start()
    return query


def test_errors(world):
    query = failing(world)
    with pytest.raises(StreamingQueryException):
        world.run_page("docs/errors.md")
    error = world.names["error"]
    assert type(error) is ofa.AttemptFailedError
    assert isinstance(error.__cause__, ValueError)
    assert error.query_id == str(query.id)


def test_clusters(world):
    """A query that failed by a bug of the program's: a restart may help."""
    failing(world)
    with pytest.raises(SystemExit) as ended:
        world.run_page("docs/clusters.md")
    assert ended.value.code == 75


def test_speed(world):
    world.run_page("docs/speed.md")
    assert "DataStreamReader" in type(world.names["source"]).__name__


@pytest.mark.kafka
@pytest.mark.long
def test_kafka_operations(world):
    """Long: three brokers start, and one is killed; tests/embedded has the rest of that cluster."""
    world.run_page("docs/kafka-operations.md")
    assert world.names["cluster"] is not None


@pytest.mark.kafka
@pytest.mark.long
def test_torn_transactions(world):
    """The late EndTxn is taken for the next transaction's: the broker answers that it is
    committed."""
    world.run_page("docs/torn-transactions.md")
    [answer] = world.names["answers"]
    _, throttle_ms, error = struct.unpack_from(">iih", answer)
    assert (throttle_ms, error) == (0, 0)


@pytest.fixture
def rocksdb(spark):
    """The state store that the operators need; a page sets it for itself as well, so both are
    undone."""
    with configured(spark, rocksdb_state()):
        yield


@contextlib.contextmanager
def configured(spark, settings):
    names = {*settings, "spark.sql.streaming.stateStore.providerClass"}
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def a_click(n, minute):
    moment = f"2026-11-21T{10 + minute // 60}:{minute % 60:02}:00Z"
    return {
        "click_id": f"k{n}", "user_id": f"u{n % 2}", "visitor": f"u{n % 2}", "campaign": "c1", "campaign_id": f"c{n % 2}", "page": "/home", "price": "1.25",
        "clicked_at": moment,
    }  # fmt: skip


@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.long
def test_operators(served, rocksdb):
    """Long: two queries with state in Python, of five sinks; tests/operators has the operators'
    ordinary tests."""
    served.sql(
        "CREATE TABLE campaigns (campaign_id text PRIMARY KEY, advertiser text, rate numeric(10, "
        "4))"
    )
    served.sql("INSERT INTO campaigns VALUES ('c1', 'Acme', 0.5)")
    served.add("events", *map(an_event, range(4)), *map(an_event, range(4)))
    served.add("clicks", *(a_click(n, n) for n in range(4)))
    for order, user, minute in (("o1", "u1", 30), ("o2", "u9", 31)):
        served.add(
            "orders",
            {"order_id": order, "user_id": user, "ordered_at": f"2026-11-21T10:{minute}:00Z"},
        )
    # Hours later, so that the watermark passes both orders; the third waits.
    served.add("clicks", {**a_click(9, 300), "user_id": "u7", "campaign_id": "c7"})
    served.add("orders", {"order_id": "o3", "user_id": "u8", "ordered_at": "2026-11-21T15:00:00Z"})
    served.names["clicks"] = served.names["clicks"].drop("campaign")
    done = []

    def behind(number):
        done.append(number)
        if number == 1:
            assert served.read("events")[:1]
            assert len(served.read("events")) == 4
        if number == 2:
            query = (
                served.names["priced"]
                .writeStream.format("memory")
                .queryName("priced")
                .trigger(availableNow=True)
            )
            assert (
                query.option("checkpointLocation", str(served.folder / "priced"))
                .start()
                .awaitTermination(60)
            )
            rows = (
                served.spark.table("priced")
                .select("campaign_id", "advertiser", "campaign")
                .collect()
            )
            assert Counter(map(tuple, rows)) == {
                ("c1", "Acme", "found"): 2,
                ("c0", "unknown", "missing"): 2,
                ("c7", "unknown", "missing"): 1,
            }
        if number == 3:
            # The watermark of both streams has passed these two, and not the third.
            [attributed] = map(json.loads, served.read("attributed"))
            assert (attributed["order_id"], attributed["click"]["click_id"]) == ("o1", "k3")
            assert [json.loads(value)["order_id"] for value in served.read("unmatched")] == ["o2"]
            assert served.read("late") == []

    served.run_page("docs/operators.md", behind)
    assert done == [0, 1, 2, 3, 4]


@pytest.mark.long
def test_operators_windows(world, rocksdb):
    """Long, as the page before it."""
    # Two clicks of each visitor, and a day later one that moves the watermark behind the gap.
    world.add("clicks", *(a_click(n, n) for n in range(4)))
    world.add("clicks", a_click(4, 600))
    world.add("clicks", a_click(5, 601))

    def behind(number):
        if number == 0:
            visits = [
                visit
                for visit in world.files("/lake/visits").to_pylist()
                if visit["kind"] == "window"
            ]
            assert sorted((visit["visitor"], str(visit["spend"])) for visit in visits) == [
                ("u0", "2.50"),
                ("u1", "2.50"),
            ]
        if number == 1:
            assert {"distinct_pages", "checkout"} <= set(world.names["steps"].columns)

    world.run_page("docs/operators-windows.md", behind)
    assert "dearest" in world.names["per_hundred"].columns
    assert "spend" in world.names["batches"].columns
