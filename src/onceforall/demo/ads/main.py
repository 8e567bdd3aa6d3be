"""The whole ads demo: set-up, both pipelines, the ledger."""

from __future__ import annotations

import importlib
import json
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onceforall._version import __version__
from onceforall.demo.ads import destinations, ledger
from onceforall.demo.ads.faults import plan
from onceforall.demo.ads.feed import Feed
from onceforall.demo.ads.furnishing import furnish
from onceforall.demo.ads.generator import PARTITIONS, Ground, make_ground
from onceforall.demo.ads.jobs import WRITERS, Place, examples_folder
from onceforall.demo.ads.run import PipelineRun, Servers, Story
from onceforall.demo.ads.show import conclusion, show, show_ledger
from onceforall.demo.ads.truth import Truth, truth_of
from onceforall.demo.display import Display
from onceforall.demo.folders import prepare
from onceforall.demo.main import check_extra
from onceforall.demo.stage import Stage
from onceforall.errors import MissingExtraError, OptionError

_BATCHES = 24
"""How many batches the events make: enough for many moments between them, and none that is
longer than the jobs wait."""
_SMALLEST_BATCH = 2_000
"""Spark rounds each partition's share of a batch down: in smaller ones, the small partitions
would be hours behind the others."""
# The fewer events a partition has, the less evenly they lie in it.
_MINIMUM_EVENTS = 100_000
_SEEDS = 1_000_000


@dataclass(frozen=True)
class AdsOptions:
    """What a user can choose.

    Attributes:
        seed: of events, truth and kills; None: a new one, which is printed.
        events: how many.
        minutes: when the demo is given up.
        out: the folder of report and logs.
        keep: keep checkpoints, files and the servers' data.
        only: ``onceforall`` or ``spark``: only this pipeline; None: both.
    """

    seed: int | None = None
    events: int = 2_000_000
    minutes: float = 30.0
    out: Path = Path("build/demo-ads")
    keep: bool = False
    only: str | None = None


def run_ads_demo(options: AdsOptions) -> int:
    """Run the demo, print the ledger and write ``report.json``.

    Returns:
        0 when all destinations of onceforall agree with the truth after at least ten kills, else 1.

    Raises:
        MissingExtraError: a package of the extras ``demo`` and ``operators`` is not installed.
        OptionError: an option is out of its range.
        OnceForAllError: the demo could not be run to its end.
    """
    _check_extras()
    examples_folder()
    _check(options)
    started = time.monotonic()
    deadline = started + 60 * options.minutes
    out = options.out.absolute()
    prepare(out, "report.json", "*.log")
    seed = secrets.randbelow(_SEEDS) if options.seed is None else options.seed
    print(
        f"Seed {seed}: {options.events:,} ad events are drawn, and what must come out of them.",
        flush=True,
    )
    ground = make_ground(seed, options.events)
    truth = truth_of(ground)
    faults = plan(seed)
    results: dict[str, Any] = {}
    with (
        Stage("onceforall-ads-", keep=options.keep) as stage,
        Display(ground.records, len(faults)) as display,
    ):
        display.say(
            f"Kafka runs at {stage.broker.bootstrap_servers}, PostgreSQL {stage.postgres.version} "
            "at "
            f"{stage.postgres.host}:{stage.postgres.port}."
        )
        _publish(stage, ground, display)
        writers = WRITERS if options.only is None else (options.only,)
        for writer in writers:
            place = _place(writer, stage, out, options.events)
            servers = Servers(stage.broker, stage.postgres)
            with PipelineRun(
                place, servers, ground.records, display.watch(writer), deadline=deadline
            ) as run:
                story = run.run(faults)
            results[writer] = _result(place, truth, story)
            report = _report(
                seed, options.events, ground, truth, results, duration_s=time.monotonic() - started
            )
            (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
            if writer != writers[-1]:
                # The next one takes minutes, and somebody may not wait for it.
                show_ledger(report, writer)
    show(report)
    print(conclusion(report))
    print(
        f"{report['duration_s']:.0f} s. See {options.out / 'report.json'}; again with the same "
        f"events and kills: --seed {seed}",
        flush=True,
    )
    return 0 if report["passed"] else 1


def _check_extras() -> None:
    check_extra()
    try:
        importlib.import_module("google.protobuf")
    except ImportError as error:
        # Through it PySpark speaks with the state of `attribute`.
        raise MissingExtraError("protobuf", "operators") from error


def batch_size(events: int) -> int:
    """Return how many records a batch of a job has at most."""
    return max(_SMALLEST_BATCH, events // _BATCHES)


def _check(options: AdsOptions) -> None:
    if options.events < _MINIMUM_EVENTS:
        raise OptionError(f"--events {options.events} is too few: {_MINIMUM_EVENTS:,} at least.")
    if options.minutes <= 0:
        raise OptionError(
            f"--minutes {options.minutes} leaves no time. Give a positive number, such as 30."
        )
    if options.only is not None and options.only not in WRITERS:
        raise OptionError(f"--only {options.only} is none of {', '.join(WRITERS)}.")
    if options.seed is not None and options.seed < 0:
        raise OptionError(f"--seed {options.seed} is negative. Give a whole number from 0 on.")


def _publish(stage: Stage, ground: Ground, display: Display) -> None:
    """Make the topics of the input, and publish all records there; both pipelines read the same
    topics.
    """
    for topic, partitions in PARTITIONS.items():
        stage.broker.create_topic(topic, partitions=partitions)
    began = time.monotonic()
    said_at = [began]

    def tell(published: int) -> None:
        if time.monotonic() - said_at[0] > 5:
            said_at[0] = time.monotonic()
            display.say(f"{published:,} of {ground.records:,} records are published.")

    Feed(stage.broker.bootstrap_servers).publish(ground, tell)
    display.say(f"{ground.records:,} records are published, in {time.monotonic() - began:.0f} s.")


def _place(writer: str, stage: Stage, out: Path, events: int) -> Place:
    """Make a writer's topics and database, with the campaigns in it."""
    place = Place(
        writer,
        stage.broker.bootstrap_servers,
        stage.postgres.url(writer),
        stage.work_dir / writer,
        out,
        stage.jars,
        batch_size(events),
    )
    furnish(place, stage.broker, stage.postgres, writer)
    return place


def _result(place: Place, truth: Truth, story: Story) -> dict[str, Any]:
    """Read everything that a pipeline has written, and compare."""
    return {
        "destinations": {
            name: ledger.account(truth, destinations.ledger_rows(place, name))
            for name in destinations.DESTINATIONS
        },
        "dead_letters": ledger.account_of_dead_letters(truth, destinations.dead_letters(place)),
        "late": ledger.account_of_late(truth, destinations.late_ids(place)),
        "hidden_partitions": destinations.hidden_partitions(place),
        **asdict(story),
    }


def _report(
    seed: int,
    events: int,
    ground: Ground,
    truth: Truth,
    results: dict[str, Any],
    *,
    duration_s: float,
) -> dict[str, Any]:
    return {
        "seed": seed,
        "events": events,
        "records": ground.records,
        "truth": ledger.true_account(truth),
        "results": results,
        **ledger.verdict(truth, results),
        "duration_s": round(duration_s, 1),
        "versions": {"onceforall": __version__},
    }
