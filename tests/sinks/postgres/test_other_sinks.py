"""What two sinks of one query can't have in one batch is refused at start; ``other_sinks`` says
why."""

import psycopg
import pytest

from onceforall.driver.query_run import check_sinks
from onceforall.errors import SinkCheckError, SinkUnavailableError
from onceforall.sinks.postgres.sink import PostgresSink
from support.postgres_sink import Query, rows

pytestmark = pytest.mark.postgres

TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, v text);
CREATE TABLE items (id bigint PRIMARY KEY, "order" bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE tree (id bigint PRIMARY KEY, parent bigint REFERENCES tree);
"""


@pytest.fixture
def tables(database, monkeypatch):
    # There is no Spark here whose executors could be asked.
    monkeypatch.setattr("onceforall.driver.query_run.check_executors", lambda *_: None)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    return database


def check(**sinks):
    try:
        check_sinks(sinks, None, "", "append")
    finally:
        for sink in sinks.values():
            sink.close()


@pytest.mark.parametrize(
    ("parent", "child"),
    [
        ("staged", "staged"),
        ("prepared", "staged"),
        ("staged", "prepared"),
        ("staged", "upsert"),
        ("upsert", "prepared"),
    ],
)
def test_rows_that_refer_to_rows_of_the_same_batch_are_refused_at_start(tables, parent, child):
    orders, items = (
        PostgresSink(tables, "orders", mode=parent, key="id"),
        PostgresSink(tables, "items", mode=child, key="id"),
    )
    words = (
        r"public\.items \(sink 'i'\) has the foreign key items_order_fkey to public\.orders, "
        r"which sink 'o' of this query writes.*two queries"
    )
    with pytest.raises(SinkCheckError, match=words):
        check(o=orders, i=items)
    with pytest.raises(SinkCheckError, match=words):
        check(i=items, o=orders)


def test_what_can_be_written_is_not_refused(tables, postgres):
    # Rows of an upsert are there before the other sink's are merged.
    check(
        o=PostgresSink(tables, "orders", mode="upsert", key="id"), i=PostgresSink(tables, "items")
    )
    # A table that refers to itself is one sink's own matter.
    check(t=PostgresSink(tables, "tree"), o=PostgresSink(tables, "orders"))
    check(i=PostgresSink(tables, "items"))


def test_tables_of_two_databases_have_nothing_to_do_with_each_other(tables, postgres):
    from support.databases import drop_database, make_database

    elsewhere = make_database(postgres)
    try:
        with psycopg.connect(postgres.url(elsewhere), autocommit=True) as connection:
            connection.execute(TABLES)
        check(o=PostgresSink(postgres.url(elsewhere), "orders"), i=PostgresSink(tables, "items"))
    finally:
        drop_database(postgres, elsewhere)


PARTITIONED = """
CREATE TABLE parents (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parents_1 PARTITION OF parents FOR VALUES FROM (0) TO (100);
CREATE TABLE children (id bigint PRIMARY KEY, parent bigint) PARTITION BY RANGE (id);
CREATE TABLE children_1 PARTITION OF children FOR VALUES FROM (0) TO (100);
"""


@pytest.mark.parametrize(
    "constraint",
    [
        "ALTER TABLE children_1 ADD CONSTRAINT c FOREIGN KEY (parent) REFERENCES parents",
        "ALTER TABLE children_1 ADD CONSTRAINT c FOREIGN KEY (parent) REFERENCES parents_1",
        "ALTER TABLE children ADD CONSTRAINT c FOREIGN KEY (parent) REFERENCES parents_1",
    ],
)
def test_a_constraint_of_one_partition_is_found(tables, constraint):
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute(PARTITIONED)
        connection.execute(constraint)
    with pytest.raises(
        SinkCheckError,
        match=r"sink 'c'\) has the foreign key \w+ to public\.parents, which sink 'p'",
    ):
        check(p=PostgresSink(tables, "parents"), c=PostgresSink(tables, "children"))


def test_two_sinks_on_a_table_that_refers_to_itself_are_refused(tables):
    with pytest.raises(SinkCheckError, match="foreign key tree_parent_fkey"):
        check(one=PostgresSink(tables, "tree"), other=PostgresSink(tables, "tree"))


@pytest.mark.parametrize(
    "modes", [("staged", "staged"), ("staged", "prepared"), ("prepared", "prepared")]
)
def test_two_sinks_that_write_one_table_by_key_are_refused(tables, modes):
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute(PARTITIONED)
    one, other = modes
    with pytest.raises(
        SinkCheckError,
        match=r"'one' and 'other' of this query both write public\.orders by key.*one transform",
    ):
        check(
            one=PostgresSink(tables, "orders", mode=one, key="id"),
            other=PostgresSink(tables, "public.orders", mode=other, key="id"),
        )
    with pytest.raises(SinkCheckError, match="both write public.parents"):
        check(
            one=PostgresSink(tables, "parents", mode=one, key="id"),
            other=PostgresSink(tables, "parents_1", mode=other, key="id"),
        )


def test_two_sinks_that_insert_into_one_table_are_not_refused(tables):
    check(one=PostgresSink(tables, "orders"), other=PostgresSink(tables, "orders"))
    check(
        one=PostgresSink(tables, "orders", key="id", mode="upsert"),
        other=PostgresSink(tables, "orders", key="id", mode="upsert"),
    )


def test_a_table_with_a_rule_takes_no_rows_by_key(tables):
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute("CREATE RULE kept AS ON UPDATE TO orders DO ALSO NOTHING")
    check(o=PostgresSink(tables, "orders"))
    with pytest.raises(SinkCheckError, match="has the rule kept on UPDATE, DO ALSO"):
        check(o=PostgresSink(tables, "orders", key="id"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("made", "made"),
        ("made", "public.made"),
        ("MADE", 'public."made"'),
        ("apart.made", "apart . made"),
        ('"Made"', 'public."Made"'),
    ],
)
def test_two_sinks_that_will_make_one_table_are_refused(tables, one, other):
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA apart")
    options = {"key": "id", "create_table": True}
    with pytest.raises(
        SinkCheckError,
        match=r"'one' and 'other' of this query both write (public|apart)\.\"?\w+\"? by key.*one "
        r"transform",
    ):
        check(
            one=PostgresSink(tables, one, **options), other=PostgresSink(tables, other, **options)
        )


def test_sinks_that_will_make_tables_of_their_own_are_not_refused(tables):
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA apart")
    names = {"one": "made", "two": '"Made"', "three": "apart.made", "four": "made_too"}
    check(
        **{
            name: PostgresSink(tables, table, key="id", create_table=True)
            for name, table in names.items()
        }
    )
    check(
        one=PostgresSink(tables, "made", create_table=True),
        other=PostgresSink(tables, "made", create_table=True),
    )
    check(
        one=PostgresSink(tables, "made", key="id", create_table=True),
        other=PostgresSink(tables, "orders", key="id"),
    )


@pytest.mark.parametrize(
    "modes",
    [("staged", "staged"), ("staged", "prepared"), ("prepared", "staged"), ("upsert", "prepared")],
)
def test_a_sink_with_a_key_beside_one_without_on_one_table_is_refused(tables, modes):
    """No two of a batch can hold one key: the second waits for the first, which waits for the
    decision."""
    keyed, unkeyed = modes
    for table in ("orders", "made"):
        sinks = {
            "k": PostgresSink(tables, table, mode=keyed, key="id", create_table=True),
            "u": PostgresSink(tables, f"public.{table}", mode=unkeyed, create_table=True),
        }
        for order in ("ku", "uk"):
            with pytest.raises(
                SinkCheckError,
                match=rf"both write public\.{table}, 'k' by key. A row that both have",
            ):
                check(**{name: sinks[name] for name in order})


def test_a_sink_that_is_merged_behind_the_upserts_of_another_is_not_refused(tables):
    check(
        k=PostgresSink(tables, "orders", mode="upsert", key="id"), u=PostgresSink(tables, "orders")
    )


def test_two_sinks_that_replace_all_of_one_table_are_refused(tables):
    sinks = {"one": PostgresSink(tables, "orders"), "other": PostgresSink(tables, "orders")}
    with pytest.raises(
        SinkCheckError, match="both write public.orders, and each replaces all rows of it"
    ):
        check_sinks(sinks, None, "", "complete")


def test_two_sinks_whose_triggers_write_one_row_are_told_what_it_is(tables):
    with psycopg.connect(tables, autocommit=True) as connection:
        for statement in (
            "CREATE TABLE t (id bigint, v text)",
            "CREATE TABLE total (n bigint)",
            "INSERT INTO total VALUES (0)",
            (
                "CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS "
                "'BEGIN UPDATE public.total SET n = n + 1; RETURN NEW; END'"
            ),
            "CREATE TRIGGER c BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION counted()",
        ):
            connection.execute(statement)
    patience = {"retry_for_s": 0.5, "lock_timeout_s": 0.2}
    one = Query(tables, None, name="one", **patience)
    other = Query(tables, None, query=one.id, name="other", **patience)
    held = one.prepare(0, rows(1))
    waiting = [other.write(0, rows(2))]
    with pytest.raises(SinkUnavailableError, match=r"counted\(\).*triggers or cascades of both"):
        other.sink.confirm(waiting)
    other.sink.abort(waiting)
    assert len(one.commit(0, held).retired) == 1
