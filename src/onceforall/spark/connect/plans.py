"""What a client of Spark Connect sees of a frame's plan: its own part, with names where the server
has the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.errors import described

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["is_read_once"]

logger = logs.logger("onceforall")

_READ_ONCE = frozenset(
    {
        "aggregate",
        "apply_in_pandas_with_state",
        "cached_local_relation",
        "cached_remote_relation",
        "chunked_cached_local_relation",
        "co_group_map",
        "collect_metrics",
        "deduplicate",
        "drop",
        "drop_na",
        "fill_na",
        "filter",
        "group_map",
        "join",
        "limit",
        "local_relation",
        "map_partitions",
        "offset",
        "parse",
        "project",
        "range",
        "read",
        "repartition",
        "repartition_by_expression",
        "replace",
        "sample",
        "set_op",
        "sort",
        "subquery_alias",
        "tail",
        "to_df",
        "to_schema",
        "unpivot",
        "with_columns",
        "with_columns_renamed",
        "with_watermark",
    }
)
"""Relations whose inputs are computed once for each time that they stand there.

Not those that name what only the server knows, as statements do, nor hints: one may ask for a
product of partitions.
"""


def is_read_once(frame: DataFrame, of: DataFrame) -> bool:
    """Tell whether it is certain that a job which reads a frame reads another one, of which it is
    derived, once at most.
    """
    try:
        number = _relation_of(of).common.plan_id
        reads = 0
        for each in _relations_in(_relation_of(frame)):
            kind = each.WhichOneof("rel_type")
            if each.common.plan_id == number:
                reads += 1
            elif kind not in _READ_ONCE or _is_elsewhere(each, kind) or _may_pair(each, kind):
                return False
            elif kind == "cached_remote_relation":
                # Another frame of the same rows, or one that the function has checkpointed.
                return False
    except Exception as error:  # noqa: BLE001  another Spark; then it is not certain
        logger.debug("how often a batch is read can't be seen: %s", described(error))
        return False
    return reads <= 1


def _relation_of(frame: Any) -> Any:
    return frame._plan.plan(frame.sparkSession.client)  # noqa: SLF001  Connect offers it in no other way


def _relations_in(message: Any) -> Iterator[Any]:
    """Return a relation and all below it, those in its expressions among them."""
    if message.DESCRIPTOR.name == "Relation":
        yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in (value,) if hasattr(value, "ListFields") else value:
            yield from _relations_in(each)


def _is_elsewhere(relation: Any, kind: str) -> bool:
    """Tell whether a relation is a name: of a table, or of a view of the batch."""
    return kind == "read" and relation.read.WhichOneof("read_type") != "data_source"


def _may_pair(relation: Any, kind: str) -> bool:
    """Tell whether a join may compute a side more than once: without columns that have to be equal
    it may pair each partition of one side with each of the other, or look once more for the rows
    that have no partner.
    """
    return kind == "join" and not relation.join.using_columns
