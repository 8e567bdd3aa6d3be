"""What happened in a writer's run, and what came of it, as the report has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceforall.demo.observe import Batch
from onceforall.demo.onlooker import Seen
from onceforall.demo.outputs import SINKS, Leftovers
from onceforall.demo.truth import Agreement, Verdict

BAD = ("lost", "duplicated", "wrong")


@dataclass
class Story:
    """What happened, with times in seconds since the run's start.

    Attributes:
        started_at: the run's start, in seconds since 1970.
        lives: of each driver, when it was started, when both queries had completed a batch, and
            when it ended.
        kills: when each SIGKILL was sent, and which batch of which query was in flight.
        unexpected_ends: how often the driver ended though nobody had killed it.
        duration_s: of the whole run, without the reading and judging behind it.
    """

    started_at: float
    lives: list[dict[str, float]] = field(default_factory=list)
    kills: list[dict[str, Any]] = field(default_factory=list)
    unexpected_ends: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """A run's result.

    Attributes:
        story: what happened.
        verdicts: by query and sink.
        agreements: by query.
        leftovers: what was left when the job had ended in an orderly way.
        seen: by sink, what the onlooker saw.
        onlooker_failure: what ended its looking early; None: nothing.
        batches: by query.
    """

    story: Story
    verdicts: Mapping[str, Mapping[str, Verdict]]
    agreements: Mapping[str, Agreement]
    leftovers: Leftovers
    seen: Mapping[str, Seen]
    onlooker_failure: str | None
    batches: Mapping[str, Sequence[Batch]]

    def as_dict(self) -> dict[str, Any]:
        """Return it for the report; times are in seconds since the run's start."""
        sinks = {
            sink: _totals([by_sink[sink] for by_sink in self.verdicts.values()]) for sink in SINKS
        }
        return {
            **{name: sum(numbers[name] for numbers in sinks.values()) for name in BAD},
            "kills": len(self.story.kills),
            "hits": sum(1 for kill in self.story.kills if kill["in_flight"]),
            "sinks": sinks,
            "queries": {
                query: {sink: verdict.as_dict() for sink, verdict in by_sink.items()}
                for query, by_sink in self.verdicts.items()
            },
            "agreement": {
                query: agreement.as_dict() for query, agreement in self.agreements.items()
            },
            "leftovers": self.leftovers.as_dict(),
            "concurrent_reads": {sink: seen.as_dict() for sink, seen in self.seen.items()},
            "concurrent_reader_failure": self.onlooker_failure,
            "unexpected_ends": self.story.unexpected_ends,
            "duration_s": round(self.story.duration_s, 1),
            "timeline": {
                "kills": self.story.kills,
                "drivers": self.story.lives,
                "batches": self._timeline(),
            },
        }

    def _timeline(self) -> dict[str, list[dict[str, Any]]]:
        start = self.story.started_at
        return {
            query: [
                {
                    "batch": batch.number,
                    "planned_s": round(batch.planned_at - start, 3),
                    "committed_s": round(batch.committed_at - start, 3),
                    "events": batch.events,
                }
                for batch in found
            ]
            for query, found in self.batches.items()
        }


def _totals(verdicts: Sequence[Verdict]) -> dict[str, int]:
    names = ("expected", "read", *BAD)
    return {name: sum(verdict.as_dict()[name] for verdict in verdicts) for name in names}
