"""Record identity: in Spark as in Python's uuid module, whatever the session's settings, and no
two rows with one name."""

import itertools
import random
import re
import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from onceforall.errors import OptionError, SchemaError
from onceforall.operators.identity import (
    NAMESPACE,
    record_id,
    record_name,
    record_uuid,
    with_record_id,
)

ORDERS = uuid.uuid5(NAMESPACE, "orders")
SCHEMA = (
    "s string, i bigint, d decimal(38,18), b boolean, day date, at timestamp, ntz "
    "timestamp_ntz, x binary, v string, small smallint"
)


def rows(count, seed):
    draw = random.Random(seed)
    maybe = lambda value: None if draw.random() < 0.15 else value
    moment = lambda: datetime(1890, 1, 1) + timedelta(microseconds=draw.randrange(10**16))  # noqa: DTZ001
    words = ["", "a", "ab", "s1:a", "-", "é", "日本", "a\x00b", 'q"\\', "'", "𝄞", " x ", "\n"]
    for _ in range(count):
        yield (
            maybe(draw.choice(words) + draw.choice(words)),
            maybe(draw.choice([0, -1, 2**63 - 1, -(2**63), draw.randrange(-1000, 1000)])),
            maybe(
                Decimal(f"{draw.choice([0, 1, -1, 10**18, draw.randrange(-(10**37), 10**37)])}E-18")
            ),
            maybe(draw.random() < 0.5),
            maybe(moment().date()),
            maybe(moment().replace(tzinfo=timezone.utc)),
            maybe(moment()),
            maybe(draw.randbytes(draw.randrange(5))),
            maybe(draw.choice(["", "a", "abcde"])),
            maybe(draw.randrange(-(2**15), 2**15)),
        )


class TestNames:
    def test_a_name_is_what_the_documentation_says(self):
        assert record_name(["a", "bc"]) == "s1:as2:bc"
        assert record_name(["ab", "c"]) == "s2:abs1:c"
        assert record_name([None, "", "é", 1, True]) == "-s0:s2:éi1:1b4:true"
        assert (
            record_name([Decimal("1.50"), Decimal("1E-7"), b"\x00\xff"]) == "d4:1.50d4:1E-7x4:AP8="
        )
        assert (
            record_name([date(2026, 11, 21), datetime(2026, 11, 21, 22)])  # noqa: DTZ001
            == "D10:2026-11-21n26:2026-11-21T22:00:00.000000"
        )
        berlin = timezone(timedelta(hours=1))
        assert (
            record_name([datetime(2026, 11, 21, 23, 0, 0, 7, berlin)])
            == "t27:2026-11-21T22:00:00.000007Z"
        )

    def test_ids_that_were_given_out_once_stay_the_same(self):
        """Values of the first release: a change of them would give every record of every user
        another id."""
        assert (
            str(record_uuid(["o-1", 7], namespace="orders"))
            == "0ffc1b53-aa95-5d9a-8aa5-e02d4894fa32"
        )
        assert (
            str(record_uuid(["events", 3, 12345], namespace=uuid.NAMESPACE_DNS))
            == "7a17edeb-00e1-56d1-b878-eab6884e4e00"
        )

    def test_no_two_different_rows_have_one_name(self):
        values = [
            None,
            "",
            "-",
            "s0:",
            "i1:1",
            "1",
            1,
            11,
            True,
            "true",
            Decimal(1),
            b"",
            b"-",
            "é",
            date(2026, 1, 1),
            "2026-01-01",
        ]
        seen = {}
        for row in itertools.chain.from_iterable(
            itertools.product(values, repeat=n) for n in (1, 2, 3)
        ):
            kinds = tuple((type(value), value) for value in row)
            assert seen.setdefault(record_name(row), kinds) == kinds
        assert len(seen) == sum(len(values) ** n for n in (1, 2, 3))

    @pytest.mark.parametrize("value", [1.5, {}, [], object()])
    def test_a_value_without_a_canonical_form_is_refused(self, value):
        with pytest.raises(SchemaError, match="record_id can't take"):
            record_name([value])

    @pytest.mark.parametrize("namespace", ["", None, 5])
    def test_an_empty_namespace_is_refused(self, namespace):
        with pytest.raises(OptionError, match="namespace"):
            record_uuid(["a"], namespace=namespace)


