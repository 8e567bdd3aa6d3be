"""Which of a function's statements put something into Spark's cache or take it out, and of what."""

import pytest
from pyspark.errors import AnalysisException

from onceforall.errors import AttemptFailedError
from onceforall.spark.connect.caches import FunctionCaches

pytestmark = pytest.mark.spark


class Named:
    """A frame of a name, which is looked up when it is asked something, as with Connect."""

    def __init__(self, spark, name):
        self.spark, self.name = spark, name

    @property
    def storageLevel(self):  # noqa: N802  Spark's name
        return self.spark.table(self.name).storageLevel


class Lazy:
    """The session that ``FunctionCaches`` looks things up in."""

    def __init__(self, spark):
        self.spark = spark

    def table(self, name):
        return Named(self.spark, name)


@pytest.fixture
def caches(spark):
    caches = FunctionCaches(Lazy(spark))
    yield caches
    caches.release()
    spark.catalog.clearCache()


@pytest.fixture
def sql(spark, caches):
    run = caches._sql(lambda session, text, *arguments, **named: session.sql(text, **named))
    return lambda text, **named: run(spark, text, **named)


def view(spark, name):
    spark.range(3).createOrReplaceTempView(name)
    return name


@pytest.mark.parametrize(
    "name", ["plain", "`my-view`", "`a b`", "`with ``ticks`` in``it`", "`with.dot`", "identifier"]
)
def test_a_table_is_noted_by_its_whole_name_and_the_drop_of_its_view_is_put_off(
    spark, caches, sql, name
):
    view(spark, name)
    sql(f"CACHE TABLE {name}")
    with caches.watching([]):
        pass
    sql(f"DROP VIEW IF EXISTS {name}")
    assert spark.table(name).storageLevel.useMemory
    with pytest.raises(AttemptFailedError), caches.watching([]):
        spark.catalog.uncacheTable(name)
    caches.release()
    assert not spark.catalog.tableExists(name)


@pytest.mark.parametrize("gap", [" ", "\n-- it''s CLEAR\r\n", "/* UNCACHE\n * TABLE */", "/**/"])
def test_comments_stand_wherever_a_blank_may(spark, caches, sql, gap):
    view(spark, "t")
    sql(f"{gap}CACHE{gap}LAZY{gap}TABLE{gap}t{gap}")
    assert len(caches.persisted) == 1
    for statement in (
        f"{gap}UNCACHE{gap}TABLE{gap}t",
        f"{gap}CLEAR{gap}CACHE",
        f"{gap}DROP{gap}VIEW{gap}t",
    ):
        sql(statement)
    assert len(caches._given_up) == 3
    caches.release()
    assert not spark.catalog.tableExists("t")


@pytest.mark.parametrize(
    "statement", ["-- UNCACHE TABLE t", "/* CLEAR CACHE */ SELECT 1", "SELECT 'CACHE TABLE t'"]
)
def test_what_only_a_comment_or_a_text_says_is_no_statement_of_the_cache(caches, statement):
    asked = []
    caches._sql(lambda _, text: asked.append(text))(None, statement)
    assert (asked, caches.persisted, caches._given_up) == ([statement], [], [])


def test_a_name_that_is_made_at_run_time_is_not_noted_and_its_view_is_dropped_at_once(
    spark, caches, sql
):
    view(spark, "made")
    sql("CACHE TABLE IDENTIFIER(:name)", args={"name": "made"})
    assert spark.catalog.isCached("made")
    assert caches.persisted == []
    sql("DROP VIEW IF EXISTS IDENTIFIER (:name)", args={"name": "made"})
    assert caches._given_up == []
    assert not spark.catalog.tableExists("made")


def test_only_a_table_that_is_not_found_is_gone_and_other_errors_are_spark_s_own(spark, caches):
    caches.persisted.append(Named(spark, "not there"))
    with pytest.raises(AnalysisException, match="PARSE_SYNTAX_ERROR"), caches.watching([]):
        pass
    caches.persisted[:] = [Named(spark, "not_there")]
    with pytest.raises(AttemptFailedError, match="cache was emptied"), caches.watching([]):
        pass


def test_a_statement_may_be_given_by_the_name_that_sparks_argument_has(spark, caches):
    asked = []
    sql = caches._sql(lambda _, *texts, **named: asked.append((texts, named)))
    sql(spark, sqlQuery="SELECT 1", args=None)
    assert asked == [(("SELECT 1",), {"args": None})]
    sql(spark, sqlQuery="CLEAR CACHE")
    assert len(caches._given_up) == 1


