"""Checkpoint, commit log, kept rows and files on a store: S3 behind a proxy that loses,
repeats, delays and refuses requests, and HDFS. Transactions that are decided are lost, too."""

import itertools
import uuid

from chaos.nemeses_siege import Siege
from chaos.worlds import Place
from onceforall.commit_log.stores.objects import ObjectClient
from onceforall.embedded import EmbeddedHdfs, EmbeddedS3, s3a_jars
from onceforall.spark.remote_path import RemotePath
from support.http_faults import HttpProxy
from support.web_hdfs import WebHdfs

KINDS = ("all", "all", "kafka", "postgres-staged", "postgres-prepared", "files")
FOLDER = "checkpoints/chaos"
OUR_LOG = r"/onceforall/"
ANYTHING = ""
MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
NAMES = {
    "cut": "connections cut",
    "lose": "answers lost",
    "twice": "requests repeated",
    "delay": "requests delayed",
}


def on_s3(arena):
    """Kill, freeze and replace drivers whose checkpoint is on S3, behind a proxy that treats single
    requests badly.

    A run may end with what Spark says of a file that it can't write, with ``FencedError``, or
    with ``OutcomeUnknownError``. Requests of Spark's own are never repeated, nor late: nothing
    excludes what a replaced run writes there.
    """
    server = arena.enter(EmbeddedS3())
    server.create_bucket(bucket := f"chaos-{uuid.uuid4().hex[:8]}")
    proxy = arena.enter(HttpProxy(server.port))
    url = f"s3a://{bucket}/{FOLDER}"
    store = {
        "endpoint": server.endpoint,
        "region": server.region,
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
        "virtual_hosted_style_request": "false",
    }
    spark = {
        "spark.jars": ",".join(map(str, s3a_jars())),
        "spark.sql.streaming.checkpointFileManagerClass": MANAGER,
        **server.spark_settings(),
        # FileSink's requests, too.
        "spark.hadoop.fs.s3a.endpoint": proxy.endpoint,
        # Else one request alone takes minutes to fail.
        "spark.hadoop.fs.s3a.attempts.maximum": "2",
        "spark.hadoop.fs.s3a.retry.limit": "3",
        "spark.hadoop.fs.s3a.retry.throttle.limit": "3",
    }
    siege = _siege(
        arena,
        Place(RemotePath(ObjectClient(url, store)), spark, store),
        **({"files": f"s3a://{bucket}/lake"} if arena.rng.random() < 0.7 else {}),
    )
    by_obstore = arena.rng.random() < 0.3
    if by_obstore:
        siege.world.config["options"] = {
            "onceforall.store.client": "obstore",
            **siege.world.config.get("options", {}),
        }
    late, planned = [], Planned(siege)

    def plan(does, key, method=None, **more):
        fault = getattr(proxy, does)(
            method=method,
            key=key,
            nth=arena.rng.randint(1, 6),
            count=arena.rng.randint(1, 3),
            **more,
        )
        planned.add(f"S3: {NAMES[does]}", fault)

    def answered():
        status = arena.rng.choice([500, 503])
        fault = proxy.answer(status, key=ANYTHING, nth=arena.rng.randint(1, 6))
        planned.add(f"S3: answered with {status}", fault)

    def conflict():
        fault = proxy.answer(409, "PUT", OUR_LOG, kind="create", nth=arena.rng.randint(1, 4))
        planned.add("S3: answered with 409", fault)

    def come_late():
        late.append(proxy.late("PUT", OUR_LOG, kind="create", nth=arena.rng.randint(1, 4)))
        planned.add("S3: a create that lands later", late[-1])

    def land():
        while late:
            late.pop().release()

    network = [
        lambda: plan("cut", ANYTHING),
        lambda: plan("lose", ANYTHING),
        lambda: plan("twice", OUR_LOG, "PUT"),
        lambda: plan("delay", ANYTHING, delay_s=arena.rng.choice([0.3, 2.0])),
        answered,
        conflict,
        come_late,
        land,
    ]
    _besiege(siege, network, planned.count)
    land()
    planned.count()
    siege.judge()


class Planned:
    """Faults that wait for a request: each is counted when it has happened, and not when it was
    planned. Those whose request never comes prove nothing."""

    def __init__(self, siege):
        self._siege = siege
        self._faults = []

    def add(self, name, fault):
        self._faults.append((name, fault))

    def count(self):
        """Count those that have happened since."""
        met = [(name, fault) for name, fault in self._faults if fault.requests]
        self._faults = [(name, fault) for name, fault in self._faults if not fault.requests]
        for name, _ in met:
            self._siege.struck(name)


def on_hdfs(arena):
    """Kill, freeze and replace drivers whose checkpoint is on HDFS."""
    server = arena.enter(EmbeddedHdfs())
    url = f"{server.url}/{FOLDER}-{uuid.uuid4().hex[:8]}"
    place = Place(RemotePath(WebHdfs(server.web_url, url)), dict(server.spark_settings()))
    files = {"files": f"{url}-lake"} if arena.rng.random() < 0.7 else {}
    siege = _siege(arena, place, **files)
    _besiege(siege, [])
    siege.judge()


def _siege(arena, place, **config):
    """A query whose replays differ, or are the same; the rows are kept, or aren't."""
    redo = arena.rng.choice([{}, {"onceforall.redo": "durable"}])
    world = arena.world(
        arena.rng.choice(KINDS),
        arena.servers(),
        rows_per_batch=2000,
        place=place,
        diverging=arena.rng.random() < 0.5,
        options=redo,
        **config,
    )
    return Siege(arena, world, arena.watch(world))


def _besiege(siege, network, count=lambda: None):
    arena = siege.arena
    siege.begin()
    kills = [
        siege.kill_driver,
        siege.kill_driver_alone,
        siege.kill_jvm,
        siege.kill_workers,
        siege.lose_decided,
    ]
    others = [siege.second_driver, siege.freeze_driver]
    for number in itertools.count():
        if not arena.goes_on:
            return
        siege.a_moment()
        for _ in range(arena.rng.randint(1, 3) if network else 0):
            arena.rng.choice(network)()
        arena.rng.choice(others if number % 4 == 3 else kills)()
        siege.progress()
        count()
