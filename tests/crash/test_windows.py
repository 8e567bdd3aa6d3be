"""Sessions through Kafka, with the driver killed: every result and every late row is there once,
and is the reference's."""

import json
import re

import pytest

from operators.window_reference import Rules, outputs, split_late
from support import windows_pipeline as program
from support.driver import ROWS_PER_BATCH, Driver, Pipeline
from support.reading import released, values
from support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

RULES = Rules(
    events=program.EVENTS,
    gap=program.GAP_MS * 1000,
    duration=program.DURATION_MS * 1000,
    early_events=program.EARLY,
)
UNTIL = 25


class WindowsPipeline(Pipeline):
    def start(self, failpoints="", **config):
        number = next(self._numbers)
        driver = Driver(
            self.folder / f"driver{number}",
            {**self.config, **config},
            failpoints,
            program=program.__file__,
        )
        self.drivers.append(driver)
        return driver


@pytest.fixture
def pipeline(tmp_path, broker, topic):
    made = WindowsPipeline(
        tmp_path,
        broker.bootstrap_servers,
        topic(partitions=3),
        late_topic=topic(),
        until_batch=UNTIL,
    )
    yield made
    made.close()


def watermarks_us(pipeline):
    """Return the watermark that each committed batch ran with, as Spark's offset log has it."""
    found = []
    for batch in range(pipeline.batches()):
        text = (pipeline.checkpoint / "offsets" / str(batch)).read_text()
        found.append(int(re.search(r'"batchWatermarkMs":(\d+)', text)[1]) * 1000)
    return found


def expected(pipeline):
    watermarks = watermarks_us(pipeline)
    rows = range(ROWS_PER_BATCH * len(watermarks))
    events = [program.event_of(row, ROWS_PER_BATCH) for row in rows]
    said, late = [], []
    for user in range(7):
        history = [
            (
                watermark,
                [
                    (at * 1000, value, 0, value)
                    for who, at, value in events[n * ROWS_PER_BATCH :][:ROWS_PER_BATCH]
                    if who == user
                ],
            )
            for n, watermark in enumerate(watermarks)
        ]
        on_time, too_late = split_late(history)
        said += [{"user": user, **row} for row in outputs(RULES, on_time, watermarks[-1])]
        late += [str(event[3]) for event in too_late]
    return said, sorted(late)


def assert_windows_exactly_once(pipeline):
    released(pipeline.bootstrap, pipeline.topic)
    released(pipeline.bootstrap, pipeline.config["late_topic"])
    said, late = expected(pipeline)
    texts = sorted(
        json.dumps(
            {
                "user": row["user"],
                "kind": row["kind"],
                "window_index": row["index"],
                "revision": row["revision"],
                "events": row["events"],
                "closed_by": row["closed_by"],
                "total": int(row["sum"]),
                "rows": row["rows"],
                "window_start": row["start"],
                "window_end": row["end"],
            },
            sort_keys=True,
        )
        for row in said
    )
    assert {row["closed_by"] for row in said} == {None, "gap", "count", "duration"}, (
        "not every rule was put to the test"
    )
    assert len(late) > 5
    seen = [json.loads(value) for value in values(pipeline.bootstrap, pipeline.topic)]
    nothing = {"closed_by": None, "window_end": None}
    assert sorted(json.dumps({**nothing, **row}, sort_keys=True) for row in seen) == texts
    assert values(pipeline.bootstrap, pipeline.config["late_topic"]) == late


def test_a_driver_killed_again_and_again_gives_each_session_and_each_late_row_once(pipeline):
    for failpoint in (
        "append_commit.before=kill@4",
        "append_commit.after=kill@5",
        "commit.after=kill@4",
        "append_done.before=kill@6",
    ):
        pipeline.start(failpoint).wait_until_killed()
    before = pipeline.batches()
    driver = pipeline.start()
    until(lambda: pipeline.batches() > before + 1, 120, f"two more batches\n{driver.log()}")
    driver.signal(9)  # in the middle of whatever it does
    driver.wait_until_killed()
    pipeline.run()
    assert_windows_exactly_once(pipeline)
