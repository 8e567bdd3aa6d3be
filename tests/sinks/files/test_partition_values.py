"""What a partition's folder is named after."""

from decimal import Decimal

import pyarrow as pa
import pytest

from onceforall.sinks.files.task.partitions import _texts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0E-8", "0.00000000"),
        ("1E-8", "0.00000001"),
        ("-1.5E-7", "-0.00000015"),
        ("123.4", "123.40000000"),
        (None, None),
    ],
)
def test_a_small_decimal_is_written_out_as_spark_does(value, text):
    column = pa.array([None if value is None else Decimal(value)], pa.decimal128(18, 8))
    assert _texts("rate", column).to_pylist() == [text]
