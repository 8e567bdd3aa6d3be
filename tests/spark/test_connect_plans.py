"""Of which plans a client of Spark Connect can tell that a job reads the batch once."""

from types import SimpleNamespace

import pytest
from pyspark.sql.connect.proto import expressions_pb2 as e
from pyspark.sql.connect.proto import relations_pb2 as r

from onceforall.spark.connect.plans import is_read_once


def frame(relation):
    plan = SimpleNamespace(plan=lambda _: relation)
    return SimpleNamespace(_plan=plan, sparkSession=SimpleNamespace(client=None))


def relation(number, **kind):
    return r.Relation(common=r.RelationCommon(plan_id=number), **kind)


BATCH = relation(1, cached_remote_relation=r.CachedRemoteRelation(relation_id="batch"))
LOCAL = relation(2, local_relation=r.LocalRelation(data=b"rows"))
FILES = relation(3, read=r.Read(data_source=r.Read.DataSource(format="parquet")))
VIEW = relation(4, read=r.Read(named_table=r.Read.NamedTable(unparsed_identifier="batch")))
OTHER = relation(5, cached_remote_relation=r.CachedRemoteRelation(relation_id="checkpointed"))
HALF = relation(6, filter=r.Filter(input=BATCH))


def join(left, right, kind=r.Join.JOIN_TYPE_LEFT_OUTER, columns=()):
    made = r.Join(left=left, right=right, join_type=kind, using_columns=columns)
    return relation(9, join=made)


def union(left, right):
    return relation(9, set_op=r.SetOperation(left_input=left, right_input=right))


def in_expression(inner):
    """A frame that stands in an expression of another."""
    subquery = e.Expression(subquery_expression=e.SubqueryExpression(plan_id=inner.common.plan_id))
    kept = relation(8, filter=r.Filter(input=BATCH, condition=subquery))
    return relation(9, with_relations=r.WithRelations(root=kept, references=[inner]))


@pytest.mark.parametrize(
    "read",
    [
        BATCH,
        LOCAL,
        relation(9, project=r.Project(input=HALF)),
        union(HALF, LOCAL),
        join(HALF, FILES, columns=["key"]),
        join(HALF, FILES, r.Join.JOIN_TYPE_INNER, ["key"]),
    ],
)
def test_a_plain_plan_reads_it_once(read):
    assert is_read_once(frame(read), frame(BATCH))


@pytest.mark.parametrize(
    "read",
    [
        union(HALF, BATCH),
        join(BATCH, HALF),
        union(BATCH, VIEW),
        union(BATCH, OTHER),
        VIEW,
        OTHER,
        in_expression(HALF),
        in_expression(LOCAL),
        relation(9, sql=r.SQL(query="SELECT * FROM batch")),
        relation(9, hint=r.Hint(input=BATCH, name="shuffle_replicate_nl")),
        join(HALF, FILES, r.Join.JOIN_TYPE_INNER),
        join(HALF, FILES, r.Join.JOIN_TYPE_CROSS),
        join(HALF, FILES, r.Join.JOIN_TYPE_RIGHT_OUTER),
        relation(9, unknown=r.Unknown()),
    ],
)
def test_whatever_may_read_it_twice_is_taken_to_do_so(read):
    assert not is_read_once(frame(read), frame(BATCH))


def test_what_cannot_be_looked_at_is_taken_to_read_it_twice():
    assert not is_read_once(SimpleNamespace(), frame(BATCH))
