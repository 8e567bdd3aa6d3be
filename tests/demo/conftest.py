"""Fixtures of the demo's tests: some real flights, and a report as the demo writes it."""

from __future__ import annotations

import pytest

from onceforall.demo import report as reports
from onceforall.demo.flights import closing_event, event_of, load_flights
from onceforall.demo.observe import Batch
from onceforall.demo.onlooker import Seen
from onceforall.demo.outcome import Outcome, Story
from onceforall.demo.outputs import SINKS, Leftovers
from onceforall.demo.run import Plan
from onceforall.demo.truth import Agreement, Verdict


@pytest.fixture(scope="session")
def flights():
    """The first 5,000 flights of the data set, in order."""
    return load_flights(5000)


@pytest.fixture
def outcome():
    """Make the outcome of a run: ``outcome(sink="kafka", lost=0, …)``; the bad rows are events
    of that sink."""

    def make(
        sink="kafka",
        lost=0,
        duplicated=0,
        wrong=0,
        expected=5000,
        kills=5,
        left=None,
        disagreeing=(),
        compared=5,
        reads=70,
        partial=0,
        failure=None,
        is_hit=True,
    ):
        story = Story(1000.0, duration_s=50.0)
        for number in range(kills):
            story.kills.append(
                {"at_s": 8.0 * number + 7, "in_flight": {"events": number} if is_hit else {}}
            )
            story.lives.append(
                {
                    "started_s": 8.0 * number,
                    "working_s": 8.0 * number + 4,
                    "ended_s": 8.0 * number + 7,
                }
            )
        batches = {
            query: [
                Batch(number, 1004.0 + 8 * number, 1008.5 + 8 * number, 1000) for number in range(5)
            ]
            for query in ("events", "windows")
        }
        verdicts = {
            "events": dict.fromkeys(SINKS, Verdict(expected, expected, 0, 0, 0)),
            "windows": dict.fromkeys(SINKS, Verdict(300, 300, 0, 0, 0)),
        }
        verdicts["events"][sink] = Verdict(
            expected, expected - lost + duplicated, lost, duplicated, wrong
        )
        agreements = {"events": Agreement(compared, disagreeing), "windows": Agreement(5, ())}
        seen = {"files": Seen(80, 0), "postgres": Seen(reads, partial)}
        return Outcome(story, verdicts, agreements, Leftovers(**left or {}), seen, failure, batches)

    return make


@pytest.fixture
def report(flights, outcome):
    """Make a report of two outcomes: by default ours is exact, and Spark's doubled 1,234 rows in
    files."""

    def make(ours=None, theirs=None):
        plan = Plan([event_of(flight) for flight in flights], closing_event(flights[-1]), [1.0] * 5)
        outcomes = {
            "onceforall": ours or outcome(),
            "spark": theirs or outcome(sink="files", duplicated=1234),
        }
        return reports.build(plan, 7, outcomes, setup_s=3.0, demo_s=100.0, postgres_version="15.18")

    return make
