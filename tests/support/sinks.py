"""What the sinks of a pipeline show to their readers, and what is left in them when all is
quiet."""

import psycopg

import onceforall as ofa
from support.databases import leftovers
from support.reading import released, values


def make_table(database):
    """Make the table that pipelines write to."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE out (key text NOT NULL, value text PRIMARY KEY)")


def shown(pipeline, kind):
    """Return the values that readers of a sink see, sorted."""
    if kind == "kafka":
        return values(pipeline.bootstrap, pipeline.topic)
    if kind == "files":
        return sorted(
            row["value"] for row in ofa.read_files(pipeline.config["files"]).to_arrow().to_pylist()
        )
    with psycopg.connect(pipeline.config["database"], autocommit=True) as connection:
        return sorted(value for (value,) in connection.execute("SELECT value FROM out").fetchall())


def left(pipeline, kind):
    """Return what a sink still has of unfinished transactions, as texts."""
    if kind == "kafka":
        released(pipeline.bootstrap, pipeline.topic)
        return []
    if kind == "files":
        folder = pipeline.folder / "files" / "_onceforall" / "staging"
        return [str(file) for file in folder.rglob("*") if file.is_file()]
    with psycopg.connect(pipeline.config["database"], autocommit=True) as connection:
        return leftovers(connection)
