"""Local times of instants, for the folders of time buckets.

pyarrow knows the transitions that a zone's file lists, and these end with 2037: it takes the last
offset for all that comes. The rule for the years after them stands in the file's footer, which
Python's zoneinfo reads. Zones that are an offset (``+08:00``) need neither.

Spark knows zones that the files don't: ``GMT+8``, ``UTC+01:00``, ``Z``, and Java's short names, of
which some mean something else elsewhere (``IST``, ``BST``). None of these is guessed at.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from functools import lru_cache
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    import pyarrow as pa

_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_OFFSET = re.compile(r"[+-]\d\d:\d\d")
_LISTED_UNTIL_S = 2_114_380_800
"""2037-01-01. From there on every offset, and every transition, is at a whole minute."""
_LAST_S = 253_402_214_400
"""9999-12-31. A folder's name has no later year."""


def is_known(zone: str) -> bool:
    """Tell whether local times of a zone can be told."""
    if _OFFSET.fullmatch(zone):
        return True
    try:
        _zone(zone)
    except (ValueError, OSError, LookupError):
        return False
    return True


def unknown(zone: str) -> str:
    """Return what is told of a session's zone of which they can't."""
    return (
        f"time_bucket is formatted in the session's time zone {zone!r}, which is no name in the "
        "list of time zones of the system, so its local times can't be told. Give the sink one "
        "that is, by time_bucket_zone= (such as 'Europe/Berlin', or 'Etc/GMT-8' for eight hours "
        "before UTC), or set spark.sql.session.timeZone to one or to an offset such as +08:00."
    )


def local_times(instants: pa.Array) -> pa.Array:
    """Return the local times of timestamps with a zone.

    Raises:
        ValueError: the zone isn't known.
    """
    import pyarrow.compute as pc

    zone = instants.type.tz
    if not is_known(zone):
        raise ValueError(unknown(zone))
    local = pc.local_timestamp(instants)
    return local if _OFFSET.fullmatch(zone) else _with_rules(instants, local, _zone(zone))


def _with_rules(instants: pa.Array, local: pa.Array, zone: ZoneInfo) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    per_second = _PER_SECOND[instants.type.unit]
    units = pc.fill_null(instants.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    seconds = units // per_second
    late = np.flatnonzero((seconds >= _LISTED_UNTIL_S) & (seconds < _LAST_S))
    if not len(late):
        return local
    minutes, of = np.unique(seconds[late] // 60, return_inverse=True)
    offsets = np.array([_offset_s(int(minute) * 60, zone) for minute in minutes], np.int64)
    told = pc.fill_null(local.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).copy()
    told[late] = units[late] + offsets[of] * per_second
    is_null = pc.is_null(instants).to_numpy(zero_copy_only=False)
    return pa.array(told, pa.int64(), mask=is_null).cast(local.type)


def _offset_s(at_s: int, zone: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(at_s, timezone.utc).astimezone(zone).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


@lru_cache(maxsize=8)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


__all__ = ["is_known", "local_times", "unknown"]
