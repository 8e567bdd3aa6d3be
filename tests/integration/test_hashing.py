"""Every type has a digest, also those that Spark's xxhash64 refuses."""

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from onceforall.spark.row_hashes import row_hash

pytestmark = pytest.mark.spark

CASES = {
    "a map, in either order": ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)", "map('a', 1, 'b', 3)"),
    "a map of maps": (
        "map('x', map(1, 'a', 2, 'b'))",
        "map('x', map(2, 'b', 1, 'a'))",
        "map('x', map(1, 'a', 2, 'c'))",
    ),
    "an array of maps": (
        "array(map(1, 'a', 2, 'b'))",
        "array(map(2, 'b', 1, 'a'))",
        "array(map(1, 'a', 2, 'c'))",
    ),
    "a struct with a map": (
        "struct(1 AS n, map(1, 2, 3, 4) AS m)",
        "struct(1 AS n, map(3, 4, 1, 2) AS m)",
        "struct(2 AS n, map(1, 2) AS m)",
    ),
    "a variant": (
        'parse_json(\'{"a": 1, "b": 2}\')',
        'parse_json(\'{"b": 2, "a": 1}\')',
        "parse_json('{\"a\": 1}')",
    ),
    "a map of variants": (
        "map(1, parse_json('1'))",
        "map(1, parse_json(' 1'))",
        "map(1, parse_json('2'))",
    ),
}


def hash_of(spark, expression):
    frame = spark.sql(f"SELECT {expression} AS c, 7 AS n")
    return frame.select(row_hash(frame, [F.col("c"), F.col("n")]).alias("h")).head()["h"]


@pytest.mark.parametrize("case", CASES)
def test_equal_values_have_equal_digests_and_others_have_others(spark, case):
    one, same, other = (hash_of(spark, expression) for expression in CASES[case])
    assert one == same
    assert one != other


def digests_of(spark, kind, rows):
    fields = StructType.fromDDL(kind).fields
    frame = spark.sql(" UNION ALL ".join(f"SELECT {row}" for row in rows)).toDF(
        *[field.name for field in fields]
    )
    frame = frame.select(*[F.col(field.name).cast(field.dataType) for field in fields])
    return [
        row["h"]
        for row in frame.select(
            row_hash(frame, [F.col(field.name) for field in fields]).alias("h")
        ).collect()
    ]


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("a string, b string", ["'x', NULL", "NULL, 'x'", "NULL, NULL"]),
        (
            "a array<int>",
            ["array(1, NULL)", "array(NULL, 1)", "array(1)", "array()", "NULL", "array(NULL)"],
        ),
        (
            "a array<int>, b array<int>",
            [
                "array(1, 2), array()",
                "array(1), array(2)",
                "array(), array(1, 2)",
                "array(1, 2), NULL",
                "NULL, array(1, 2)",
                "array(1), NULL",
                "NULL, array(1)",
            ],
        ),
        (
            "a array<array<int>>",
            [
                "array(array(1), array(2))",
                "array(array(1, 2))",
                "array(array(1, 2), array())",
                "array(array(1, 2), NULL)",
            ],
        ),
        (
            "a struct<x: int, y: int>",
            ["struct(1, NULL)", "struct(NULL, 1)", "struct(NULL, NULL)", "NULL"],
        ),
        (
            "a array<struct<x: int, y: int>>",
            ["array(struct(1, NULL))", "array(struct(NULL, 1))", "array(struct(1, NULL), NULL)"],
        ),
        (
            "a struct<x: array<int>, y: array<int>>",
            [
                "struct(array(1), array(2))",
                "struct(array(1, 2), array())",
                "struct(array(1, 2), NULL)",
            ],
        ),
        (
            "a map<int, int>, b int",
            [
                "map(1, NULL), 2",
                "map(1, 2), NULL",
                "map(1, NULL, 2, NULL), NULL",
                "map(), 1",
                "NULL, 1",
            ],
        ),
        (
            "a map<int, array<int>>",
            [
                "map(1, array(2))",
                "map(1, array(), 2, array())",
                "map(1, array(2, NULL))",
                "map(1, NULL)",
            ],
        ),
        ("a string collate UTF8_LCASE", ["'x'", "'X'"]),
        ("a string collate UNICODE_CI", ["'x'", "'X'"]),
        ("a array<string collate UTF8_LCASE>", ["array('x')", "array('X')"]),
    ],
)
def test_what_differs_in_what_is_missing_or_where_it_ends_has_other_digests(spark, kind, rows):
    """``xxhash64`` passes over nulls and the borders of arrays, and on Spark 4.0 takes a
    collation's equals for equal."""
    assert len(set(digests_of(spark, kind, rows))) == len(rows)
    assert digests_of(spark, kind, rows) == digests_of(spark, kind, rows)


def test_columns_without_nulls_and_arrays_have_the_plain_hash(spark):
    frame = spark.range(3)
    mine = frame.select(row_hash(frame, [F.col("id")]).alias("h"))
    assert mine.collect() == frame.select(F.xxhash64("id").alias("h")).collect()


def test_each_column_in_turn_changes_the_digest(spark):
    """Also the last one: a replay that differs in that alone must not pass for what was decided."""
    plain = ["1", "'x'", "DATE'2026-01-01'", "2.5D", "array(1)", "true"]
    other = ["2", "'y'", "DATE'2026-01-02'", "3.5D", "array(2)", "false"]
    rows = [
        ", ".join(other[at] if at == changed else value for at, value in enumerate(plain))
        for changed in (None, *range(len(plain)))
    ]
    kind = "a int, b string, c date, d double, e array<int>, f boolean"
    assert len(set(digests_of(spark, kind, rows))) == len(plain) + 1


@pytest.mark.parametrize(
    "value",
    [
        "named_struct('{}', nullif(id, 1), '{}', nullif(id, 2))",
        "named_struct('{}', id, '{}', parse_json(string(id)))",
        "array(named_struct('{}', array(id), '{}', nullif(id, 2)))",
        "named_struct('k', map(1, named_struct('{}', nullif(id, 1), '{}', map(id, nullif(id, 2)))))",
    ],
)
@pytest.mark.parametrize("names", [("a", "A"), ("a", "a"), ("s", "\u017f"), ("`", "a.b")])
def test_fields_of_a_struct_may_have_names_that_spark_can_not_tell_apart(spark, value, names):
    def digests(*named):
        frame = spark.range(4).selectExpr(f"{value.format(*named)} AS s")
        return [
            row["h"] for row in frame.select(row_hash(frame, [F.col("s")]).alias("h")).collect()
        ]

    assert digests(*names) == digests("one", "two")
    assert len(set(digests(*names))) == 4
