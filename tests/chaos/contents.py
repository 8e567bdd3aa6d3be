"""What a row of a world bears besides id and key: columns of several types, with nulls, and for
Kafka headers, a timestamp and in some worlds a partition. All of it is a function of one number, so
that it is known what each row must bear: of its id, or of the last id that a count has counted.

``columns`` computes it with Spark, ``Expected`` with Python.
"""

from datetime import datetime, timedelta, timezone
from decimal import Decimal

from onceforall.testing.checker import contents_of

NAMES = ("note", "price", "at", "raw", "ratio", "flag")
TABLE = (
    "note text, price numeric(20, 4), at timestamptz, raw bytea, ratio double precision, "
    'flag boolean, headers jsonb, "partition" integer'
)
SPREAD_US = 600_000_000
"""Timestamps stay within so much of the world's beginning: brokers refuse later ones, and delete
old ones."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_BEFORE, _BEHIND = 'ü☃𝄞 "', '"\t\\\n'


def columns(number, config):
    """The columns of a Spark frame, from a column with the number."""
    from pyspark.sql import functions as F

    def unless(condition, column):
        return F.when(condition, F.lit(None)).otherwise(column)

    note = unless(number % 7 == 3, F.concat(F.lit(_BEFORE), number.cast("string"), F.lit(_BEHIND)))
    price = number.cast("decimal(14, 0)") * F.lit(Decimal("0.0125"))
    since = number * 1_000_003 % SPREAD_US
    raw = unless(number % 11 == 5, F.unhex(F.lpad(F.hex(number), 16, "0")))
    found = [
        note.alias("note"),
        unless(number % 5 == 4, price.cast("decimal(20, 4)")).alias("price"),
        F.timestamp_micros(F.lit(config["epoch_us"]) + since).alias("at"),
        raw.alias("raw"),
        (number.cast("double") / F.lit(3.0)).alias("ratio"),
        unless(number % 13 == 7, number % 3 == 0).alias("flag"),
    ]
    if has_headers(config):
        found.append(_headers(number, raw, note).alias("headers"))
    if config["partitioned"]:
        found.append((number % config["keys"] % 2).cast("int").alias("partition"))
    return found


def has_headers(config):
    """Whether records have headers and times: one without goes another way through the sink."""
    return "kafka" in config["sinks"] and not config["plain"]


def _headers(number, raw, note):
    from pyspark.sql import functions as F

    nothing = F.lit(None).cast("binary")
    pairs = [("a", raw), ("a", F.encode(note, "UTF-8")), ("b", nothing)]
    structs = [F.struct(F.lit(key).alias("key"), value.alias("value")) for key, value in pairs]
    return F.when(number % 5 == 4, F.lit(None)).otherwise(F.array(*structs))


class Expected:
    """The contents that rows of a world must have in each sink.

    Args:
        config: the world's, with ``epoch_us``, ``keys``, ``partitioned`` and ``plain``.
        number_of: an id's number.
    """

    def __init__(self, config, number_of):
        self._config = config
        self._number_of = number_of

    def asked_of(self, sink):
        """What an observer of a sink is to read."""
        if sink == "kafka":
            partition = ["partition"] if self._config["partitioned"] else []
            return [*([] if self._config["plain"] else ["headers", "timestamp"]), *partition]
        # PostgreSQL writes JSON in a form of its own.
        return [*NAMES, "headers"] if self._has_headers(sink) else list(NAMES)

    def of(self, sink):
        """The function of ids for the sink's truth; None: there is nothing to compare."""
        if not self.asked_of(sink):
            return None
        return self._of_records if sink == "kafka" else lambda ids: self._of_rows(ids, sink)

    def _has_headers(self, sink):
        return sink == "files" and has_headers(self._config)

    def _numbers(self, ids):
        return [self._number_of(each) for each in ids.tolist()]

    def values(self, numbers):
        """The columns of rows with these numbers, in the order of ``NAMES``."""
        return [
            [_note(n) for n in numbers],
            [None if n % 5 == 4 else Decimal(n * 125).scaleb(-4) for n in numbers],
            [_EPOCH + timedelta(microseconds=each) for each in self._times_us(numbers)],
            [_raw(n) for n in numbers],
            [n / 3.0 for n in numbers],
            [None if n % 13 == 7 else n % 3 == 0 for n in numbers],
        ]

    def _of_rows(self, ids, sink):
        numbers = self._numbers(ids)
        found = self.values(numbers)
        if self._has_headers(sink):
            found.append([_structs(n) for n in numbers])
        return contents_of(found)

    def _of_records(self, ids):
        numbers = self._numbers(ids)
        found = []
        if not self._config["plain"]:
            found.append([_pairs(n) for n in numbers])
            found.append([time_us // 1000 for time_us in self._times_us(numbers)])
        if self._config["partitioned"]:
            found.append([n % self._config["keys"] % 2 for n in numbers])
        return contents_of(found)

    def _times_us(self, numbers):
        return [self._config["epoch_us"] + n * 1_000_003 % SPREAD_US for n in numbers]


def _note(n):
    return None if n % 7 == 3 else f"{_BEFORE}{n}{_BEHIND}"


def _raw(n):
    return None if n % 11 == 5 else n.to_bytes(8, "big")


def _pairs(n):
    note = _note(n)
    encoded = None if note is None else note.encode()
    return [] if n % 5 == 4 else [("a", _raw(n)), ("a", encoded), ("b", None)]


def _structs(n):
    pairs = _pairs(n)
    return [{"key": key, "value": value} for key, value in pairs] if pairs else None
