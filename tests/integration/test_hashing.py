"""Every type has a digest, also those that Spark's xxhash64 refuses."""

import pytest
from pyspark.sql import functions as F

from onceforall.hashing import row_hash

pytestmark = pytest.mark.spark

CASES = {
    "a map, in either order": ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)", "map('a', 1, 'b', 3)"),
    "a map of maps": ("map('x', map(1, 'a', 2, 'b'))", "map('x', map(2, 'b', 1, 'a'))", "map('x', map(1, 'a', 2, 'c'))"),
    "an array of maps": ("array(map(1, 'a', 2, 'b'))", "array(map(2, 'b', 1, 'a'))", "array(map(1, 'a', 2, 'c'))"),
    "a struct with a map": (
        "struct(1 AS n, map(1, 2, 3, 4) AS m)",
        "struct(1 AS n, map(3, 4, 1, 2) AS m)",
        "struct(2 AS n, map(1, 2) AS m)",
    ),
    "a variant": ('parse_json(\'{"a": 1, "b": 2}\')', 'parse_json(\'{"b": 2, "a": 1}\')', "parse_json('{\"a\": 1}')"),
    "a map of variants": ("map(1, parse_json('1'))", "map(1, parse_json(' 1'))", "map(1, parse_json('2'))"),
}


def hash_of(spark, expression):
    frame = spark.sql(f"SELECT {expression} AS c, 7 AS n")
    return frame.select(row_hash(frame, [F.col("c"), F.col("n")]).alias("h")).head()["h"]


@pytest.mark.parametrize("case", CASES)
def test_equal_values_have_equal_digests_and_others_have_others(spark, case):
    one, same, other = (hash_of(spark, expression) for expression in CASES[case])
    assert one == same
    assert one != other


def test_null_has_a_digest_of_its_own(spark):
    for kind in ("map<int,int>", "struct<m:map<int,int>>", "array<map<int,int>>"):
        assert hash_of(spark, f"CAST(NULL AS {kind})") == hash_of(spark, "CAST(NULL AS int)")


def test_rows_of_plain_columns_have_the_hash_that_earlier_releases_gave_them(spark):
    frame = spark.range(3)
    mine = frame.select(row_hash(frame, [F.col("id")]).alias("h"))
    assert mine.collect() == frame.select(F.xxhash64("id").alias("h")).collect()
