"""What Spark's analyzed plan of a frame shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from onceforall.common.arguments import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_AGGREGATE = re.compile(r"^[\s:|+-]*Aggregate \[", re.MULTILINE)


def aggregates(frame: DataFrame) -> bool:
    """Tell whether a frame of a batch groups or aggregates rows.

    What the streaming query did before, its batch doesn't show.
    """
    found: Any = frame
    if is_connect(frame):
        text = found._explain_string(extended=True)  # noqa: SLF001  explain() only prints it
        analyzed = text.partition("== Analyzed Logical Plan ==")[2].partition("\n== ")[0]
    else:
        analyzed = found._jdf.queryExecution().analyzed().toString()  # noqa: SLF001  Spark offers this in no other way
    return _AGGREGATE.search(analyzed) is not None


def leaves_of(plan: Any) -> list[Any]:
    """Return the leaves of a logical plan of Spark's, those of its subqueries among them: they are
    expressions, and no leaves of the plan itself.
    """
    plans = [plan, *_all_of(plan.subqueriesAll())]
    return [leaf for each in plans for leaf in _all_of(each.collectLeaves())]


def _all_of(jvm_seq: Any) -> list[Any]:
    return [jvm_seq.apply(n) for n in range(jvm_seq.size())]


__all__ = ["aggregates", "leaves_of"]
