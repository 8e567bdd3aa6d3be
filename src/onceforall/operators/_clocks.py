"""Spark's watermark and timers in microseconds.

Spark's watermark begins at 0, which is 1970-01-01T00:00:00Z, and never is below. So at 0 there is
none yet, and a row of that time or before is not late.
"""

NEVER_US = -(2**63)
"""Before every time that a TIMESTAMP can have."""


def watermark_us(watermark_ms: int) -> int:
    """Return Spark's watermark in microseconds; one that no time has reached where it is 0."""
    return watermark_ms * 1000 if watermark_ms > 0 else NEVER_US


def timer_ms(time_us: int) -> int:
    """Return the first watermark, in milliseconds, that isn't before a time.

    The least one is 1: a timer for 0 or before would expire at once, with no watermark.
    """
    return max(1, -(-time_us // 1000))
