"""The names of partitions' folders are those that Hive and Spark write and read."""

import pytest

from onceforall.sinks.files import paths


@pytest.mark.spark
def test_every_character_is_escaped_as_spark_does(spark):
    of_spark = spark._jvm.org.apache.spark.sql.catalyst.catalog.ExternalCatalogUtils
    characters = [*map(chr, range(1, 0x100)), "\u2028", "\u00e9", "\U0001f600"]
    assert len(characters) > 250
    for each in characters:
        assert paths.escaped(f"a{each}b") == of_spark.escapePathName(f"a{each}b"), repr(each)


@pytest.mark.parametrize("value", ["A%42", "%", "%%25", "a=b", "a/b", "10%", "%41%"])
def test_a_value_comes_back_from_its_folder(value):
    assert paths.partition_of(paths.hive_folder("column", value)) == {"column": value}
