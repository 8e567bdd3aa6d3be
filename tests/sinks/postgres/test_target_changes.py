"""A table that is replaced or altered while a query writes to it, rows that are not its own, and
those that it hides."""

from itertools import product

import pyarrow as pa
import pytest

from onceforall.errors import (
    AttemptFailedError,
    RefusedRecordError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sink import StartInfo
from onceforall.sinks.postgres import merging
from onceforall.sinks.postgres.sink import PostgresSink
from support.postgres_sink import KEYED, TABLE, Query, make_role, rows

pytestmark = pytest.mark.postgres

MODES = ["staged", "prepared", "upsert"]
REPLACED = {
    "a view": "ALTER TABLE t RENAME TO old; CREATE VIEW t AS SELECT * FROM old",
    "an unlogged table": "ALTER TABLE t RENAME TO old; CREATE UNLOGGED TABLE t (LIKE old "
    "INCLUDING ALL)",
    "the same table, unlogged": "ALTER TABLE t SET UNLOGGED",
    "another table": "ALTER TABLE t RENAME TO old; CREATE TABLE t (LIKE old INCLUDING ALL)",
}


def rows_of(query, table):
    return query.execute(f"SELECT count(*) FROM {table}")[0][0]


@pytest.mark.parametrize("what", REPLACED)
@pytest.mark.parametrize("mode", MODES)
def test_a_table_that_is_replaced_while_the_query_runs_gets_nothing(database, mode, what):
    query = Query(database, KEYED, mode=mode, key="id")
    for statement in REPLACED[what].split("; "):
        query.execute(statement)
    with pytest.raises(
        AttemptFailedError,
        match=r"unlogged|logged table any more|another table than|arbiter|no unique or exclusion",
    ):
        query.prepare(0, rows(1, 2))
    assert rows_of(query, "t") == 0
    query.sweep(own=True)
    if what == "another table":
        again = query.successor()
        again.write(0, rows(1, 2)) if mode == "upsert" else again.commit(
            0, again.prepare(0, rows(1, 2))
        )
        assert rows_of(again, "t") == 2


@pytest.mark.parametrize("what", ["a view", "an unlogged table"])
def test_behind_the_decision_what_cannot_keep_rows_is_waited_for(database, what):
    query = Query(database)
    committables = query.prepare(0, rows(1, 2))
    query.sink.close()
    for statement in REPLACED[what].split("; "):
        query.execute(statement)
    with pytest.raises(SinkUnavailableError, match="no permanent, logged table any more"):
        query.commit(0, committables)
    assert rows_of(query, "t") == 0
    query.execute("DROP VIEW t" if what == "a view" else "DROP TABLE t")
    query.execute("ALTER TABLE old RENAME TO t")
    assert len(query.commit(0, committables).retired) == 1
    assert query.ids() == [1, 2]


def test_behind_the_decision_another_table_of_the_same_kind_takes_the_rows(database):
    """It has been put there on purpose, and a start looks at it; the rows must go somewhere."""
    query = Query(database)
    committables = query.prepare(0, rows(1, 2))
    query.sink.close()
    for statement in REPLACED["another table"].split("; "):
        query.execute(statement)
    assert len(query.commit(0, committables).retired) == 1
    assert query.ids() == [1, 2]


NUMBERS = "CREATE TABLE t (id bigint, v text, n numeric(10, 2) DEFAULT 1.55)"


def numbers():
    import decimal

    import pyarrow as pa

    values = pa.array([decimal.Decimal("1.55")], pa.decimal128(10, 2))
    return pa.RecordBatch.from_pydict(
        {"id": pa.array([1], pa.int64()), "v": pa.array(["x"]), "n": values}
    )


@pytest.mark.parametrize("new", ["integer", "numeric(10,1)", "real"])
def test_a_column_whose_type_changes_between_task_and_merge_rounds_nothing(database, new):
    query = Query(database, NUMBERS)
    staged = query.write(0, numbers())
    query.execute(f"ALTER TABLE t ALTER COLUMN n TYPE {new}")
    with pytest.raises(
        AttemptFailedError, match=r"Column n of public.t was numeric\(10,2\).* and is"
    ):
        query.sink.confirm([staged])
    query.execute("ALTER TABLE t ALTER COLUMN n TYPE numeric(10,2)")
    decided = list(query.sink.confirm([staged]))
    query.sink.close()
    query.execute(f"ALTER TABLE t ALTER COLUMN n TYPE {new}")
    with pytest.raises(SinkUnavailableError, match="Column n of"):
        query.commit(0, decided)
    query.execute("ALTER TABLE t ALTER COLUMN n TYPE numeric")
    assert len(query.commit(0, decided).retired) == 1
    assert str(query.execute("SELECT n FROM t")[0][0]) == "1.55"


@pytest.mark.parametrize(
    ("old", "new", "is_taken"),
    [
        ("text", "varchar", True),
        ("varchar(3)", "varchar", True),
        ("varchar(3)", "text", True),
        ("varchar(3)", "varchar(5)", True),
        ("varchar(5)", "varchar(3)", False),
        ("text", "varchar(3)", False),
        ("text", "char(3)", False),
        ("char(3)", "char(5)", False),
        ("char(3)", "text", False),
    ],
)
def test_a_text_that_changes_between_task_and_merge_is_taken_where_all_texts_fit(
    database, old, new, is_taken
):
    query = Query(database, f"CREATE TABLE t (id bigint, v {old})")
    decided = query.prepare(0, rows(1, v="x  "))
    query.sink.close()
    query.execute(f"ALTER TABLE t ALTER COLUMN v TYPE {new}")
    if is_taken:
        assert len(query.commit(0, decided).retired) == 1
        assert query.all() == [(1, "x  ")]
        return
    with pytest.raises(SinkUnavailableError, match="Column v of"):
        query.commit(0, decided)
    assert query.all() == []
    query.execute(f"ALTER TABLE t DROP COLUMN v, ADD COLUMN v {old}")
    assert len(query.commit(0, decided).retired) == 1


@pytest.mark.parametrize(
    ("new", "is_taken"),
    [
        ("numeric(12,2)", True),
        ("numeric(12,3)", False),
        ("numeric(9,2)", False),
        ("numeric(10,1)", False),
    ],
)
def test_a_number_that_gets_more_digits_between_task_and_merge_is_taken(database, new, is_taken):
    query = Query(database, NUMBERS)
    decided = query.prepare(0, numbers())
    query.sink.close()
    query.execute(f"ALTER TABLE t ALTER COLUMN n TYPE {new}")
    if not is_taken:
        with pytest.raises(SinkUnavailableError, match="Column n of"):
            query.commit(0, decided)
        query.execute("ALTER TABLE t ALTER COLUMN n TYPE numeric(10,2)")
    assert len(query.commit(0, decided).retired) == 1
    assert str(query.execute("SELECT n FROM t")[0][0]) == "1.55"


def test_complete_leaves_the_rows_of_tables_that_inherit_and_takes_those_of_partitions(database):
    query = Query(database, output_mode="complete")
    query.execute("CREATE TABLE child (extra int) INHERITS (t)")
    query.execute("INSERT INTO child VALUES (100, 'of the child', 1)")
    for batch in (0, 1):
        query.commit(batch, query.prepare(batch, rows(batch)))
    assert query.ids() == [1, 100]
    assert query.execute("SELECT id FROM ONLY t") == [(1,)]
    query.execute("DROP TABLE t CASCADE")
    parted = Query(
        database,
        "CREATE TABLE t (id bigint, v text) PARTITION BY RANGE (id)",
        output_mode="complete",
    )
    parted.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    for batch in (0, 1):
        parted.commit(batch, parted.prepare(batch, rows(batch, 5)))
    assert parted.ids() == [1, 5]


def test_complete_is_refused_where_row_security_hides_rows(database):
    query = Query(database, "CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    # A hidden row is in the way of a new one, which would be told as its conflict.
    query.execute("INSERT INTO t VALUES (50, 'hidden')")
    query.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    query.execute("CREATE POLICY few ON t USING (id < 10)")
    name = database.rsplit("/", 1)[1].partition("?")[0]
    grants = (
        "GRANT SELECT, INSERT, DELETE ON t TO {role}",
        f'GRANT CREATE ON DATABASE "{name}" TO {{role}}',
    )
    role, url = make_role(database, *grants)
    sink = PostgresSink(url, "t", staging_schema=f"of_{role}")
    sink.check(StartInfo("q", "out"))
    with pytest.raises(SinkCheckError, match="Row security hides rows"):
        sink.check(StartInfo("q", "out", output_mode="complete"))
    later = Query(url, None, staging_schema=f"of_{role}", output_mode="append")
    later.sink._output_mode = "complete"
    staged = later.write(0, rows(50))
    with pytest.raises(AttemptFailedError, match="Row security hides rows"):
        later.sink.confirm([staged])
    later.sink.abort([staged])


@pytest.mark.parametrize("persistence", ["", "UNLOGGED"])
def test_an_unlogged_partition_is_refused_at_start(database, persistence):
    query = Query(database, "CREATE TABLE t (id bigint, v text) PARTITION BY RANGE (id)")
    query.execute(f"CREATE {persistence} TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)")
    if not persistence:
        query.successor()
        return
    with pytest.raises(SinkCheckError, match="partition low of t is unlogged"):
        query.successor()


def test_committables_of_earlier_releases_are_read(database):
    query = Query(database, TABLE)
    committables = query.prepare(0, rows(1))
    query.sink.close()
    for each in committables:
        del each["target"]["oid"]
    assert len(query.commit(0, committables).retired) == 1


PARTED = """
CREATE TABLE t (id bigint, v text) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100);
CREATE TABLE mid PARTITION OF t FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id);
CREATE TABLE mid_1 PARTITION OF mid FOR VALUES FROM (100) TO (150);
"""
BECOME_UNFIT = {
    "set unlogged": ("ALTER TABLE low SET UNLOGGED", "low", "ALTER TABLE low SET LOGGED"),
    "below a partition": (
        "ALTER TABLE mid_1 SET UNLOGGED",
        "mid_1",
        "ALTER TABLE mid_1 SET LOGGED",
    ),
    "made": (
        "CREATE UNLOGGED TABLE high PARTITION OF t FOR VALUES FROM (200) TO (300)",
        "high",
        "DROP TABLE high",
    ),
    "attached": (
        (
            "CREATE UNLOGGED TABLE high (LIKE t INCLUDING ALL); ALTER TABLE t ATTACH PARTITION high "
            "FOR VALUES FROM (200) TO (300)"
        ),
        "high",
        "ALTER TABLE high SET LOGGED",
    ),
    "foreign": (
        """CREATE FOREIGN DATA WRAPPER away; CREATE SERVER away FOREIGN DATA WRAPPER away;
        CREATE FOREIGN TABLE high PARTITION OF t FOR VALUES FROM (200) TO (300) SERVER away""",
        "high",
        "DROP FOREIGN TABLE high",
    ),
}


# A unique index, which key= needs, allows no foreign partition.
@pytest.mark.parametrize(
    ("mode", "what"),
    [*product(MODES[:2], BECOME_UNFIT), *product(MODES[2:], list(BECOME_UNFIT)[:-1])],
)
def test_a_partition_that_cannot_keep_rows_is_found_while_the_query_runs(database, mode, what):
    """A crash of the server would empty it, behind a marker that says: complete."""
    change, partition, remedy = BECOME_UNFIT[what]
    key = "id" if mode == "upsert" else None
    query = Query(
        database,
        PARTED.replace("(id bigint,", "(id bigint PRIMARY KEY,") if key else PARTED,
        mode=mode,
        key=key,
    )

    def write(batch):
        return (
            query.write(batch, rows(1, 110))
            if key
            else query.commit(batch, query.prepare(batch, rows(1, 110)))
        )

    write(0)
    query.execute(change)
    with pytest.raises(
        AttemptFailedError, match=f"partition {partition} of public.t is (unlogged|a foreign table)"
    ):
        query.write(1, rows(2, 111)) if key else query.prepare(1, rows(2, 111))
    assert query.ids() == [1, 110] if what != "foreign" else rows_of(query, "low") == 1
    query.sweep(own=True)
    query.execute(remedy)
    write(2)


def test_behind_the_decision_an_unlogged_partition_is_waited_for(database):
    query = Query(database, PARTED)
    decided = query.prepare(0, rows(1))
    query.sink.close()
    query.execute("ALTER TABLE low SET UNLOGGED")
    with pytest.raises(
        SinkUnavailableError,
        match="partition low of public.t is unlogged.*ALTER TABLE low SET LOGGED",
    ):
        query.commit(0, decided)
    query.execute("ALTER TABLE low SET LOGGED")
    assert len(query.commit(0, decided).retired) == 1
    assert query.ids() == [1]


def test_partitions_that_get_no_row_are_not_locked_until_the_decision(database):
    query = Query(database, PARTED)
    decided = query.prepare(0, rows(1))
    query.execute("SET lock_timeout = '1s'; ALTER TABLE mid_1 ADD CHECK (id > 0)")
    assert len(query.commit(0, decided).retired) == 1
    assert query.ids() == [1]


@pytest.mark.parametrize("mode", ["prepared", "upsert", "staged"])
def test_a_key_whose_collation_is_changed_while_the_query_runs_gets_no_row_by_tasks(database, mode):
    """Spark brought "a" and "A" to two tasks: the later one would win, or each wait for the other."""
    query = Query(database, "CREATE TABLE t (id text PRIMARY KEY, v text)", mode=mode, key="id")
    query.execute(
        "CREATE COLLATION ci (provider=icu, locale='und-u-ks-level2', deterministic=false)"
    )
    query.execute("ALTER TABLE t ALTER id TYPE text COLLATE ci")

    def row(key):
        return pa.RecordBatch.from_pydict({"id": [key], "v": ["x"]})

    if mode == "staged":  # The server compares the keys of a batch itself.
        committables = [
            query.write(0, row("a"), partition=0),
            query.write(0, row("A"), partition=1),
        ]
        with pytest.raises(RefusedRecordError, match="2 rows with the key id='[aA]'"):
            query.sink.confirm(committables)
        query.sink.abort(committables)
    else:
        with pytest.raises(AttemptFailedError, match=r"Column id of the key .* collation ci now"):
            query.write(0, row("a"))
    assert query.all() == []
    query.sink.close()


LOOSE = "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
STRICT, BLIND = 'text COLLATE "C"', "text COLLATE ci"


def keyed(*pairs):
    return pa.RecordBatch.from_pydict(
        {"k": [key for key, _ in pairs], "n": pa.array([n for _, n in pairs], pa.int64())}
    )


def merged_after(query, change, *parts, is_decided=False):
    """Change the table between the tasks and the merge, or between the decision and a merge in
    another process."""
    written = [query.write(0, part, partition=at) for at, part in enumerate(parts)]
    if is_decided:
        written = list(query.sink.confirm(written))
        query.sink.close()
        query = query.successor()
    query.execute(change)
    try:
        return query.commit(0, written if is_decided else list(query.sink.confirm(written)))
    finally:
        query.sink.close()


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize(
    ("old", "new", "sums"),
    [(BLIND, STRICT, [("A", 20), ("a", 1)]), (STRICT, BLIND, [("a", 21)])],
    ids=["tells more apart", "tells less apart"],
)
def test_rows_add_up_by_the_collation_that_the_key_has_when_they_are_merged(
    database, old, new, sums, is_decided
):
    ddl = f"{LOOSE} CREATE TABLE t (k {old} PRIMARY KEY, n bigint)"
    query = Query(database, ddl, key="k", accumulate={"n": "sum"})
    change = f"ALTER TABLE t ALTER k TYPE {new}"
    merged_after(query, change, keyed(("a", 1), ("A", 20)), is_decided=is_decided)
    found = query.execute('SELECT k COLLATE "C", n FROM t')
    assert sorted((key.lower() if len(found) == 1 else key, n) for key, n in found) == sums


@pytest.mark.parametrize("is_decided", [False, True])
def test_the_greatest_text_is_that_of_the_collation_that_the_column_has_at_the_merge(
    database, is_decided
):
    ddl = f"{LOOSE} CREATE TABLE t (k bigint PRIMARY KEY, v {STRICT})"
    query = Query(database, ddl, key="k", accumulate={"v": "max"})
    part = pa.RecordBatch.from_pydict({"k": pa.array([1, 1], pa.int64()), "v": ["a", "B"]})
    merged_after(query, f"ALTER TABLE t ALTER v TYPE {BLIND}", part, is_decided=is_decided)
    assert query.execute("SELECT k, v FROM t") == [(1, "B")]


KEY_ALONE = pa.RecordBatch.from_pydict({"k": ["a", "A"]})
TWO_GROUPS = [keyed(("a", 1)), pa.RecordBatch.from_pydict({"k": ["A"]})]
ONE_KEY_TWICE = {
    "replacing": ({}, [keyed(("a", 1), ("A", 20))]),
    "ignoring": ({"on_conflict": "ignore"}, [keyed(("a", 1)), keyed(("A", 20))]),
    "the key alone": ({}, [KEY_ALONE]),
    "other columns": ({}, TWO_GROUPS),
}


@pytest.mark.parametrize("is_decided", [False, True])
@pytest.mark.parametrize("what", ONE_KEY_TWICE)
def test_keys_that_are_one_by_a_collation_that_came_later_lose_no_row(database, what, is_decided):
    options, parts = ONE_KEY_TWICE[what]
    query = Query(
        database, f"{LOOSE} CREATE TABLE t (k {STRICT} PRIMARY KEY, n bigint)", key="k", **options
    )
    written = [query.write(0, part, partition=at) for at, part in enumerate(parts)]
    if is_decided:
        written = list(query.sink.confirm(written))
        query.sink.close()
    query.execute(f"ALTER TABLE t ALTER k TYPE {BLIND}")
    said = "2 rows with the key k='[aA]'.* the collation back"
    later = query.successor() if is_decided else query
    for _ in range(2):
        with pytest.raises(SinkUnavailableError if is_decided else RefusedRecordError, match=said):
            later.commit(0, written) if is_decided else later.sink.confirm(written)
    assert rows_of(query, "t") == 0
    query.execute(f"ALTER TABLE t ALTER k TYPE {STRICT}")
    assert not later.commit(0, written if is_decided else list(later.sink.confirm(written))).lost
    assert sorted(query.execute("SELECT k FROM t")) == [("A",), ("a",)]
    later.sink.close()


def test_tasks_before_and_behind_a_change_of_collation_are_merged_together(database):
    query = Query(
        database,
        f"{LOOSE} CREATE TABLE t (k {STRICT} PRIMARY KEY, n bigint)",
        key="k",
        accumulate={"n": "sum"},
    )
    first = query.write(0, keyed(("a", 1)), partition=0)
    query.execute(f"ALTER TABLE t ALTER k TYPE {BLIND}")
    second = query.write(0, keyed(("A", 20)), partition=1)
    assert not query.commit(0, list(query.sink.confirm([first, second]))).lost
    assert query.execute("SELECT lower(k), n FROM t") == [("a", 21)]


def test_a_collation_that_is_changed_during_the_merge_ends_it(database, monkeypatch):
    query = Query(
        database,
        f"{LOOSE} CREATE TABLE t (k {STRICT} PRIMARY KEY, n bigint)",
        key="k",
        on_conflict="ignore",
    )
    written = [query.write(0, keyed(("a", 1), ("A", 20)))]
    refuse = merging.refuse_doubled_keys

    def change(*arguments):
        refuse(*arguments)
        query.execute(f"ALTER TABLE t ALTER k TYPE {BLIND}")

    with monkeypatch.context() as patched:
        patched.setattr(merging, "refuse_doubled_keys", change)
        with pytest.raises(AttemptFailedError, match="collation of a column of .* altered"):
            query.sink.confirm(written)
    with pytest.raises(RefusedRecordError, match="2 rows with the key"):
        query.sink.confirm(written)
    assert rows_of(query, "t") == 0
    query.sink.abort(written)


def test_a_row_that_is_refused_is_named_by_the_collation_of_the_merge(database):
    """Only the sum of both is too large."""
    query = Query(
        database,
        f"{LOOSE} CREATE TABLE t (k {STRICT} PRIMARY KEY, n bigint)",
        key="k",
        accumulate={"n": "sum"},
    )
    written = [query.write(0, keyed(("a", 2**63 - 1), ("A", 20)))]
    query.execute(f"ALTER TABLE t ALTER k TYPE {BLIND}")
    with pytest.raises(RefusedRecordError, match="out of range.* The first such row: k='A'"):
        query.sink.confirm(written)
    query.sink.abort(written)


def test_a_collation_beside_the_key_may_change(database):
    """Nothing is compared by it."""
    query = Query(database, f"{LOOSE} CREATE TABLE t (k text, v {STRICT})")
    part = pa.RecordBatch.from_pydict({"k": ["a"], "v": ["x"]})
    merged_after(query, f"ALTER TABLE t ALTER v TYPE {BLIND}", part)
    assert query.execute("SELECT k, v FROM t") == [("a", "x")]


@pytest.mark.parametrize(
    ("old", "new"),
    [("varchar(3)", 'varchar(3) COLLATE "of us"."c""i"'), ("word", 'word COLLATE "of us"."c""i"')],
)
def test_a_key_with_a_length_or_of_a_domain_may_change_its_collation(database, old, new):
    ddl = f"""{LOOSE} CREATE SCHEMA "of us"; CREATE COLLATION "of us"."c""i" FROM ci;
        CREATE DOMAIN word text; CREATE TABLE t (k {old} PRIMARY KEY, n bigint)"""
    query = Query(database, ddl, key="k", accumulate={"n": "sum"})
    merged_after(query, f"ALTER TABLE t ALTER k TYPE {new}", keyed(("a", 1), ("A", 20)))
    assert query.execute("SELECT pg_catalog.lower(k), n FROM t") == [("a", 21)]


def test_a_key_that_becomes_a_text_is_named_by_its_types(database):
    query = Query(database, KEYED, key="id", on_conflict="ignore")
    written = [query.write(0, rows(1, 2))]
    query.execute("ALTER TABLE t ALTER id TYPE text")
    with pytest.raises(AttemptFailedError, match="Column id of public.t was bigint"):
        query.sink.confirm(written)
    query.sink.abort(written)


KEEPERS = {
    "trigger": (
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
        "CREATE TRIGGER keep BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION keep()"
    ),
    "rule": "CREATE RULE keep AS ON DELETE TO t DO INSTEAD NOTHING",
}


@pytest.mark.parametrize("what", KEEPERS)
@pytest.mark.parametrize("is_partitioned", [False, True])
def test_complete_is_refused_where_something_keeps_the_rows_that_are_there(
    database, what, is_partitioned
):
    ddl = TABLE
    if is_partitioned:
        ddl += " PARTITION BY RANGE (id); CREATE TABLE p PARTITION OF t DEFAULT"
    query = Query(database, ddl, output_mode="complete")
    query.execute("CREATE TABLE heir () INHERITS (t)") if not is_partitioned else None
    query.execute("INSERT INTO heir VALUES (9, 'not its own')") if not is_partitioned else None
    query.commit(0, query.prepare(0, rows(1)))
    query.execute(KEEPERS[what])
    committables = [query.write(1, rows(2))]
    kept = "some are left after its DELETE: a trigger or a rule"
    kept = "has the rule keep on DELETE, DO INSTEAD" if what == "rule" else kept
    with pytest.raises(AttemptFailedError, match=kept):
        query.sink.confirm(committables)
    query.sink.abort(committables)
    assert [number for number in query.ids() if number != 9] == [1]
    if what == "rule":
        with pytest.raises(SinkCheckError, match="rule keep on DELETE, DO INSTEAD"):
            query.successor()
    query.execute(f"DROP {what} keep ON t")
    later = query.successor()
    later.commit(1, later.prepare(1, rows(2)))
    assert [number for number in later.ids() if number != 9] == [2]


REFERRED = f"{KEYED}; CREATE TABLE orders (o int, id bigint)"


def refer(query, does, table="orders"):
    query.execute(
        f"ALTER TABLE {table} ADD CONSTRAINT refers FOREIGN KEY (id) REFERENCES t ON DELETE {does}"
    )


@pytest.mark.parametrize("does", ["CASCADE", "SET NULL", "SET DEFAULT"])
@pytest.mark.parametrize("is_partitioned", [False, True])
def test_complete_is_refused_where_it_would_change_rows_that_refer_to_its_own(
    database, does, is_partitioned
):
    ddl = REFERRED
    if is_partitioned:
        ddl = ddl.replace("text)", "text) PARTITION BY RANGE (id)", 1)
        ddl += "; CREATE TABLE p PARTITION OF t DEFAULT"
    query = Query(database, ddl, output_mode="complete", key="id")
    query.commit(0, query.prepare(0, rows(1, 7)))
    decided = query.prepare(1, rows(1, 7, 8))
    query.sink.close()
    query.execute("INSERT INTO orders VALUES (5, 1)")
    refer(query, does)
    why = f"orders refers to .*t by the foreign key refers, ON DELETE {does}, .* would change rows"
    with pytest.raises(SinkUnavailableError, match=why):
        query.commit(1, decided)
    with pytest.raises(SinkCheckError, match=why):
        query.successor()
    assert query.execute("SELECT * FROM orders") == [(5, 1)]
    query.execute("ALTER TABLE orders DROP CONSTRAINT refers")
    refer(query, "NO ACTION DEFERRABLE INITIALLY DEFERRED")
    query.commit(1, decided)
    staged = [query.write(2, rows(1))]
    query.execute("ALTER TABLE orders DROP CONSTRAINT refers")
    refer(query, does)
    with pytest.raises(AttemptFailedError, match=why):
        query.sink.confirm(staged)
    query.sink.abort(staged)
    assert (query.ids(), query.execute("SELECT * FROM orders")) == ([1, 7, 8], [(5, 1)])


@pytest.mark.parametrize(
    ("does", "is_told"),
    [
        ("NO ACTION", True),
        ("RESTRICT", True),
        ("NO ACTION DEFERRABLE", True),
        ("NO ACTION DEFERRABLE INITIALLY DEFERRED", False),
    ],
)
def test_a_start_tells_that_complete_will_be_refused_for_rows_that_refer_to_its_own(
    database, caplog, does, is_told
):
    query = Query(database, REFERRED, key="id", output_mode="append")
    query.commit(0, query.prepare(0, rows(1)))
    query.execute("INSERT INTO orders VALUES (5, 1)")
    refer(query, does)
    later = query.successor(output_mode="complete")
    told = [record for record in caplog.records if "foreign key refers" in record.getMessage()]
    assert len(told) == is_told
    if is_told:
        assert "PostgreSQL refuses each batch while a row of orders" in told[0].getMessage()
        with pytest.raises(RefusedRecordError, match="foreign key is violated"):
            later.prepare(1, rows(1, 2))
        later.sweep(own=True)
    else:
        later.commit(1, later.prepare(1, rows(1, 2)))
    assert (query.ids(), query.execute("SELECT * FROM orders")) == (
        [1] if is_told else [1, 2],
        [(5, 1)],
    )


def test_complete_may_replace_a_table_that_refers_to_itself_or_whose_heirs_are_referred_to(
    database, caplog
):
    query = Query(database, f"{KEYED}; CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (t)")
    query.execute("ALTER TABLE t ADD up bigint REFERENCES t ON DELETE CASCADE")
    query.execute("INSERT INTO heir VALUES (9, 'h')")
    query.execute("CREATE TABLE orders (id bigint REFERENCES heir ON DELETE CASCADE)")
    query.execute("INSERT INTO orders VALUES (9)")
    later = query.successor(output_mode="complete")
    later.commit(0, later.prepare(0, rows(1, 2)))
    later.commit(1, later.prepare(1, rows(2, 3)))
    assert (query.ids(), rows_of(query, "orders")) == ([2, 3, 9], 1)
    assert "foreign key" not in caplog.text


INSTEAD = {
    "nothing": "CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING",
    "nothing, of some rows": "CREATE RULE r AS ON INSERT TO t WHERE NEW.id > 5 DO INSTEAD NOTHING",
    "another table": "CREATE RULE r AS ON INSERT TO t DO INSTEAD INSERT INTO other VALUES (NEW.id)",
}
WRITES = {
    "staged": {},
    "staged by key": {"key": "id"},
    "staged, ignoring": {"key": "id", "on_conflict": "ignore"},
    "staged, replacing": {"output_mode": "complete"},
    "prepared": {"mode": "prepared"},
    "prepared by key": {"mode": "prepared", "key": "id"},
    "upsert": {"mode": "upsert", "key": "id"},
}
LOST = "has the rule r on INSERT, DO INSTEAD: rows would be lost"


def write_all(query, batch, *numbers):
    if query.options.get("mode") == "upsert":
        query.write(batch, rows(*numbers))
    else:
        assert not query.commit(batch, query.prepare(batch, rows(*numbers))).lost


@pytest.mark.parametrize(
    ("how", "rule"),
    [*product(WRITES, ["nothing"]), *product(["staged", "staged by key"], list(INSTEAD)[1:])],
)
def test_a_rule_that_takes_rows_away_while_the_query_runs_ends_the_batch(database, how, rule):
    query = Query(database, f"{KEYED}; CREATE TABLE other (id bigint)", **WRITES[how])
    write_all(query, 0, 1, 2)
    query.execute(INSTEAD[rule])
    with pytest.raises(AttemptFailedError, match=LOST):
        write_all(query, 1, 1, 2, 3, 7) if "key" in WRITES[how] else write_all(query, 1, 3, 7)
    assert query.ids() == [1, 2]
    query.sweep(own=True)
    with pytest.raises(SinkCheckError, match=LOST):
        query.successor()
    query.execute("DROP RULE r ON t")
    write_all(query.successor(), 1, 3, 7)
    assert query.ids() == ([3, 7] if how == "staged, replacing" else [1, 2, 3, 7])
    assert rows_of(query, "other") == 0


@pytest.mark.parametrize(
    "rule", ["DO ALSO NOTHING", "DO ALSO INSERT INTO other VALUES (NEW.id)", "DO INSTEAD NOTHING"]
)
def test_a_rule_that_takes_nothing_away_is_no_obstacle(database, rule):
    """What it does also is its maker's own, as with a trigger; and one that is off does nothing."""
    query = Query(database, f"{TABLE}; CREATE TABLE other (id bigint)")
    query.execute(f"CREATE RULE r AS ON INSERT TO t {rule}")
    if "INSTEAD" in rule:
        query.execute("ALTER TABLE t DISABLE RULE r")
    write_all(query.successor(), 0, 1, 2)
    assert query.ids() == [1, 2]
    assert rows_of(query, "other") == (2 if "INSERT" in rule else 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_rule_on_update_that_is_made_while_the_query_runs_is_named(database, mode):
    query = Query(database, KEYED, mode=mode, key="id")
    query.execute("CREATE RULE r AS ON UPDATE TO t DO ALSO NOTHING")
    with pytest.raises(AttemptFailedError, match="has the rule r on UPDATE, DO ALSO, and"):
        write_all(query, 0, 1, 2)
    assert query.ids() == []
    query.sweep(own=True)


CHANGED = {
    "a rule that takes rows away": (
        INSTEAD["nothing"],
        "DROP RULE r ON t",
        "has the rule r on INSERT, DO INSTEAD",
    ),
    "a rule on UPDATE": (
        "CREATE RULE r AS ON UPDATE TO t DO INSTEAD NOTHING",
        "DROP RULE r ON t",
        "has the rule r on UPDATE.*no ON CONFLICT",
    ),
    "the key's index": (
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        r"CREATE UNIQUE INDEX ON public.t \(id\)",
    ),
    "an index that can be deferred": (
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id)",
        "NOT DEFERRABLE",
    ),
    "an identity": (
        "ALTER TABLE t ALTER id ADD GENERATED ALWAYS AS IDENTITY",
        "ALTER TABLE t ALTER id DROP IDENTITY",
        "DROP IDENTITY",
    ),
    "a column's name": (
        "ALTER TABLE t RENAME v TO w",
        "ALTER TABLE t RENAME w TO v",
        "Name the column again",
    ),
    "a table's name": ("ALTER TABLE t RENAME TO w", "ALTER TABLE w RENAME TO t", "Put .* back"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_behind_the_decision_what_takes_no_rows_any_more_is_named_and_waited_for(database, what):
    change, back, named = CHANGED[what]
    query = Query(database, KEYED, key="id")
    committables = query.prepare(0, rows(1, 2))
    query.sink.close()
    query.execute(change)
    with pytest.raises(SinkUnavailableError, match=f"Batch 0 is decided, .*{named}"):
        query.commit(0, committables)
    query.execute(back)
    assert query.ids() == []
    assert len(query.commit(0, committables).retired) == 1
    assert query.ids() == [1, 2]
