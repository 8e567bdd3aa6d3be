"""Why a target is missed, and what was tried: shown on the page for those that are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.report import targets
from benchmarks.report.grouping import Unit

REASONS: Mapping[str, str] = {
    "throughput, ours / Spark's own sink": """A record of Spark's own sink goes from the row to the Java producer within one thread. Ours is copied into an Arrow batch, through a socket into a Python
worker, and from there into librdkafka's queue: [where a record's time goes](#where-a-records-time-goes) has the steps. A small record costs less in librdkafka than in the Java producer, which pays for
the way; a large one costs by its bytes, and they are copied more often. Tried without effect: larger buffers of the sockets, shorter and longer queues of librdkafka, allocators that keep their memory,
another garbage collector. With effect, and in the figures: Arrow batches that fit into a cache and have no limit in bytes, one call of librdkafka per partition and slice of rows.""",
    "throughput, ours / Flink": """Spark's Kafka source into an empty Python function, without any sink, takes most of the CPU that Flink takes for all it does (compare [the
steps](#where-a-records-time-goes) with Flink's row), and all cores are busy. What is left is less than a producer and the broker need. Flink's job is a chain of operators in one thread, without a row
format in between: here records are bytes from beginning to end.""",
    "throughput, ours exactly-once / ours at-least-once": """Per record there is no difference that [the steps](#where-a-records-time-goes) would show; per batch there are a decision and a commit, the same for
small and for large ones: see [the cost of a commit](#the-cost-of-a-commit). With few rounds the place within the round matters more than both.""",
    "CPU seconds per million records": "As for the throughput: the way through Arrow and a Python "
    "worker, by the bytes.",
    "p50 latency at 2,000/s, ours / Spark's": """Spark's own sink shows each record as soon as the broker has it, in the middle of a batch; ours are visible at the batch's decision, all together, or
they would not be exactly-once. And the job takes longer, through its Python workers: [where a batch's time goes](#where-a-batchs-time-goes). One task per batch and a checkpoint without processes can make
both faster.""",
    "p99 latency at 2,000/s, ours / Spark's": "As for the median: who comes right behind the "
    "beginning of a batch waits for all of this one and "
    "of the next.",
    "p50 latency at 2,000/s, ours at a 1 s trigger": """Flink writes a record when it comes, long before the checkpoint: there, only the commit is left. Spark begins to read a batch at the trigger, so
that a record waits half a second on average, as in Flink, and then for the whole of its batch. No sink can change this; shorter batches can.""",
    "decision and commit": "The decision is one synced file, and each sink's commit a round trip "
    "to its server, in parallel.",
    "recovery after kill -9": """The commit log and the sinks' recovery are milliseconds. What is added is the first batch: the JVM loads and compiles the way through Arrow, and Python workers have to be
started, on cores that the new JVM wants for itself: [where a restart's time goes](#where-a-restarts-time-goes). Tried with effect, and in the figures: workers that import neither pandas nor the driver's
part of the library, and a [daemon that has loaded what they need](speed.md#a-restart). Tried without: to start the workers ahead, beside the planning of the first batch; the cores are busy by then.""",
    "PostgreSQL": """A bare COPY has its rows in the right form in memory. Ours get them from Spark, and write Arrow's columns as COPY's text: [what is left for the sink](#postgresql) is the
difference between the last rows and an empty Python function. Beside what users do today (`spark-jdbc`), both modes are faster. Staged rows are written twice, once into a table of their own.""",
    "one pass to three sinks": """One job makes the formats of all three sinks, and all cores are busy in it, as they are for Spark's three writes. What is saved is to read and to shape the rows twice
more, and PostgreSQL's way of taking them through JDBC; what the formats and the servers cost stays. Tried with effect, and in the figures: a column that several sinks take goes to the Python workers once,
and so does the hash of equal ones.""",
}
"""By the beginning of the target's text."""


def lines(units: Sequence[Unit]) -> Iterator[str]:
    """Yield the lines for the targets that are missed by what was measured; one that says so if
    none is.
    """
    outcomes = [targets.outcome(target, units) for target in targets.TARGETS]
    if not any(each.spread for each in outcomes):
        return
    missed = [each.target.text for each in outcomes if each.met is False]
    for beginning, why in REASONS.items():
        texts = [text for text in missed if text.startswith(beginning)]
        if texts:
            yield f"- **{_joined(texts)}**. {why or _UNKNOWN}"
    unexplained = [text for text in missed if not text.startswith(tuple(REASONS))]
    if unexplained:
        yield f"- **{_joined(unexplained)}**. {_UNKNOWN}"
    if not missed:
        yield "None of those that were measured."


_UNKNOWN = "The reason isn't known yet."


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(texts)
