"""Makes what the jobs of a place find there: its topics, and its database with the campaigns in
it.
"""

from __future__ import annotations

from onceforall.demo.ads.jobs import SPARK, TOPICS, Place
from onceforall.demo.ads.plain import TABLE
from onceforall.demo.ads.truth import campaigns
from onceforall.demo.outputs import connected
from onceforall.embedded import EmbeddedKafka, EmbeddedPostgres

__all__ = ["furnish"]


def furnish(
    place: Place, broker: EmbeddedKafka, postgres: EmbeddedPostgres, database_name: str
) -> None:
    """Make a place's topics and database; Spark's own writers also need the tables that ours make
    themselves.

    Args:
        place: which one.
        broker: gets the topics.
        postgres: gets the database.
        database_name: that of the place's URL.
    """
    for name, partitions in TOPICS.items():
        broker.create_topic(place.topic(name), partitions=partitions)
    with connected(postgres.conninfo) as server:
        server.execute(f"CREATE DATABASE {database_name}".encode())
    with connected(place.database) as database:
        database.execute(
            b"CREATE TABLE campaigns (campaign_id text PRIMARY KEY, advertiser text NOT NULL, "
            b"commission_ppm int NOT NULL)"
        )
        with database.cursor() as cursor, cursor.copy(b"COPY campaigns FROM STDIN") as copy:
            for campaign in campaigns():
                copy.write_row((campaign.campaign_id, campaign.advertiser, campaign.commission_ppm))
        if place.writer == SPARK:
            database.execute(TABLE.encode())
