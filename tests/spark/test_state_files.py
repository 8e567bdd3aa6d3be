"""The class that writes a checkpoint's files, wherever its setting stands."""

from __future__ import annotations

import pytest

from onceforall.spark.state_files import MANAGER, STATE_FORMAT, file_manager

pytestmark = pytest.mark.spark

CLASS = "org.example.FileSystemBasedCheckpointFileManager"


def test_without_settings_nobody_has_chosen(spark):
    assert file_manager(spark) == ("", 1)
    assert file_manager(None) == ("", 1)


def test_it_is_found_among_the_sessions_settings_with_the_format(spark):
    spark.conf.set(MANAGER, CLASS)
    spark.conf.set(STATE_FORMAT, "2")
    try:
        assert file_manager(spark) == (CLASS, 2)
    finally:
        spark.conf.unset(MANAGER)
        spark.conf.unset(STATE_FORMAT)


def test_it_is_found_among_hadoops_settings_where_spark_looks_too(spark):
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set(MANAGER, CLASS)
    try:
        assert file_manager(spark) == (CLASS, 1)
    finally:
        hadoop.unset(MANAGER)
