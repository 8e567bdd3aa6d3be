"""The whole Kinesis demo: servers, feed, kills, and the comparison with the truth."""

from __future__ import annotations

import json
import random
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceforall._version import __version__
from onceforall.demo import observe
from onceforall.demo.ads.jobs import environment_of
from onceforall.demo.driver import PythonProcess
from onceforall.demo.folders import prepare, work_folder
from onceforall.demo.kinesis.feed import AHEAD, CHUNK, Count, Feed
from onceforall.embedded import EmbeddedKafka, EmbeddedKinesis, spark_kafka_jars
from onceforall.errors import EmbeddedServerError, MissingExtraError, OptionError

_PARTITIONS = 3
_SHARDS = 2
_STREAM, _TOPIC = "views", "views-by-page"
_FEWEST_KILLS = 3
_SEEDS = 1_000_000
_QUIET_S = 240.0
_TICK_S = 0.2
_RESHARD_EACH = 5
_WORDS = ("lost", "doubled", "wrong")


@dataclass(frozen=True)
class KinesisOptions:
    """What a user can choose.

    Attributes:
        kills: how often the job is killed.
        seed: of the views, the resharding and the moments of the kills; None: a new one.
        events: how many views are put, rounded up to whole chunks.
        out: the folder of report and logs.
        keep: keep checkpoint, files and the broker's data.
    """

    kills: int = 5
    seed: int | None = None
    events: int = 10_000
    out: Path = Path("build/demo-kinesis")
    keep: bool = False


