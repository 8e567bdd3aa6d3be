"""What retention surely still has, by clocks that tell whole seconds and of several servers."""

import pytest

from onceforall.sources.kinesis.planning import _reaches

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("late_ms", "reaches"),
    [(-120_000, True), (-60_001, True), (-60_000, False), (-1, False), (0, False), (30_000, False)],
)
def test_near_its_limit_retention_is_not_trusted(late_ms, reaches):
    """What it may just have taken is looked for, record by record."""
    read_at = 1_795_000_000_000
    assert _reaches(DAY_MS, read_at + DAY_MS + late_ms, read_at) == reaches
