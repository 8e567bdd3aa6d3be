"""No watermark of the pipeline drops an event that `cleanse` let pass, however the batches fall:
the truth rests on that."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import numpy as np
import pytest

from onceforall.demo.ads import generator
from onceforall.demo.ads.main import batch_size

EXAMPLE = Path(__file__).parents[3] / "examples" / "ad_events"
HOUR_MS = 3_600_000


def constant_ms(name, file):
    """The constant of a job, which is a text such as ``6 hours``."""
    text = (EXAMPLE / file).read_text(encoding="utf-8")
    number, unit = re.search(rf'^{name} = "(\d+) (minute|hour)s?"$', text, re.MULTILINE).groups()
    return int(number) * {"minute": 60_000, "hour": HOUR_MS}[unit]


def shares(backlog, limit):
    """How many records of each partition a batch takes: Spark's rule
    (``KafkaMicroBatchStream.rateLimit``), which rounds down."""
    total = sum(backlog)
    if total <= limit:
        return list(backlog)
    exact = [limit * size / total for size in backlog]
    return [
        min(size, math.ceil(share) if share < 1 else math.floor(share))
        for size, share in zip(backlog, exact, strict=True)
    ]


def batches_of_cleanse(ground, limit):
    """Yield, per batch, which records (by their place in the order of arrival) it takes."""
    kinds = ground.kind[ground.sent]
    partitions = generator.partition_of(ground.user[ground.sent], kinds) + 100 * (
        kinds == generator.ORDER
    )
    logs = [np.flatnonzero(partitions == number) for number in np.unique(partitions)]
    taken = [0] * len(logs)
    while any(
        counts := shares([len(log) - at for log, at in zip(logs, taken, strict=True)], limit)
    ):
        yield np.concatenate(
            [log[at : at + count] for log, at, count in zip(logs, taken, counts, strict=True)]
        )
        taken = [at + count for at, count in zip(taken, counts, strict=True)]


def lateness_ms(batches):
    """The most by which a moment is behind the newest one of an earlier batch."""
    newest, latest = None, 0
    for batch in batches:
        if newest is not None and len(batch):
            latest = max(latest, newest - int(min(batch)))
        if len(batch):
            newest = max(newest or 0, int(max(batch)))
    return latest


@pytest.fixture(scope="module", params=[100_000, 300_000])
def ground(request):
    return generator.make_ground(request.param, request.param)


@pytest.fixture(scope="module")
def cleansed(ground):
    return list(batches_of_cleanse(ground, batch_size(len(ground.kind))))


def test_cleanse_reads_its_partitions_so_evenly_that_no_arrival_is_behind_its_horizon(
    ground, cleansed
):
    assert sum(map(len, cleansed)) == ground.records
    assert len(cleansed) >= 10
    assert lateness_ms([ground.arrival_ms[batch] for batch in cleansed]) < constant_ms(
        "REPEATED_WITHIN", "cleanse.py"
    )


def backlog(*stretches):
    """The batches in which a backlog is read, as times of arrival: of partitions that each
    filled evenly, from one hour to another."""
    logs = [
        np.linspace(begin * HOUR_MS, end * HOUR_MS, 20_000).astype(np.int64)
        for begin, end in stretches
    ]
    taken = [0] * len(logs)
    while any(
        counts := shares([len(log) - at for log, at in zip(logs, taken, strict=True)], 1_000)
    ):
        yield np.concatenate(
            [log[at : at + count] for log, at, count in zip(logs, taken, counts, strict=True)]
        )
        taken = [at + count for at, count in zip(taken, counts, strict=True)]


def test_a_backlog_is_read_in_time_where_its_partitions_filled_evenly_and_else_falls_behind_the_horizon_as_the_page_says():
    horizon = constant_ms("REPEATED_WITHIN", "cleanse.py")
    assert lateness_ms(backlog(*[(0, 6)] * 5)) < horizon / 100
    uneven = list(backlog(*[(0, 6)] * 4, (5, 6)))
    assert lateness_ms(uneven) > 3 * horizon
    # More than the length of the backlog is enough.
    assert lateness_ms(uneven) < 6 * HOUR_MS
    behind = sum(
        int((batch <= max(map(max, uneven[:number])) - horizon).sum())
        for number, batch in enumerate(uneven)
        if number
    )
    assert behind > 0.6 * 4 * 20_000


@pytest.mark.parametrize(
    "kinds", [(generator.VIEW, generator.CLICK), (generator.CLICK,), (generator.ORDER,)]
)
@pytest.mark.parametrize("seed", range(3))
def test_a_reader_of_what_cleanse_wrote_finds_no_event_behind_its_watermark(
    ground, cleansed, kinds, seed
):
    chance = random.Random(f"{seed} {kinds}")
    limit = batch_size(len(ground.kind))
    # By kind and partition, as the topics lie.
    logs = {(kind, partition): [] for kind in kinds for partition in range(2)}
    taken = dict.fromkeys(logs, 0)
    read = []

    def take():
        backlog = {name: len(log) - taken[name] for name, log in logs.items()}
        counts = shares(list(backlog.values()), limit)
        batch = []
        for (name, log), count in zip(logs.items(), counts, strict=True):
            batch += log[taken[name] : taken[name] + count]
            taken[name] += count
        read.append(batch)

    for records in cleansed:
        good = records[ground.fate[ground.sent[records]] == generator.GOOD]
        events = ground.sent[good]
        moments = {name: [] for name in logs}
        for kind, user, moment in zip(
            *(c[events].tolist() for c in (ground.kind, ground.user, ground.happened_ms)),
            strict=True,
        ):
            if (kind, user % 2) in moments:
                moments[kind, user % 2].append(moment)
        # The partitions of a batch become visible one after the other, and the reader may come at
        # any moment between, or be away for long.
        away = chance.random() < 0.3
        for name in chance.sample(sorted(moments), len(moments)):
            logs[name] += moments[name]
            if not away and chance.random() < 0.5:
                take()
    while any(len(log) > taken[name] for name, log in logs.items()):
        take()
    assert (
        sum(map(len, read))
        == np.isin(
            ground.kind[ground.sent][ground.fate[ground.sent] == generator.GOOD], kinds
        ).sum()
    )
    assert lateness_ms(read) < constant_ms("WATERMARK_DELAY", "pipeline.py")


def test_what_is_in_time_for_the_generator_is_in_time_for_cleanse_and_what_is_late_is_late():
    text = (EXAMPLE / "cleanse.py").read_text(encoding="utf-8")
    (limit,) = re.findall(r"INTERVAL (\d+) HOUR", text)
    assert (
        generator.ORDINARY_DELAY_MS + generator.REPEATED_WITHIN_MS
        < int(limit) * HOUR_MS
        < generator.LATE_FROM_MS
    )
    assert constant_ms("REPEATED_WITHIN", "cleanse.py") > generator.REPEATED_WITHIN_MS