def run_kinesis_demo(options: KinesisOptions) -> int:
    """Run the demo, print what the sinks hold, and write ``report.json``.

    Returns:
        0 when topic and files both hold the truth after all kills, else 1.

    Raises:
        MissingExtraError: a package of the extras ``demo`` and ``kinesis`` is not installed.
        OptionError: an option is out of its range.
        OnceForAllError: the demo could not be run to its end.
    """
    _check(options)
    try:
        import boto3
    except ImportError as error:
        raise MissingExtraError("boto3", "kinesis") from error
    out = options.out.absolute()
    prepare(out, "report.json", "job.log")
    seed = secrets.randbelow(_SEEDS) if options.seed is None else options.seed
    began = time.monotonic()
    with (
        work_folder("onceforall-kinesis-demo-", keep=options.keep) as folder,
        EmbeddedKafka(data_dir=folder / "kafka") as broker,
        EmbeddedKinesis() as server,
    ):
        broker.create_topic(_TOPIC, partitions=_PARTITIONS)
        server.create_stream(_STREAM, shards=_SHARDS)
        client = boto3.client("kinesis", **server.client_arguments)
        feed = Feed(client, _STREAM, seed, -(-options.events // CHUNK))
        run = _Run(feed, broker, server, folder, out / "job.log", seed, options.kills)
        print(
            f"Seed {seed}: {options.events:,} views go through Kinesis, and the job that counts "
            f"them is killed {options.kills} times.",
            flush=True,
        )
        try:
            run.run()
        finally:
            run.end()
        report: dict[str, Any] = {
            "seed": seed,
            "events": feed.put * CHUNK,
            "windows": len(feed.truth),
            "kills": run.kills,
            "reshardings": run.reshardings,
            "sinks": {name: compared(feed.truth, read) for name, read in run.read().items()},
            "seconds": round(time.monotonic() - began),
            "versions": {"onceforall": __version__},
        }
    report["passed"] = not any(sink[word] for sink in report["sinks"].values() for word in _WORDS)
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _show(report, out)
    return 0 if report["passed"] else 1


def compared(truth: Counter[Count], read: list[tuple[Count, int]]) -> dict[str, int]:
    """Compare the counts that a sink holds with the truth.

    Args:
        truth: views per page and window.
        read: each row of the sink: page and window, and its views.

    Returns:
        ``expected`` and ``read`` rows; rows ``lost``, ``doubled`` (one more of a page and window,
        or one that shouldn't be), and with a ``wrong`` count.
    """
    rows = Counter(count for count, _ in read)
    return {
        "expected": len(truth),
        "read": len(read),
        "lost": len(truth.keys() - rows.keys()),
        "doubled": sum(number - (count in truth) for count, number in rows.items()),
        "wrong": sum(views != truth[count] for count, views in read if count in truth),
    }


def _check(options: KinesisOptions) -> None:
    if options.kills < _FEWEST_KILLS:
        raise OptionError(f"--kills {options.kills} shows too little: {_FEWEST_KILLS} at least.")
    fewest = CHUNK * 4 * options.kills
    if options.events < fewest:
        raise OptionError(
            f"--events {options.events} is too few for {options.kills} kills: {fewest:,} at least."
        )
    if options.seed is not None and options.seed < 0:
        raise OptionError(f"--seed {options.seed} is negative. Give a whole number from 0 on.")


class _Run:
    """The job's lives, beside the feed."""

    def __init__(  # noqa: PLR0917
        self,
        feed: Feed,
        broker: EmbeddedKafka,
        server: EmbeddedKinesis,
        folder: Path,
        log: Path,
        seed: int,
        kills: int,
    ) -> None:
        self._feed, self._broker, self._server = feed, broker, server
        self._folder, self._log, self._planned = folder, log, kills
        self._random = random.Random(f"kills {seed}")  # noqa: S311  moments, not secrets
        self._checkpoint = folder / "checkpoint"
        self._job: PythonProcess | None = None
        self.kills = 0
        self.reshardings = 0

    def run(self) -> None:
        feed = self._feed
        self._start()
        chunks_between = max(1, self._chunks_left() // (self._planned + 1))
        while not feed.is_over:
            feed.put_chunk()
            self._wait_until_waiting_at_most(AHEAD - 1)
            if feed.put % _RESHARD_EACH == 0:
                self._say(feed.reshard())
                self.reshardings += 1
            if self.kills < self._planned and feed.put % chunks_between == 0:
                self._kill()
        while self.kills < self._planned:
            self._kill()
        self._wait_until_waiting_at_most(0)
        feed.close()
        self._wait(lambda: len(self._topic_rows()) >= len(feed.truth), "the last windows")

    def _chunks_left(self) -> int:
        return self._feed.chunks - self._feed.put

    def _start(self) -> None:
        work = self._folder / "work"
        (work / "tmp").mkdir(parents=True, exist_ok=True)
        source = {
            "streamName": _STREAM,
            "startingPosition": "TRIM_HORIZON",
            **self._server.source_options,
        }
        named = {
            "--source": json.dumps(source),
            "--servers": self._broker.bootstrap_servers,
            "--topic": _TOPIC,
            "--folder": str(self._folder / "files"),
            "--checkpoint": str(self._checkpoint),
        }
        self._job = PythonProcess(
            ["-m", "onceforall.demo.kinesis.job", *(x for pair in named.items() for x in pair)],
            work_dir=work,
            log=self._log,
            environment=environment_of(work, spark_kafka_jars()),
        )

    def _kill(self) -> None:
        """At some moment of the next seconds, which may be one of a batch, or of a start."""
        until = time.monotonic() + self._random.uniform(0.0, 6.0)
        self._wait(lambda: time.monotonic() > until, "a moment")
        assert self._job is not None
        if self._job.kill():
            self.kills += 1
            self._say(f"kill -9 no. {self.kills}")
        self._start()

    def _wait_until_waiting_at_most(self, chunks: int) -> None:
        self._wait(
            lambda: self._feed.waiting(self._checkpoint) <= chunks, "the job takes what was put"
        )

    def _wait(self, condition: Any, what: str) -> None:
        end = time.monotonic() + _QUIET_S
        while not condition():
            assert self._job is not None
            if self._job.return_code is not None or time.monotonic() > end:
                raise EmbeddedServerError(
                    f"The demo waits for this and it doesn't come: {what}. The job's last words "
                    f"are in {self._log}:\n{self._job.last_words()[-1500:]}"
                )
            time.sleep(_TICK_S)

    def end(self) -> None:
        if self._job is not None:
            self._job.kill()

    def _say(self, text: str) -> None:
        print(f"{self._feed.put * CHUNK:>9,} views put: {text}", flush=True)

    def _topic_rows(self) -> list[tuple[Count, int]]:
        values = map(
            json.loads, observe.read_values(self._broker.bootstrap_servers, _TOPIC, _PARTITIONS)
        )
        return [((each["page"], each["start"]), each["views"]) for each in values]

    def read(self) -> dict[str, list[tuple[Count, int]]]:
        """Return the rows that readers find in each sink."""
        from onceforall.sinks.files import read_files

        files = read_files(str(self._folder / "files")).to_arrow().to_pylist()
        return {
            "topic": self._topic_rows(),
            "files": [
                ((each["page"], int(each["start"].timestamp())), each["views"]) for each in files
            ],
        }


def _show(report: dict[str, Any], out: Path) -> None:
    print(
        f"{report['events']:,} views, {report['windows']:,} counts of pages in windows; "
        f"{report['kills']} kills, {report['reshardings']} times resharded, {report['seconds']} s."
    )
    for name, sink in report["sinks"].items():
        told = ", ".join(f"{sink[word]} {word}" for word in _WORDS)
        print(f"{name}: {sink['read']:,} of {sink['expected']:,} rows read: {told}")
    print("Both hold the truth." if report["passed"] else "NOT the truth: please report this.")
    print(
        f"See {out / 'report.json'}; again with the same views and kills: --seed {report['seed']}"
    )
