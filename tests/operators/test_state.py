"""The settings of state backends: what Spark has by these names, and nothing set behind
anybody's back."""

import subprocess
import sys

import pytest

from onceforall.errors import OptionError
from onceforall.operators.state import PROVIDER, memory_state, rocksdb_state


def test_each_choice_is_a_provider_and_texts():
    for settings in (memory_state(), rocksdb_state(), rocksdb_state(memory_mb=512)):
        assert settings[PROVIDER].endswith("StateStoreProvider")
        assert all(
            name.startswith("spark.sql.streaming.") and isinstance(value, str)
            for name, value in settings.items()
        )
    assert memory_state()[PROVIDER] != rocksdb_state()[PROVIDER]


def test_the_memory_of_rocksdb_is_bounded_only_when_it_is_asked_for():
    bound = "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB"
    assert bound not in rocksdb_state()
    assert rocksdb_state(memory_mb=512)[bound] == "512"
    for value in (0, -1, 1.5, True, "512"):
        with pytest.raises(OptionError, match="memory_mb"):
            rocksdb_state(memory_mb=value)


@pytest.mark.spark
def test_a_session_has_the_settings_only_when_it_was_given_them(spark):
    before = spark.conf.get(PROVIDER)
    rocksdb_state()
    assert spark.conf.get(PROVIDER) == before
    for name in {**memory_state()}:
        spark.conf.get(name)  # raises for a name that Spark does not know


def test_the_package_loads_nothing_heavy_before_a_name_is_used():
    code = (
        "import sys, onceforall.operators as o; from onceforall.operators import rocksdb_state, "
        "record_uuid, Lookup; "
        "print(sorted({'pandas', 'pyarrow', 'psycopg', 'pyspark', 'google.protobuf'} & "
        "set(sys.modules)), len(o.__all__) > 20)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert answer.stdout.strip() == "[] True"
