"""Tasks and drivers of a PostgresSink without Spark: their calls in the right order, and the same
in a process that can be killed.

As a program: ``python -m support.postgres_sink SPEC``, where SPEC is JSON; it prints one line of
JSON per step.
"""

import json
import os
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg import sql

import onceforall
from onceforall.protocol.history import CommitPermit
from onceforall.sink import StartInfo, Sweep, TaskAttempt
from onceforall.sinks.postgres.sink import PostgresSink

TABLE = "CREATE TABLE t (id bigint, v text)"
KEYED = "CREATE TABLE t (id bigint PRIMARY KEY, v text)"


def rows(*numbers, v="x"):
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(numbers, pa.int64()), "v": pa.array([v] * len(numbers), pa.string())}
    )


class Query:
    """One query's calls on one sink, in this process."""

    def __init__(
        self,
        url,
        ddl=TABLE,
        *,
        query=None,
        name="out",
        output_mode="append",
        generation=1,
        **options,
    ):
        self.url = url
        self.id = query or str(uuid.uuid4())
        self.name = name
        self.generation = generation
        self.output_mode = output_mode
        self.options = {"retry_for_s": 10, "lock_timeout_s": 5, **options}
        if ddl:
            self.execute(ddl)
        self.sink = PostgresSink(url, "t", **self.options)
        self.sink.check(StartInfo(self.id, name, output_mode=output_mode))

    def successor(self, **changes):
        """The same query's next run, with a sink made anew."""
        return Query(
            changes.pop("url", self.url),
            None,
            query=self.id,
            name=changes.pop("name", self.name),
            generation=self.generation + 1,
            **{"output_mode": self.output_mode, **self.options, **changes},
        )

    def execute(self, statement, *arguments):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, arguments)
            return cursor.fetchall() if cursor.description else []

    def attempt(self, batch=0, partition=0, slot=None, write=0):
        return TaskAttempt(
            self.id, self.name, self.generation, batch, write, partition, partition if slot is None else slot,
            secrets=self.sink.secrets(),
        )  # fmt: skip

    def write(self, batch, *parts, partition=0, slot=None, write=0):
        """Write Arrow batches in one task attempt; the committable as the commit log gives it
        back."""
        transaction = self.sink.begin_transaction(self.attempt(batch, partition, slot, write))
        for part in parts:
            self.sink.invoke(transaction, part)
        committable = self.sink.pre_commit(transaction)
        return json.loads(json.dumps(committable))

    def prepare(self, batch, *parts):
        """Write each part in a task of its own, and confirm."""
        committables = [self.write(batch, part, partition=i) for i, part in enumerate(parts)]
        return list(self.sink.confirm(committables))

    def commit(self, batch, committables):
        return self.sink.commit(CommitPermit(self.generation, 1, batch), committables)

    def sweep(self, *, own=False, spared=()):
        return self.sink.recover(
            Sweep(self.id, self.name, self.generation, own, frozenset(c["name"] for c in spared))
        )

    def ids(self):
        return sorted(number for (number,) in self.execute("SELECT id FROM t"))

    def all(self):
        return sorted(self.execute("SELECT id, v FROM t"))


def staging_tables(url, schema="onceforall"):
    query = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'stg%%'"
    with psycopg.connect(url, autocommit=True) as connection:
        return [name for (name,) in connection.execute(query, [schema]).fetchall()]


def prepared(url):
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        ).fetchall()
        return [gid for (gid,) in found]


def make_role(url, *grants):
    """A role that may log in; the URL with which it connects."""
    role = f"r{uuid.uuid4().hex[:10]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'of-a-role'").format(sql.Identifier(role))
        )
        for grant in grants:
            connection.execute(grant.format(role=role))
    address = url.split("@", 1)[1]
    return role, f"postgresql://{role}:of-a-role@{address}"


@contextmanager
def start(spec, failpoints=""):
    """A process that does the steps of ``main``; killed in the end, also when it is frozen."""
    source = Path(onceforall.__file__).parents[1]
    path = os.pathsep.join([str(source), str(Path(__file__).parents[1])])
    environment = {**os.environ, "ONCEFORALL_FAILPOINTS": failpoints, "PYTHONPATH": path}
    command = [sys.executable, "-m", "support.postgres_sink", json.dumps(spec)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        process.wait(60)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main():
    spec = json.loads(sys.argv[1])
    query = Query(
        spec["url"],
        None,
        query=spec["query"],
        generation=spec.get("generation", 1),
        **spec.get("options", {}),
    )
    batch, committables = spec.get("batch", 0), spec.get("committables", [])
    for step in spec["steps"]:
        said = None
        if step == "write":
            committables = [
                query.write(batch, rows(*part), partition=i) for i, part in enumerate(spec["rows"])
            ]
            said = committables
        elif step == "confirm":
            query.sink.confirm(committables)
        elif step == "commit":
            report = query.commit(batch, committables)
            said = [
                len(report.completed) + len(report.retired),
                len(report.lost),
                len(report.in_doubt),
            ]
        elif step == "recover":
            said = query.sweep()
        sys.stdout.write(json.dumps([step, said]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
