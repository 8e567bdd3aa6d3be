"""What event pipelines need and Spark does not have.

Importing this package imports neither pandas nor Spark: each name is loaded from its module when it
is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceforall.operators.aggregates import Count, First, Last, Max, Min, Rows, Sum
    from onceforall.operators.attribution import (
        attribute,
        attributed_orders,
        late_orders,
        unmatched_orders,
    )
    from onceforall.operators.deduplication import deduplicate, late_duplicates, unique_rows
    from onceforall.operators.enrichment import enrich
    from onceforall.operators.identity import record_id, record_uuid, with_record_id
    from onceforall.operators.lookups import Lookup
    from onceforall.operators.outputs import late_rows, results
    from onceforall.operators.postgres_lookup import PostgresLookup
    from onceforall.operators.sessions import session_window
    from onceforall.operators.state import memory_state, rocksdb_state
    from onceforall.operators.triggers import Trigger
    from onceforall.operators.windows import count_window, tumbling_window

_HOMES = {
    "Count": "aggregates",
    "First": "aggregates",
    "Last": "aggregates",
    "Lookup": "lookups",
    "Max": "aggregates",
    "Min": "aggregates",
    "PostgresLookup": "postgres_lookup",
    "Rows": "aggregates",
    "Sum": "aggregates",
    "Trigger": "triggers",
    "attribute": "attribution",
    "attributed_orders": "attribution",
    "count_window": "windows",
    "deduplicate": "deduplication",
    "enrich": "enrichment",
    "late_duplicates": "deduplication",
    "late_orders": "attribution",
    "late_rows": "outputs",
    "memory_state": "state",
    "record_id": "identity",
    "record_uuid": "identity",
    "results": "outputs",
    "rocksdb_state": "state",
    "session_window": "sessions",
    "tumbling_window": "windows",
    "unique_rows": "deduplication",
    "unmatched_orders": "attribution",
    "with_record_id": "identity",
}

__all__ = [
    "Count",
    "First",
    "Last",
    "Lookup",
    "Max",
    "Min",
    "PostgresLookup",
    "Rows",
    "Sum",
    "Trigger",
    "attribute",
    "attributed_orders",
    "count_window",
    "deduplicate",
    "enrich",
    "late_duplicates",
    "late_orders",
    "late_rows",
    "memory_state",
    "record_id",
    "record_uuid",
    "results",
    "rocksdb_state",
    "session_window",
    "tumbling_window",
    "unique_rows",
    "unmatched_orders",
    "with_record_id",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
