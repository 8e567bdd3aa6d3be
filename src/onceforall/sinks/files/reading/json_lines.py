"""JSON lines back to Arrow; module ``task.json_lines`` has the form in which each type is
written.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def decoded(content: bytes, schema: pa.Schema) -> pa.Table:
    """Read lines of JSON that ``encoded`` made.

    Args:
        content: the lines.
        schema: their types.

    Raises:
        ValueError: a line is not one of these.
    """
    import pyarrow as pa

    rows = [json.loads(line, parse_float=_number) for line in content.split(b"\n") if line]
    columns = [
        pa.array(
            [_value(row.get(field.name), field.type) for row in rows], field.type, size=len(rows)
        )
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _number(text: str) -> Decimal:
    return Decimal(text)


def _value(value: Any, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _value(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        return [
            (_key(key, kind.key_type), _value(item, kind.item_type)) for key, item in value.items()
        ]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(item, kind.value_type) for item in value]
    return _simple(value, kind)


def _simple(value: Any, kind: pa.DataType) -> Any:  # noqa: PLR0911
    import pyarrow as pa

    if pa.types.is_floating(kind):
        return _FLOATS.get(value, math.nan) if isinstance(value, str) else float(value)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return base64.b64decode(value)
    if pa.types.is_date(kind):
        return days_of(value)
    if pa.types.is_timestamp(kind):
        return _units_of(value.removesuffix("Z"), kind.unit)
    if pa.types.is_time(kind):
        return pa.scalar(value, pa.string()).cast(kind).as_py()
    return value


def days_of(text: str) -> int:
    """Return a date in days since 1970; Python's own has no year above 9999, and none below 1.

    Raises:
        ValueError: it is none.
    """
    import numpy as np

    return int(np.datetime64(text, "D").astype(np.int64))


def _units_of(text: str, unit: Any) -> int:
    import numpy as np

    return int(np.datetime64(text, unit).astype(np.int64))


_FLOATS: Mapping[str, float] = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def _key(text: str, kind: pa.DataType) -> Any:
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_integer(kind):
        return int(text)
    return _value(text if not pa.types.is_floating(kind) or text in _FLOATS else float(text), kind)
