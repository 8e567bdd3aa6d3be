"""Faults of the servers and of the way to them: a cluster's brokers, a proxy's tricks, rights
that are taken, prepared slots used up."""

import contextlib
import uuid

import psycopg
from psycopg import sql

from chaos.arena import DEADLINE_S, UNNOTICED
from chaos.nemeses_siege import Siege
from chaos.worlds import Servers
from onceforall.embedded import EmbeddedKafka, EmbeddedKafkaCluster
from onceforall.errors import EmbeddedServerError
from support.moving import TRANSACTIONS, make_whole, move_leader
from support.network_proxy import Api, KafkaProxy
from support.waiting import Story, until

IMPATIENT = {"socket.timeout.ms": 3000, "request.timeout.ms": 3000}
USER, PASSWORD = "ads", "hunter2-of-the-campaign"


def cluster(arena):
    """One of three brokers is killed, cut off (SIGSTOP), restarted, or loses a leadership, now and
    then together with the driver.

    Writes need two replicas in sync, so the query goes on without the third. A run may end with a
    failed task, a server that doesn't answer or a transaction that can't be decided in time; what
    was decided is completed. Nothing is lost with the broker that had it.
    """
    kafka = arena.enter(EmbeddedKafkaCluster())
    kind = arena.rng.choice(["kafka", "all"])
    servers = arena.servers(kafka=kafka) if kind == "all" else Servers(kafka, None)
    world = arena.world(kind, servers, sink_options=IMPATIENT, rows_per_batch=5000)
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        siege.a_moment()
        node = _victim(arena.rng, kafka, world.topic)
        strike = arena.rng.choice(
            [_kill_node, _kill_node, _kill_node_and_driver, _pause_node, _roll_node, _move_leaders]
        )
        strike(siege, kafka, node)
        siege.progress()
        make_whole(kafka)
    make_whole(kafka)
    siege.judge()


def _victim(rng, kafka, topic):
    """A broker that matters: one that leads the output or coordinates transactions, or any."""
    places = [(topic, 0), (topic, 1), (TRANSACTIONS, rng.randrange(6))]
    found = kafka.leader(*rng.choice(places)) if rng.random() < 0.8 else -1
    return found if found > 0 else rng.choice(list(kafka.nodes))


def _kill_node(siege, kafka, node):
    kafka.kill(node)
    siege.struck("one of three brokers killed", "broker")
    siege.progress()
    kafka.restart(node)


def _kill_node_and_driver(siege, kafka, node):
    kafka.kill(node)
    siege.struck("one of three brokers killed together with the driver", "broker")
    siege.kill_driver()
    siege.progress()
    kafka.restart(node)


def _pause_node(siege, kafka, node):
    kafka.pause(node)
    siege.struck("one of three brokers frozen until the others have replaced it, and woken")
    try:
        kafka.wait_until_whole(DEADLINE_S, without=[node])
        siege.progress()
    finally:
        kafka.resume(node)


def _roll_node(siege, kafka, node):
    siege.struck("one of three brokers restarted")
    kafka.restart(node)


def _move_leaders(siege, kafka, _node):
    rng = siege.arena.rng
    topic, number = rng.choice(
        [(siege.world.topic, 0), (siege.world.topic, 1), (TRANSACTIONS, rng.randrange(6))]
    )
    siege.struck("leadership moved to another broker")
    # The cluster may still be electing: then it moves by itself.
    with contextlib.suppress(AssertionError, EmbeddedServerError):
        move_leader(kafka, topic, number, rng.choice(list(kafka.nodes)))


def proxy(arena):
    """A proxy resets connections, delays requests, swallows answers, and releases a held EndTxn
    after the client has connected again.

    A late EndTxn must not end the transaction that came after its own. Runs may end with a failed
    task or a server that doesn't answer.
    """
    rng = arena.rng
    kafka = arena.enter(EmbeddedKafka())
    between = arena.enter(KafkaProxy(kafka.port))
    world = arena.world(
        "kafka",
        Servers(kafka, None, bootstrap=between.address),
        sink_options=IMPATIENT,
        rows_per_batch=rng.choice([2000, 8000]),
    )
    siege = Siege(arena, world, arena.watch(world))
    siege.begin(2)
    kinds = [
        Api.PRODUCE,
        Api.END_TXN,
        Api.END_TXN,
        Api.INIT_PRODUCER_ID,
        Api.ADD_PARTITIONS_TO_TXN,
        Api.FIND_COORDINATOR,
    ]
    while arena.goes_on:
        api = rng.choice(kinds)
        count = rng.randint(1, 3)
        match rng.choice(["reset", "delay", "swallow", "hold", "hold", "cut"]):
            case "reset":
                fault = between.reset(api, count=count)
                _until_it_happened(siege, fault, f"connection reset at {api.name}")
            case "delay":
                fault = between.delay(api, rng.choice([0.2, 1.0, 4.0]), count=count)
                _until_it_happened(siege, fault, f"{api.name} delayed")
            case "swallow":
                fault = between.swallow(api, count=count)
                _until_it_happened(siege, fault, f"answer to {api.name} swallowed")
            case "cut":
                between.cut()
                siege.struck("all connections reset")
            case "hold":
                _hold_an_end(siege, between)
        if rng.random() < 0.2:
            siege.kill_driver()
        siege.progress()
    siege.judge(bootstrap=kafka.bootstrap_servers)


def _until_it_happened(siege, fault, name):
    """A fault that is never met (the query has no more need of such a request) is called off."""

    def met():
        siege.keep_running()
        return bool(fault.requests)

    try:
        until(met, 20, f"a request for {name}")
        siege.struck(name)
    except AssertionError:
        fault.release()