@pytest.mark.parametrize("name", ["my view", "with.dot", "with `ticks`", "plain"])
def test_a_view_is_dropped_behind_the_jobs_by_its_name_as_it_is(spark, caches, name):
    """``dropTempView`` takes a name, and no statement's part."""
    quoted = "`" + name.replace("`", "``") + "`"
    dropped = []
    drop = caches._drop_view(lambda _, name: dropped.append(name))
    view(spark, quoted)
    caches.persisted.append(Named(spark, quoted))
    drop(None, name)
    spark.catalog.cacheTable(quoted)
    drop(None, viewName=name)
    assert dropped == [name]
    caches.release()
    assert dropped == [name, name]


def test_a_global_view_is_dropped_behind_the_jobs(spark, caches):
    dropped = []
    drop = caches._drop_view(
        lambda _, name: dropped.append(name), database=lambda: "`global_temp`."
    )
    spark.range(3).createOrReplaceGlobalTempView("`of all`")
    spark.catalog.cacheTable("global_temp.`of all`")
    caches.persisted.append(Named(spark, "global_temp.`of all`"))
    drop(None, "of all")
    assert dropped == []
    with caches.watching([]):
        pass
    caches.release()
    assert dropped == ["of all"]
    spark.catalog.dropGlobalTempView("of all")


def test_a_view_that_can_not_be_read_any_more_is_dropped_at_once(spark, caches, tmp_path):
    spark.range(1).write.parquet(str(tmp_path / "data"))
    spark.sql(f"CREATE TABLE under_it USING parquet LOCATION '{tmp_path / 'data'}'")
    spark.sql("CREATE OR REPLACE TEMP VIEW over_it AS SELECT id FROM under_it")
    spark.sql("DROP TABLE under_it")
    spark.sql("CREATE TABLE under_it (other INT) USING parquet")
    caches.persisted.append(Named(spark, "over_it"))
    dropped = []
    caches._drop_view(lambda _, name: dropped.append(name))(None, "over_it")
    assert dropped == ["over_it"]
    spark.sql("DROP TABLE under_it")
    spark.catalog.dropTempView("over_it")


def test_what_an_earlier_call_has_persisted_is_freed_at_once_unless_something_may_read_it(caches):
    """A function that refreshes a table which it keeps reads it anew, in the batch that does so."""
    freed = []

    def unpersist(frame, *, blocking=False):
        freed.append((frame, blocking))
        return frame

    leave = caches._leave(unpersist)
    assert leave("of an earlier call", blocking=True) == "of an earlier call"
    assert freed == [("of an earlier call", True)]
    caches.has_written = True
    assert leave("read by a write") == "read by a write"
    assert len(freed) == 1
    caches.release()
    assert freed[1:] == [("read by a write", False)]
    caches.persisted.append("of this call")
    leave("of this call")
    assert len(freed) == 2
    caches.release()
    assert len(freed) == 3


def test_the_second_of_two_tables_that_a_function_keeps_is_read_anew_too(spark, caches):
    """Once it was freed behind the jobs, because the call had persisted the first one by then, and
    its old rows were written."""
    freed = []
    leave = caches._leave(lambda frame: freed.append(frame))
    one, two = spark.range(3), spark.range(4)
    caches.persisted.append(one)
    leave(two)
    assert freed == [two]
    leave(one)
    leave(spark.range(3))
    assert freed == [two], "this call has persisted these rows, and has not computed its jobs"
    caches.has_written = True
    leave(spark.range(5))
    assert freed == [two], "what is to be written may read them"


def test_a_table_of_an_earlier_call_is_uncached_at_once_unless_something_may_read_it(spark, caches):
    asked = []
    uncache = caches._leave_table(lambda _, tableName: asked.append(tableName))  # noqa: N803  Spark's
    sql = caches._sql(lambda _, text: asked.append(text))
    uncache(None, tableName="t")
    sql(spark, "UNCACHE TABLE IF EXISTS t")
    assert asked == ["t", "UNCACHE TABLE IF EXISTS t"]
    sql(spark, "CLEAR CACHE")  # of all that others have there, the batch's rows, too
    caches.persisted.append("of this call")
    uncache(None, "t")
    sql(spark, "uncache table t")
    assert len(asked) == 2
    caches.release()
    assert asked[2:] == ["CLEAR CACHE", "t", "uncache table t"]
