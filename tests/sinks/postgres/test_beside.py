"""What two sinks of one query can't have in one batch is refused at start; ``beside`` says why."""

import psycopg
import pytest

from onceforall.errors import SinkCheckError
from onceforall.runs import check_sinks
from onceforall.sinks.postgres.sink import PostgresSink

pytestmark = pytest.mark.postgres

TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, v text);
CREATE TABLE items (id bigint PRIMARY KEY, "order" bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE tree (id bigint PRIMARY KEY, parent bigint REFERENCES tree);
"""


@pytest.fixture
def tables(database, monkeypatch):
    # There is no Spark here whose executors could be asked.
    monkeypatch.setattr("onceforall.runs.check_executors", lambda *_: None)
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
    [("staged", "staged"), ("prepared", "staged"), ("staged", "prepared"), ("staged", "upsert"), ("upsert", "prepared")],
)
def test_rows_that_refer_to_rows_of_the_same_batch_are_refused_at_start(tables, parent, child):
    orders, items = PostgresSink(tables, "orders", mode=parent, key="id"), PostgresSink(tables, "items", mode=child, key="id")
    words = r"public\.items \(sink 'i'\) has the foreign key items_order_fkey to public\.orders, which sink 'o' of this query writes.*two queries"
    with pytest.raises(SinkCheckError, match=words):
        check(o=orders, i=items)
    with pytest.raises(SinkCheckError, match=words):
        check(i=items, o=orders)


def test_what_can_be_written_is_not_refused(tables, postgres):
    # Rows of an upsert are there before the other sink's are merged.
    check(o=PostgresSink(tables, "orders", mode="upsert", key="id"), i=PostgresSink(tables, "items"))
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
    with pytest.raises(SinkCheckError, match=r"sink 'c'\) has the foreign key \w+ to public\.parents, which sink 'p'"):
        check(p=PostgresSink(tables, "parents"), c=PostgresSink(tables, "children"))


def test_two_sinks_on_a_table_that_refers_to_itself_are_refused(tables):
    with pytest.raises(SinkCheckError, match="foreign key tree_parent_fkey"):
        check(one=PostgresSink(tables, "tree"), other=PostgresSink(tables, "tree"))


@pytest.mark.parametrize("modes", [("staged", "staged"), ("staged", "prepared"), ("prepared", "prepared")])
def test_two_sinks_that_write_one_table_by_key_are_refused(tables, modes):
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute(PARTITIONED)
    one, other = modes
    with pytest.raises(
        SinkCheckError, match=r"'one' and 'other' of this query both write public\.orders by key.*one transform"
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
    with pytest.raises(SinkCheckError, match="has the rule kept on INSERT or UPDATE"):
        check(o=PostgresSink(tables, "orders", key="id"))
