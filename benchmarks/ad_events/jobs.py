"""Each job of the ad-events pipeline (``examples/ad_events``) alone: its throughput, CPU and
memory, and its latency.

The jobs are those of ``onceforall demo ads``, with its settings of Spark (two cores, 768 MB of
heap, the first compiler only) and the trigger of one second that they ship with. A contender
``…-spark`` is the same job with Spark's own writers (``onceforall.demo.ads.plain``), which promise
less. The generator's events go through `cleanse`, its output through `aggregate` and `attribute`,
theirs through `load`; `--contenders` must name a job together with those before it.

*Throughput.* A job reads topics that were full before it started, alone, to their end. For
`attribute` and `load`, of whose records there are few, they hold several days with the same
traffic, so that there are ``batches`` batches at least. Every contender but those of `cleanse` has
a copy of its own of what ours wrote before: the same input for both, and without transaction
markers, so that offsets count records. The day is not closed: its last windows stay open, here as
with any job that goes on. What counts is what was *read*, by the checkpoint, between the ends of
two batches in the steady state (`figures.steady_window`: the first fifth of the records and the
last twentieth are left out). A job whose batches take less than a second waits for its trigger in
between, and could do more with larger
ones: that shows in ``busy``.

`attribute` joins two sources, and Spark limits each of them on its own: as after an outage, a batch
takes as many orders as clicks, though there are fewer orders, and these wait in the state
for the clicks of their time. What comes after the last order is left out, but it is the throughput
of a job that catches up, with a state that grows meanwhile.

*Latency.* Records of the same input are sent at a steady rate, in the same order, to a job with a
new checkpoint on a broker of its own; in event time that is a day within minutes. A record's
latency goes from the time at which it was meant to be sent to that at which the batch that read it
was complete, all its sinks included: an upper bound of when its effect was visible. `aggregate` and
`attribute` hold rows back until the watermark
has passed them: there this is the time until a record is counted in a decided batch, not until its
window or its order is written.

A sample: ``records`` (all), ``records_per_s``, ``seconds`` (of the window), ``batches`` (in it),
``busy`` (the share of the window in which a batch was under way), ``cpu_s_per_million`` and
``peak_mb`` by group of processes and in total, and ``latency``: ``p50_ms``, ``p99_ms``, ``max_ms``,
``rate``, ``records``, ``generator_late_ms``, ``kept_up``.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import rounds
from benchmarks.ad_events.batches import (
    BatchLog,
    busy_share,
    by_partition,
    counts_of,
    latency_of,
    while_all_last,
)
from benchmarks.ad_events.replay import send_days
from benchmarks.ad_events.stand import Job, Scene, Stand, make_shared_topics
from benchmarks.report import figures
from benchmarks.report.results import Sample
from benchmarks.settings import Load
from benchmarks.stands.children import Child, MeasurementError
from benchmarks.stands.processes import Meter
from onceforall.demo.ads.feed import Feed
from onceforall.demo.ads.generator import PARTITIONS, make_ground
from onceforall.demo.ads.jobs import JOBS, ONCEFORALL, READS, SPARK, TOPICS
from onceforall.demo.ads.progress import stable_ends
from onceforall.embedded import EmbeddedKafka, EmbeddedPostgres

DESCRIPTIONS: Mapping[str, str] = {
    "cleanse": "cleanse: parse, judge, identify, deduplicate",
    "aggregate": "aggregate: sums by campaign and window",
    "attribute": "attribute: orders to clicks, looked up in PostgreSQL",
    "load": "load: to Kafka, Parquet and PostgreSQL",
}
"""What each job does; `text_of` has the text of a contender."""
WRITTEN_BY = {
    **dict.fromkeys(("views", "clicks", "orders-checked"), "cleanse"),
    "spend": "aggregate",
    **dict.fromkeys(("attributed", "unmatched"), "attribute"),
}
"""The job that writes a topic which another one reads."""
SOURCES = {"attribute": 2}
"""How many sources a job joins, where they are several."""
CONTENDERS = tuple(f"{job}{which}" for job in JOBS for which in ("", f"-{SPARK}"))

_SEED = 1
_START_DEADLINE_S = 600.0
_REST_DEADLINE_S = 600.0
_LOAD_DEADLINE_S = 600.0
_SLOWEST_PER_S = 1_000
_TRAFFIC_GOES_ON_S = 3.0


def plans(quick: bool) -> list[rounds.Plan]:  # noqa: FBT001
    """Return the plan.

    ``batch`` is how many records a batch has at most (the jobs' own default), ``batches`` how many
    of them there are at least.
    """
    if quick:
        more = {
            "events": 20_000,
            "batch": 2_000,
            "batches": 8,
            "rate": 200,
            "seconds": 5,
            "warm_up_s": 3,
        }
        return [rounds.Plan(tuple(JOBS), Load(), more, repeats=1, minutes=6)]
    more = {
        "events": 1_200_000,
        "batch": 100_000,
        "batches": 12,
        "rate": 2000,
        "seconds": 30,
        "warm_up_s": 10,
    }
    return [rounds.Plan(CONTENDERS, Load(), more, repeats=2, minutes=22, lag=rounds.LATER)]


def run(turn: rounds.Round) -> dict[str, Sample]:
    """Run one round."""
    with (
        # Not below the work folder: Spark's sockets lie in it, and a socket's path may have 107
        # characters only.
        tempfile.TemporaryDirectory(prefix="onceforall-ad-jobs-") as folder,
        EmbeddedKafka() as broker,
        # As in the demo: the server syncs its log.
        EmbeddedPostgres(settings={"fsync": "on"}) as postgres,
    ):
        make_shared_topics(broker)
        ground = make_ground(_SEED, turn["events"])
        Feed(broker.bootstrap_servers).publish(ground, lambda _: None)
        alone = Alone(turn, broker, Scene(postgres, Path(folder)), ground.records)
        # A job needs the output of those before it, whoever begins.
        chain = replace(turn.plan, contenders=in_order(turn.plan.contenders, turn.turn))
        return replace(turn, plan=chain, turn=0).each(alone.measure)


def in_order(contenders: Sequence[str], turn: int) -> tuple[str, ...]:
    """Return contenders in the order of the chain; which writer is first changes from round to
    round.

    Raises:
        SystemExit: there is no such contender.
    """
    if unknown := set(contenders) - set(CONTENDERS):
        raise SystemExit(
            f"There is no {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}."
        )
    step = -1 if turn % 2 else 1
    return tuple(
        name
        for job in JOBS
        for name in [each for each in contenders if split(each)[0] == job][::step]
    )


def split(contender: str) -> tuple[str, str]:
    """Return the job and the writer."""
    job, _, which = contender.partition("-")
    return job, which or ONCEFORALL


def text_of(contender: str) -> str:
    """Return what a contender is, for the page."""
    job, writer = split(contender)
    return "the same with Spark's own writers" if writer == SPARK else DESCRIPTIONS[job]


@dataclass(frozen=True)
class Alone:
    """Measures jobs of a round, one at a time.

    Attributes:
        turn: the round.
        broker: holds what they read for throughput.
        scene: makes their places.
        records: how many the generator has published.
    """

    turn: rounds.Round
    broker: EmbeddedKafka
    scene: Scene
    records: int

    def measure(self, contender: str, work: Path) -> Sample:
        """Return a contender's sample.

        Raises:
            MeasurementError: it failed, or a job before it wrote nothing.
            ValueError: there were too few batches.
        """
        job, writer = split(contender)
        # Spark limits each source of a batch on its own.
        most = self.turn["batch"] // SOURCES.get(job, 1)
        full = self.scene.stand(writer, contender, self.broker, work / "full", most)
        sample = self._throughput(full, job, self._filled(full, job))
        with EmbeddedKafka() as broker:
            make_shared_topics(broker)
            live = self.scene.stand(writer, contender, broker, work / "live", most)
            return {**sample, "latency": self._latency(full, live, job, work / "replay")}

    def _filled(self, stand: Stand, job: str) -> int:
        """Fill the topics that a job reads, and return how many records are there."""
        if job == JOBS[0]:
            return self.records
        names = READS[job]
        written = {f"{WRITTEN_BY[name]}-{name}": TOPICS[name] for name in names}
        ends = stable_ends(stand.servers, written)
        if not ends or not all(
            any(ends[topic, number] for number in range(count)) for topic, count in written.items()
        ):
            before = sorted({WRITTEN_BY[name] for name in names})
            raise MeasurementError(
                f"{job} reads what {' and '.join(before)} must have written in the same round, "
                "and there is nothing."
            )
        days = math.ceil(self.turn["batches"] * self.turn["batch"] / sum(ends.values()))
        new_names = {f"{WRITTEN_BY[name]}-{name}": stand.topic(name) for name in names}
        return send_days(stand.servers, new_names, written, days)

    def _throughput(self, stand: Stand, job: str, records: int) -> Sample:
        log = BatchLog(stand.checkpoint(job))
        with (
            Job(stand, job) as running,
            Meter(
                {"job": running.pid, "broker": self.broker.pid, "postgres": self.scene.postgres.pid}
            ) as meter,
        ):
            running.until(lambda: log.look() > 0, _START_DEADLINE_S, "its first batch was complete")
            deadline_s = _REST_DEADLINE_S + records / _SLOWEST_PER_S
            running.until(
                lambda: log.look() >= records, deadline_s, f"it had taken {records:,} records"
            )
            running.end()
        if log.look() != records:
            raise MeasurementError(
                f"{job} has read {log.look():,} records, and there were {records:,}."
            )
        return throughput_of(log, records, meter)

    def _latency(self, full: Stand, live: Stand, job: str, work: Path) -> Sample:
        partitions = {
            topic: count
            for topic, count in full.inputs(job).items()
            if topic != full.topic("heartbeats")
        }
        rate, warm_up_s, seconds = self.turn["rate"], self.turn["warm_up_s"], self.turn["seconds"]
        lasts_s = warm_up_s + seconds + _TRAFFIC_GOES_ON_S
        records: int = round(rate * (1 + lasts_s))
        config = {
            "servers": {"from": full.servers, "to": live.servers},
            "topics": {
                topic: topic
                if topic in PARTITIONS
                else live.topic(topic.removeprefix(full.topic("")))
                for topic in partitions
            },
            "partitions": partitions,
            "rate": rate,
            "first": rate,
            "records": records,
        }
        log = BatchLog(live.checkpoint(job))
        with Child("benchmarks.ad_events.replay", work, config) as replay:
            replay.said("first.json", _LOAD_DEADLINE_S)
            with Job(live, job) as running:
                running.until(
                    lambda: log.look() >= rate, _START_DEADLINE_S, "its first batches were complete"
                )
                (work / "go").touch()
                start_ns = replay.said("began.json")["start_ns"] + round(warm_up_s * 1e9)

                def has_taken_all() -> bool:
                    replay.check()
                    return log.look() >= records

                running.until(
                    has_taken_all,
                    _REST_DEADLINE_S + lasts_s,
                    f"it had taken {records:,} records at {rate:,}/s",
                )
            said = replay.said("sent.json")
        sample = latency_of(
            by_partition(said["sent"]), log.batches, start_ns, start_ns + round(seconds * 1e9)
        )
        return {**sample, "rate": rate, "generator_late_ms": round(said["worst_delay_ms"], 1)}


def throughput_of(log: BatchLog, records: int, meter: Meter) -> Sample:
    """Return the figures of a job that has taken so many records.

    Raises:
        ValueError: there were too few batches.
    """
    counts = counts_of(while_all_last(log.batches))
    window = figures.steady_window(counts, counts[-1][1])
    # Files have the time of day, the meter has a clock that nobody sets.
    behind_s = time.time() - time.monotonic()
    cpu = meter.cpu_between(window.start_s - behind_s, window.end_s - behind_s)
    per_million = {name: round(seconds / window.records * 1e6, 3) for name, seconds in cpu.items()}
    peak = meter.peak_mb()
    return {
        "records": records,
        "records_per_s": round(window.records_per_s),
        "seconds": round(window.end_s - window.start_s, 2),
        "batches": window.commits,
        "busy": round(busy_share(log.batches, window.start_s, window.end_s), 3),
        "cpu_s_per_million": {**per_million, "total": round(sum(per_million.values()), 3)},
        "peak_mb": {**peak, "total": round(sum(peak.values()), 1)},
    }


MEASUREMENT = rounds.Measurement("ad_jobs", plans, run)

if __name__ == "__main__":
    rounds.main(MEASUREMENT)
