"""``onceforall cluster``: looks, from each executor, whether a query can run there."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceforall.errors import ConfigurationError, MissingExtraError, OptionError, text_of

if TYPE_CHECKING:
    from onceforall.operate.cluster import ClusterReport


def add_commands(groups: Any) -> None:
    """Add the group to argparse's sub-parsers (a type that argparse keeps private)."""
    cluster = groups.add_parser("cluster", help="look whether a Spark cluster can run a query")
    commands = cluster.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="look from each executor: Python, packages, servers, clock",
        description="Starts a Spark session as your job does (spark-defaults.conf and "
        "PYSPARK_SUBMIT_ARGS count, --master and --conf win over them), and runs one short job "
        "that looks from each executor: the versions of Python, onceforall and its extras, whether "
        "each server can be reached, and the clock. Executors get no password. "
        "Exit code 0: nothing was found; 1: there are problems, with the remedies; 2: it couldn't "
        "be looked at.",
    )
    check.add_argument("--master", metavar="URL", help="such as spark://master:7077, or yarn")
    check.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark's"
    )
    check.add_argument(
        "--extra", action="append", default=[], metavar="NAME", help="that tasks need: kafka, s3, …"
    )
    check.add_argument(
        "--server",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="that tasks connect to; or a URL with a host",
    )
    check.add_argument(
        "--kafka", metavar="HOST:PORT", help="brokers; each is looked for where it says that it is"
    )
    check.add_argument(
        "--kafka-config",
        metavar="FILE",
        help="librdkafka's options for the driver's question, one NAME=VALUE a line: passwords "
        "belong there, and not on a command line",
    )
    check.add_argument(
        "--executors", type=int, metavar="N", help="wait until there are so many (1)", default=1
    )
    check.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="for an answer (60)"
    )
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    from onceforall.operate.cluster import check_cluster, wait_for_executors

    kafka = _kafka(arguments)
    spark = _session(arguments)
    try:
        wait_for_executors(spark, arguments.executors, arguments.seconds)
        report = check_cluster(
            spark,
            extras=arguments.extra,
            servers=arguments.server,
            kafka=kafka,
            within_s=arguments.seconds,
        )
    finally:
        spark.stop()
    if arguments.json:
        print(json.dumps(asdict(report)))
    else:
        _show(report)
    return 1 if report.problems else 0


def _session(arguments: argparse.Namespace) -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError("pyspark", "demo") from error
    builder = SparkSession.builder.appName("onceforall cluster check")
    if arguments.master is not None:
        builder = builder.master(arguments.master)
    for each in arguments.conf:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise OptionError("--conf needs NAME=VALUE, such as spark.cores.max=4.")
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except Exception as error:  # of PySpark's or Py4J's, whatever Spark refuses
        java = getattr(error, "java_exception", None)
        said = text_of(error) if java is None else str(java.toString())
        raise ConfigurationError(
            f"No Spark session could be started: {said.partition(chr(10))[0].rstrip('.')}. Look at "
            "what Spark has said above, at --master and --conf, and at the driver's Java "
            "(JAVA_HOME)."
        ) from error


def _kafka(arguments: argparse.Namespace) -> dict[str, str] | None:
    options: dict[str, str] = {}
    if arguments.kafka_config is not None:
        try:
            lines = Path(arguments.kafka_config).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise OptionError(f"--kafka-config {arguments.kafka_config}: {error}.") from error
        except UnicodeDecodeError:  # whose text may show a part of a password
            raise OptionError(
                f"--kafka-config {arguments.kafka_config} isn't in UTF-8. Write it so."
            ) from None
        for number, line in enumerate(map(str.strip, lines), 1):
            name, equals, value = (part.strip() for part in line.partition("="))
            if line and not line.startswith("#"):
                if not equals:
                    raise OptionError(
                        f"Line {number} of {arguments.kafka_config} isn't NAME=VALUE."
                    )
                options[name] = value
    if arguments.kafka is not None:
        options["bootstrap.servers"] = arguments.kafka
    return options or None


def _show(report: ClusterReport) -> None:
    places = [("driver", report.driver), *(("executor", each) for each in report.executors)]
    rows = [["", "host", "python", *report.driver.packages, *report.servers, "clock"]]
    for name, place in places:
        ahead = place.clock_ahead_s
        rows.append(
            [
                name,
                place.host,
                place.python,
                *(version or "missing" for version in place.packages.values()),
                *("no" if server in place.unreachable else "yes" for server in report.servers),
                f"{ahead:+} s" if ahead else "right",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )
    print(f"{len(report.executors)} of {report.there} executors have answered.")
    for problem in report.problems:
        print(f"PROBLEM: {problem}")
    if not report.problems:
        print("Nothing was found against this cluster.")
