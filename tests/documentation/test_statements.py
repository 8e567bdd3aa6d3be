"""The SQL on the pages, run on a real PostgreSQL as it stands there."""

import re
from urllib.parse import urlsplit

import psycopg
import pytest

import onceforall as ofa
from onceforall.sink import StartInfo
from support.pages import all_blocks, blocks

pytestmark = pytest.mark.postgres

RIGHTS, LOOKS = (block.code for block in blocks("docs/postgres.md", "sql"))


@pytest.fixture
def admin(database):
    """A superuser's connection to a database with the page's table; the role of the page is gone
    at the end."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE SCHEMA ads; CREATE TABLE ads.spend (campaign_id text PRIMARY KEY, spend "
            "numeric(20, 2))"
        )
        connection.execute(RIGHTS)
        yield connection
        connection.execute("DROP OWNED BY ads CASCADE; DROP ROLE ads")


def as_ads(database):
    """The URL by which the page's role connects, with the password that the page gives it."""
    [password] = re.findall(r"PASSWORD '(.*)'", RIGHTS)
    found = urlsplit(database)
    return found._replace(netloc=f"ads:{password}@{found.hostname}:{found.port}").geturl()


def test_the_rights_on_the_page_are_enough_for_a_start(admin, database):
    sink = ofa.PostgresSink(as_ads(database), "ads.spend", key=["campaign_id"])
    try:
        sink.check(StartInfo("11111111-2222-3333-4444-555555555555", "spend", output_mode="append"))
    finally:
        sink.close()


def test_the_queries_on_the_page_show_what_a_sink_has_there(admin, database):
    sink = ofa.PostgresSink(as_ads(database), "ads.spend", key=["campaign_id"])
    try:
        sink.check(StartInfo("11111111-2222-3333-4444-555555555555", "spend", output_mode="append"))
        statements = [statement for statement in LOOKS.split(";\n") if statement.strip()]
        assert len(statements) == 4
        for statement in statements:
            admin.execute(statement).fetchall()
    finally:
        sink.close()


def test_the_table_of_the_ad_events_is_what_its_jobs_read(database):
    [block] = [block for block in all_blocks("sh") if "CREATE TABLE" in block.code]
    [statement] = re.findall(r"-c '(CREATE TABLE [^']+)'", block.code)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(statement)
        assert (
            connection.execute(
                "SELECT campaign_id, advertiser, commission_ppm FROM campaigns"
            ).fetchall()
            == []
        )
