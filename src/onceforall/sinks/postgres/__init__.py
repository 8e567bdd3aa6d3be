"""The PostgreSQL sink (extra ``postgres``: psycopg in the tasks and on the driver)."""

from onceforall.sinks.postgres.sink import PostgresSink

__all__ = ["PostgresSink"]
