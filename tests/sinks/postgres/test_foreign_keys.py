"""A foreign key between the tables of two sinks of one query is refused at start; ``foreign_keys`` says why."""

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