def _hold_an_end(siege, between):
    """EndTxn reaches the broker only when the client has repeated it on another connection, and
    gone on to a later transaction."""
    held = between.hold(Api.END_TXN)
    _until_it_happened(siege, held, "EndTxn held")
    if not held.requests:
        return
    held.cut()
    siege.progress(siege.arena.rng.randint(1, 3))
    with contextlib.suppress(TimeoutError):
        if any(answer is not None for answer in held.release(DEADLINE_S)):
            siege.struck("held EndTxn released after a reconnect")
            return
    siege.struck(f"held EndTxn dropped{UNNOTICED}")


def acl(arena):
    """The right to write to the topic, or with the transactional ids, is taken from the running
    query and given back.

    Runs end with errors that name the right, or wait for it behind a decision, which stays: as soon
    as it is given back, all is completed.
    """
    kafka = arena.enter(EmbeddedKafka(users={USER: PASSWORD}))
    rights = Rights(kafka)
    prefix = f"chaos-{uuid.uuid4().hex[:8]}"
    secure = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(kafka.tls_dir / "ca.pem"),
    }
    kind = arena.rng.choice(["kafka", "all"])
    # Observers use the listener on which everything is allowed.
    servers = Servers(
        kafka,
        arena.servers(kafka=kafka).postgres if kind == "all" else None,
        bootstrap=kafka.sasl_servers,
        direct=kafka.bootstrap_servers,
    )
    world = arena.world(
        kind,
        servers,
        sink_options=secure,
        sink_arguments={"transactional_id_prefix": prefix},
        rows_per_batch=2000,
    )
    grants = rights.for_topic(world.topic), rights.for_ids(prefix)
    rights.grant(*grants)
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        siege.a_moment()
        taken = arena.rng.choice(grants)
        driver = siege.driver
        known = len(driver.errors()), len(driver.log())
        rights.revoke(taken)
        siege.struck(
            f"right to write to the {taken.restype.name.lower().replace('_', ' ')} revoked"
        )
        # How it shows depends on where the batch is: an error, or a commit that is asked for again.
        _until_it_hurts(driver, *known)
        if arena.rng.random() < 0.3:
            siege.kill_driver()
        rights.grant(taken)
        siege.progress()
    siege.judge()


def _until_it_hurts(driver, errors, length):
    """Wait until a run has failed, or a commit waits, since a right was taken."""

    def hurts():
        if driver.process.poll() is not None or len(driver.errors()) > errors:
            return True
        return "is tried again" in driver.log()[length:]

    until(hurts, DEADLINE_S, Story(lambda: f"the lack of a right shows\n{driver.tail()}"))


class Rights:
    """The ACLs of the campaign's user."""

    def __init__(self, kafka):
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    @staticmethod
    def for_topic(topic):
        from confluent_kafka.admin import (
            AclBinding,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        literal = ResourcePatternType.LITERAL
        return AclBinding(
            ResourceType.TOPIC,
            topic,
            literal,
            f"User:{USER}",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )

    @staticmethod
    def for_ids(prefix):
        from confluent_kafka.admin import (
            AclBinding,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        kind, prefixed = ResourceType.TRANSACTIONAL_ID, ResourcePatternType.PREFIXED
        return AclBinding(
            kind,
            f"{prefix}:",
            prefixed,
            f"User:{USER}",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )

    def grant(self, *bindings):
        for future in self._admin.create_acls(list(bindings)).values():
            future.result(30)

    def revoke(self, *bindings):
        from confluent_kafka.admin import AclBindingFilter

        filters = [
            AclBindingFilter(
                a.restype,
                a.name,
                a.resource_pattern_type,
                a.principal,
                a.host,
                a.operation,
                a.permission_type,
            )
            for a in bindings
        ]
        for future in self._admin.delete_acls(filters).values():
            assert future.result(30), "there was no such ACL"


def slots(arena):
    """Somebody else uses up PostgreSQL's prepared transactions, at random moments, and gives them
    back.

    A batch that finds no slot is aborted on all sinks, and a start is refused, with errors that
    name ``max_prepared_transactions``.
    """
    room = 8
    postgres = {"mode": "prepared"}
    kind = arena.rng.choice(["all", "postgres-prepared"])
    world = arena.world(
        kind,
        arena.servers(settings={"max_prepared_transactions": room}),
        postgres=postgres,
        rows_per_batch=5000,
    )
    siege = Siege(arena, world, arena.watch(world))
    siege.begin()
    while arena.goes_on:
        siege.a_moment()
        with Taken(world.servers.postgres.conninfo) as taken:
            _take_all(siege, taken, room)
            siege.struck("prepared slots used up")
            if arena.rng.random() < 0.3:
                siege.kill_driver()
        siege.progress()
    siege.judge()


def _take_all(siege, taken, room):
    """Take what is free until a run of the query has failed for want of it."""
    known = _without_slot(siege.world)

    def failed():
        siege.keep_running()
        taken.take(room)
        return _without_slot(siege.world) > known

    until(failed, DEADLINE_S, Story(lambda: f"a run without a slot\n{siege.driver.tail()}"))


def _without_slot(world):
    return sum(
        "max_prepared_transactions" in error
        for driver in world.drivers
        for error in driver.errors()
    )


class Taken:
    """Prepared transactions of somebody else's."""

    def __init__(self, conninfo):
        self._conninfo = conninfo
        self._names = []

    def __enter__(self):
        return self

    def take(self, room):
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            for _ in range(room):
                name = f"other-{uuid.uuid4().hex}"
                connection.execute("BEGIN")
                try:
                    connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(name)))
                    self._names.append(name)
                except psycopg.Error:
                    connection.execute("ROLLBACK")
                    return

    def __exit__(self, *_):
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            for name in self._names:
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(name)))
