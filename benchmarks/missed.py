"""Why a target is missed, and what was tried: shown on the page for those that are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks import targets
from benchmarks.grouping import Unit

REASONS: Mapping[str, str] = {
    "throughput, ours / Spark's own sink": """A record of Spark's own sink goes from the row to the Java producer within one thread. Ours is copied into an Arrow batch, through a socket into a Python worker, and
from there into librdkafka's queue: the tables of [where a record's time goes](#where-a-records-time-goes) show the steps. It is paid back in part by librdkafka, which needs less of the CPU than the Java
producer and the garbage collection of its buffers. Tried without effect: larger socket buffers, smaller and larger queues of librdkafka. With effect, and in the figures: Arrow batches that
fit into a cache, no limit in bytes, one call of librdkafka per partition and slice of rows.""",
    "throughput, ours / Flink": """Spark's Kafka source into an empty Python function, without any sink, takes a large part of the CPU that Flink needs for all it does (compare the two tables), and the cores are shared
by everything here. What is left for the sink is too little to catch up. Flink's job is a chain of three operators with object reuse, on records that are never more than bytes.""",
    "throughput, ours exactly-once / ours at-least-once": """The transaction adds a decision and a commit to each batch, and both are the same for small and for large ones: see [the cost of a
commit](#the-cost-of-a-commit).""",
    "CPU seconds per million records": """As for the throughput: the way through Arrow and a Python worker.""",
    "p50 latency at 2,000/s, ours / Spark's": """Spark's own sink shows each record as soon as the broker has it, in the middle of a batch; ours are visible at the batch's decision, all together. That
alone is half of the job's time. The rest is the Python worker: see [where a batch's time goes](#where-a-batchs-time-goes). Fewer tasks and a checkpoint without processes help both.""",
    "p99 latency at 2,000/s, ours / Spark's": """As for the median: a record that comes right after a batch has begun waits for this batch and for the decision of the next.""",
    "p50 latency at 2,000/s, ours at a 1 s trigger": """Flink has written a record long before the checkpoint that commits it: when the checkpoint comes, only the commit is left. Spark begins to read a
batch at the trigger, so that a record waits half a second on average, as in Flink, and then for the whole of its batch.""",
    "decision and commit": "The decision is one synced file, and each sink's commit a round trip to its server, in parallel.",
    "recovery after kill -9": "Ours asks brokers and commit log, before its first batch, what became of the transactions of the last run.",
    "PostgreSQL": """Ready-made text is what the server takes when the client has nothing to do: ours has to read the rows of Spark and to write them as text. Staged rows are written twice, once
into a table of their own.""",
    "one pass to three sinks": "",
}
"""By the beginning of the target's text."""


def lines(units: Sequence[Unit]) -> Iterator[str]:
    """Yield the lines for the targets that are missed by what was measured; one that says so if none is."""
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
