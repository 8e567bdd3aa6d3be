"""Hadoop's settings as a session tells them, with a JVM or without."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from onceforall.spark.hadoop_settings import ConnectSettings, hadoop_settings, starting_with
from onceforall.spark.stores import Stores

GIVEN = {
    "dfs.ha.namenodes.lake": "of the session",
    "spark.hadoop.dfs.ha.namenodes.lake": "of Spark",
    "spark.hadoop.dfs.ha.namenodes.other": "nn1,nn2",
    "spark.hadoop.fs.s3a.endpoint": "http://store",
    "spark.app.name": "dfs.ha.namenodes",
}


class Conf:
    getAll = GIVEN  # noqa: N815  PySpark's name

    def get(self, name, default=None):
        return GIVEN.get(name, default)


@pytest.fixture
def told():
    return ConnectSettings(SimpleNamespace(conf=Conf()))


def test_what_connect_tells_is_found_by_its_name_and_by_its_beginning(told):
    assert told.get("fs.s3a.endpoint") == "http://store"
    assert told.get("dfs.ha.namenodes.lake") == "of the session"
    assert starting_with(told, "dfs.ha.") == {
        "dfs.ha.namenodes.lake": "of the session",
        "dfs.ha.namenodes.other": "nn1,nn2",
    }
    assert starting_with(told, "viewfs.") == {}


def test_a_folder_of_hdfs_has_its_settings_in_connect(told):
    stores = Stores()
    stores._configuration = told
    assert stores.settings_of("hdfs://lake/x")["dfs.ha.namenodes.other"] == "nn1,nn2"


@pytest.mark.spark
def test_a_classic_session_tells_the_same(spark):
    settings = hadoop_settings(spark)
    settings.set("dfs.ha.namenodes.lake", "nn1")
    try:
        assert starting_with(settings, "dfs.ha.")["dfs.ha.namenodes.lake"] == "nn1"
        assert Stores(spark).settings_of("hdfs://lake/x")["dfs.ha.namenodes.lake"] == "nn1"
    finally:
        settings.unset("dfs.ha.namenodes.lake")
