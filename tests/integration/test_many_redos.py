"""Lost transactions of Kafka sources of all shapes, again and again: every one heals by restarts
alone. ``make redos`` runs a hundred."""

import os
import random

import pytest

from integration.test_redo_of_kafka_sources import Copy

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

REDOS = int(os.environ.get("REDOS", "12"))
SEED = int(os.environ.get("REDOS_SEED", "1"))


@pytest.mark.timeout(120 * REDOS)
def test_every_loss_of_a_kafka_source_heals_by_restarts_alone(spark, broker, topic, tmp_path, run):
    choose, redone, round_number = random.Random(SEED), 0, 0
    while redone < REDOS:
        partitions = [choose.randint(1, 12) for _ in range(choose.randint(1, 3))]
        losses = [choose.randint(1, sum(partitions)) for _ in range(choose.randint(1, 2))]
        folder = tmp_path / str(round_number)
        folder.mkdir()
        job = Copy(spark, broker, topic, folder, run, partitions)
        job.start("append_commit.after=raise")
        for lost in losses[:-1]:
            job.lose(lost)
            # The redo is decided, and its driver fails before it commits.
            job.start("append_commit.after=raise")
        job.lose(losses[-1])
        job.start()
        job.assert_complete()
        redone, round_number = redone + len(job.commits()) - 1, round_number + 1
        print(  # noqa: T201  whoever runs a hundred wants to see them
            f"seed {SEED}, round {round_number}: partitions {partitions}, lost {losses}; {redone} "
            "redos so far"
        )
        assert len(job.commits()) > 1, "nothing was lost"
