"""Drivers and tasks that are killed or frozen at each step, and servers that go away: another
process completes or removes what is left."""

import json
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from onceforall.embedded import EmbeddedPostgres
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from support.postgres_sink import KEYED, TABLE, Query, prepared, rows, staging_tables, start
from support.relay import Relay
from support.waiting import until

pytestmark = pytest.mark.postgres


def only_long(point):
    return pytest.param(point, marks=pytest.mark.long)


def said(process):
    return [json.loads(line) for line in process.stdout.read().splitlines()]


def spec_of(url, steps, query_id, **more):
    return {"url": url, "query": query_id, "steps": steps, "rows": [[1, 2], [3]], **more}


def run_until_killed(spec, failpoint):
    with start(spec, f"{failpoint}=kill") as process:
        lines = said(process)
    assert process.returncode == -signal.SIGKILL, f"{failpoint} was not reached: {lines}"
    return dict(lines)


def gone(url, pattern="ofa-%"):
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE %s AND datname = "
        "current_database()"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query, [pattern]).fetchone()[0] == 0


def is_frozen(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_task_or_driver_that_is_killed_before_the_decision_leaves_nothing_that_a_sweep_does_not_find(
    database,
):
    query_id = str(uuid.uuid4())
    Query(database, TABLE, query=query_id, generation=0)
    generation = 1
    points = (
        "postgres.task.copied",
        "postgres.task.staged",
        "postgres.merge.marked",
        "postgres.confirm.merged",
    )
    for generation, point in enumerate(points, 1):
        run_until_killed(
            spec_of(database, ["write", "confirm"], query_id, generation=generation), point
        )
        later = Query(database, None, query=query_id, generation=generation + 1)
        until(
            lambda later=later: later.sweep() == 0 and staging_tables(database) == [],
            10,
            f"swept after {point}",
        )
        assert later.ids() == []
    later.commit(0, later.prepare(0, rows(4)))
    assert later.ids() == [4]


@pytest.mark.parametrize("point", ["postgres.commit.before", only_long("postgres.commit.after")])
def test_a_driver_that_is_killed_after_the_decision_is_completed_by_another_through_more_kills(
    database, point
):
    query_id = str(uuid.uuid4())
    Query(database, TABLE, query=query_id, generation=0)
    before = run_until_killed(spec_of(database, ["write", "confirm", "commit"], query_id), point)
    recovering = spec_of(database, ["commit"], query_id, generation=1, committables=before["write"])
    if point == "postgres.commit.before":
        run_until_killed(recovering, "postgres.merge.marked")
        run_until_killed(recovering, "postgres.commit.merged_again")
        run_until_killed(recovering, "postgres.commit.after")
    last = Query(database, None, query=query_id, generation=2)
    assert len(last.commit(0, before["write"]).retired) == 2
    assert last.ids() == [1, 2, 3]
    assert staging_tables(database) == []


def test_nobody_waits_for_a_frozen_driver_and_what_it_does_when_it_wakes_changes_nothing(database):
    query_id = str(uuid.uuid4())
    Query(database, KEYED, query=query_id, generation=0, key="id")
    options = {"key": "id"}
    spec = spec_of(database, ["write", "confirm", "commit"], query_id, options=options)
    with start(spec, "postgres.commit.before=freeze") as process:
        written = json.loads(process.stdout.readline())[1]
        until(lambda: is_frozen(process), 20, "the driver is frozen")
        later = Query(database, None, query=query_id, generation=2, **options)
        began = time.monotonic()
        assert len(later.commit(0, written).retired) == 2
        later.sweep()
        later.commit(1, later.prepare(1, rows(3, 4, v="newer")))
        assert time.monotonic() - began < 20
        process.send_signal(signal.SIGCONT)
        assert dict(said(process))["commit"] == [2, 0, 0]
    assert process.returncode == 0
    assert later.all() == [(1, "x"), (2, "x"), (3, "newer"), (4, "newer")]


def test_a_frozen_driver_that_nobody_decided_for_keeps_nothing_locked(database):
    query_id = str(uuid.uuid4())
    Query(database, KEYED, query=query_id, generation=0, key="id")
    options = {"key": "id"}
    with start(
        spec_of(database, ["write", "confirm"], query_id, options=options),
        "postgres.confirm.merged=freeze",
    ) as process:
        until(lambda: is_frozen(process), 20, "the driver is frozen")
        later = Query(database, None, query=query_id, generation=2, **options)
        until(lambda: later.sweep() == 0 and not staging_tables(database), 20, "swept")
        later.commit(0, later.prepare(0, rows(1, v="newer")))
        process.send_signal(signal.SIGCONT)
        said(process)
    assert later.all() == [(1, "newer")]
    assert staging_tables(database) == []


@pytest.mark.long
@pytest.mark.parametrize("point", ["postgres.merge.marked", "postgres.commit.merged_again"])
def test_two_successors_of_a_driver_that_is_frozen_while_it_merges_again_merge_once(
    database, point
):
    query_id = str(uuid.uuid4())
    first = Query(database, TABLE, query=query_id)
    decided = first.prepare(0, rows(1, 2), rows(3))
    first.sink.close()
    spec = spec_of(database, ["commit"], query_id, generation=2, committables=decided)
    with start(spec, f"{point}=freeze") as process:
        until(lambda: is_frozen(process), 20, "the driver is frozen")
        others = [
            Query(database, None, query=query_id, generation=generation) for generation in (3, 4)
        ]
        with ThreadPoolExecutor(2) as threads:
            reports = list(threads.map(lambda other: other.commit(0, decided), others))
        assert [len(report.retired) for report in reports] == [2, 2]
        others[1].commit(1, others[1].prepare(1, rows(4)))
        process.send_signal(signal.SIGCONT)
        process.wait(60)
    # The connection of the one that woke is gone, so its call says that it has no answer; it would
    # be asked again, and then find the marker.
    assert process.returncode != 0
    assert len(first.commit(0, decided).retired) == 2
    assert first.ids() == [1, 2, 3, 4]


@pytest.mark.long
def test_a_successor_that_confirms_before_any_sweep_ends_the_frozen_ones_transaction(database):
    query_id = str(uuid.uuid4())
    Query(database, TABLE, query=query_id, generation=0)
    with start(
        spec_of(database, ["write", "confirm"], query_id), "postgres.confirm.merged=freeze"
    ) as process:
        until(lambda: is_frozen(process), 20, "the driver is frozen")
        later = Query(database, None, query=query_id, generation=2)
        later.commit(0, later.prepare(0, rows(9)))
        process.send_signal(signal.SIGCONT)
        said(process)
    assert later.ids() == [9]
    later.sweep()
    assert staging_tables(database) == []


@pytest.mark.parametrize(
    "point",
    [
        only_long("postgres.task.applied"),
        "postgres.task.prepared",
        only_long("postgres.confirm.closed"),
    ],
)
def test_prepared_what_is_left_before_the_decision_is_rolled_back(database, point):
    query_id = str(uuid.uuid4())
    options = {"mode": "prepared", "key": "id"}
    Query(database, KEYED, query=query_id, generation=0, **options)
    run_until_killed(spec_of(database, ["write", "confirm"], query_id, options=options), point)
    later = Query(database, None, query=query_id, generation=2, **options)
    until(lambda: gone(database), 10, "the killed one's connections are gone")
    assert later.sweep() == len(prepared(database)) + {
        "postgres.task.applied": 0,
        "postgres.task.prepared": 1,
    }.get(point, 2)
    assert prepared(database) == []
    later.commit(0, later.prepare(0, rows(1, v="newer")))
    assert later.all() == [(1, "newer")]


@pytest.mark.parametrize(
    "point", [only_long("postgres.commit_prepared.before"), "postgres.commit_prepared.after"]
)
def test_prepared_what_is_decided_is_completed_by_another(database, point):
    query_id = str(uuid.uuid4())
    options = {"mode": "prepared"}
    Query(database, TABLE, query=query_id, generation=0, **options)
    before = run_until_killed(
        spec_of(database, ["write", "confirm", "commit"], query_id, options=options), point
    )
    later = Query(database, None, query=query_id, generation=2, **options)
    assert later.sweep(spared=before["write"]) == 0
    assert len(later.commit(0, before["write"]).retired) == 2
    assert len(later.commit(0, before["write"]).retired) == 2
    assert later.ids() == [1, 2, 3]


def test_nobody_waits_for_a_driver_that_is_frozen_while_it_marks_a_prepared_batch_as_complete(
    database,
):
    query_id = str(uuid.uuid4())
    options = {"mode": "prepared"}
    Query(database, TABLE, query=query_id, generation=0, **options)
    spec = spec_of(database, ["write", "confirm", "commit"], query_id, options=options)
    with start(spec, "postgres.mark_complete.marked=freeze") as process:
        written = json.loads(process.stdout.readline())[1]
        until(lambda: is_frozen(process), 20, "the driver is frozen")
        later = Query(database, None, query=query_id, generation=2, lock_timeout_s=30, **options)
        began = time.monotonic()
        assert len(later.commit(0, written).retired) == 2
        later.commit(1, later.prepare(1, rows(4)))
        assert time.monotonic() - began < 20
        process.send_signal(signal.SIGCONT)
        said(process)
    # Its connection is gone; it would be asked again, and then find the marker.
    assert process.returncode != 0
    assert later.ids() == [1, 2, 3, 4]


def test_a_frozen_driver_of_a_sink_that_was_renamed_since_keeps_nothing_locked(database):
    query_id = str(uuid.uuid4())
    Query(database, KEYED, query=query_id, generation=0, key="id")
    options = {"key": "id"}
    with start(
        spec_of(database, ["write", "confirm"], query_id, options=options),
        "postgres.confirm.merged=freeze",
    ) as process:
        until(lambda: is_frozen(process), 20, "the driver is frozen")
        later = Query(database, None, query=query_id, name="renamed", generation=2, **options)
        until(lambda: later.sweep() == 0 and not staging_tables(database), 20, "swept")
        later.commit(0, later.prepare(0, rows(1, v="newer")))
        process.send_signal(signal.SIGCONT)
        said(process)
    assert later.all() == [(1, "newer")]


@pytest.mark.parametrize("name", ["out", "renamed since"])
def test_a_frozen_task_of_a_prepared_batch_keeps_no_row_locked(database, name):
    query_id = str(uuid.uuid4())
    options = {"mode": "prepared", "key": "id"}
    first = Query(database, KEYED, query=query_id, generation=0, **options)
    first.commit(0, first.prepare(0, rows(8)))
    first.execute("DELETE FROM t")
    with start(
        spec_of(database, ["write"], query_id, options=options, batch=1),
        "postgres.task.applied=freeze",
    ) as process:
        until(lambda: is_frozen(process), 20, "the task is frozen")
        later = Query(database, None, query=query_id, name=name, generation=2, **options)
        later.sweep()
        later.commit(1, later.prepare(1, rows(1, v="newer")))
        process.send_signal(signal.SIGCONT)
        said(process)
    assert process.returncode != 0
    assert later.all() == [(1, "newer")]
    assert prepared(database) == []


@pytest.fixture(scope="module")
def own_server():
    with EmbeddedPostgres(settings={"max_prepared_transactions": 10}) as server:
        yield server


@pytest.fixture
def own(own_server):
    own_server.start()
    with psycopg.connect(own_server.conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS t")
    yield own_server
    own_server.start()
    until(lambda: gone(own_server.conninfo, "ofa-m-%"), 10, "connections are gone")
    assert staging_tables(own_server.conninfo) == []
    assert prepared(own_server.conninfo) == []


@pytest.mark.parametrize("mode", ["staged", "prepared"])
def test_a_server_that_is_killed_between_the_steps_keeps_what_was_prepared(own, mode):
    query = Query(own.conninfo, TABLE, mode=mode)
    committables = [query.write(0, rows(1, 2)), query.write(0, rows(3), partition=1)]
    own.kill()
    own.restart()
    query.sink.confirm(committables)
    own.kill()
    with pytest.raises(SinkUnavailableError):
        query.commit(0, committables)
    own.restart()
    assert len(query.commit(0, committables).retired) == 2
    assert query.ids() == [1, 2, 3]


def test_a_server_that_goes_away_in_mid_batch_fails_the_attempt_cleanly_and_a_restart_loses_nothing(
    own,
):
    query = Query(own.conninfo, TABLE, retry_for_s=1)
    transaction = query.sink.begin_transaction(query.attempt())
    query.sink.invoke(transaction, rows(1))
    own.kill()
    with pytest.raises((AttemptFailedError, SinkUnavailableError)):
        query.sink.pre_commit(transaction)
    query.sink.discard(transaction)
    with pytest.raises(SinkUnavailableError, match="did not take the connection"):
        query.sink.begin_transaction(query.attempt(slot=1))
    own.restart()
    committable = query.write(0, rows(1), slot=2)
    own.kill()
    with pytest.raises(SinkUnavailableError, match="did not succeed within 1 s"):
        query.sink.confirm([committable])
    own.restart()
    query.sink.confirm([committable])
    query.commit(0, [committable])
    assert query.ids() == [1]


def test_a_lost_answer_to_commit_is_found_out_by_the_marker(own):
    with Relay("127.0.0.1", own.port) as relay:
        query = Query(own.conninfo, TABLE)
        committable = query.write(0, rows(1, 2))
        through = Query(relay.url(own.conninfo), None, query=query.id)
        through.sink.confirm([committable])
        relay.lose_answers()
        with pytest.raises(SinkUnavailableError):
            through.commit(0, [committable])
        assert relay.lost > 0
        assert query.ids() == [1, 2]
        relay.work_again()
        assert len(through.commit(0, [committable]).retired) == 1
        assert query.ids() == [1, 2]


def test_lost_answers_to_a_task_and_to_commit_prepared_are_found_out(own):
    with Relay("127.0.0.1", own.port) as relay:
        query = Query(own.conninfo, TABLE, mode="prepared")
        through = Query(relay.url(own.conninfo), None, query=query.id, mode="prepared")
        transaction = through.sink.begin_transaction(through.attempt())
        through.sink.invoke(transaction, rows(1, 2))
        relay.lose_answers()
        with pytest.raises(AttemptFailedError):
            through.sink.pre_commit(transaction)
        relay.work_again()
        committable = through.write(0, rows(1, 2), slot=1)
        through.sink.confirm([committable])
        relay.lose_answers()
        with pytest.raises(SinkUnavailableError):
            through.commit(0, [committable])
        relay.work_again()
        assert len(through.commit(0, [committable]).retired) == 1
        assert query.ids() == [1, 2]