@pytest.mark.spark
class TestInSpark:
    @pytest.fixture
    def settings(self, spark):
        before = {}

        def use(**given):
            for name, value in given.items():
                key = name.replace("__", ".")
                before.setdefault(key, spark.conf.get(key))
                spark.conf.set(key, value)

        yield use
        for key, value in before.items():
            spark.conf.set(key, value)

    @pytest.mark.long
    def test_spark_and_python_agree_in_any_time_zone_and_with_and_without_ansi(
        self, spark, settings
    ):
        data = list(rows(400, seed=5))
        expected = [str(uuid.uuid5(ORDERS, record_name(row))) for row in data]
        assert len(set(expected)) > 390
        for zone, ansi in [
            ("UTC", "true"),
            ("America/St_Johns", "false"),
            ("Asia/Kathmandu", "true"),
        ]:
            settings(spark__sql__session__timeZone=zone, spark__sql__ansi__enabled=ansi)
            frame = spark.createDataFrame(
                [(n, *row) for n, row in enumerate(data)], f"n int, {SCHEMA}"
            )
            made = frame.withColumn("id", record_id(*frame.columns[1:], namespace="orders"))
            typed = (
                with_record_id(made, "by_type", *frame.columns[1:], namespace="orders")
                .orderBy("n")
                .collect()
            )
            assert [row["id"] for row in typed] == expected, zone
            assert [row["by_type"] for row in typed] == expected, zone

    def test_a_frame_keeps_its_columns_and_one_may_be_replaced_by_its_id(self, spark):
        frame = spark.createDataFrame([("a", 1)], "key string, Record_Id_Digest int")
        made = with_record_id(frame, "key", "key", F.col("Record_Id_Digest") + 1, namespace="n")
        assert made.columns == ["key", "Record_Id_Digest"]
        assert tuple(made.first()) == (str(record_uuid(["a", 2], namespace="n")), 1)

    def test_a_plan_by_type_names_the_digest_once_and_has_no_branches(self, spark):
        frame = with_record_id(
            spark.createDataFrame([], "a string, b bigint"), "id", "a", "b", namespace="n"
        )
        plan = frame._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count("sha1(") == 1
        assert "raise_error" not in plan

    def test_the_id_is_a_uuid_of_version_5_and_the_width_of_an_integer_does_not_matter(self, spark):
        widths = [
            record_id(F.col("id").cast(kind), namespace="n")
            for kind in ("tinyint", "smallint", "int", "bigint")
        ]
        for row in spark.range(100).select(*widths).collect():
            found = uuid.UUID(row[0])
            assert (found.version, found.variant, str(found)) == (5, uuid.RFC_4122, row[0])
            assert set(row) == {row[0]}

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            ("float", "NaN"),
            ("double", "DECIMAL"),
            ("map<string,int>", "no order"),
            ("array<int>", "fields"),
            ("struct<a:int>", "fields"),
        ],
    )
    def test_a_column_without_a_canonical_form_is_refused_with_the_reason(self, spark, kind, words):
        frame = spark.createDataFrame([], f"v {kind}")
        with pytest.raises(SchemaError, match=f"'v' of type {kind}.*{words}"):
            with_record_id(frame, "id", "v", namespace="n")

    def test_a_star_is_refused_for_it_stands_for_several_columns(self, spark):
        frame = spark.createDataFrame([], "a string, b string")
        with pytest.raises(SchemaError, match=r"Name each of them: the frame has a, b\."):
            with_record_id(frame, "id", "*", namespace="n")

    def test_an_expression_that_does_not_know_its_frame_fails_the_first_row(self, spark):
        with pytest.raises(Exception, match="record_id can't take a column of type double"):
            spark.range(1).select(record_id(F.col("id").cast("double"), namespace="n")).collect()

    def test_the_example_in_the_documentation_runs(self, spark):
        page = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")
        (example,) = [
            code
            for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
            if "record_uuid" in code
        ]
        exec(example, {"spark": spark})
