"""``onceforall kafka``: the embedded broker in the foreground, and the jars of Spark's Kafka
connector.
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

from onceforall.errors import EmbeddedServerError, OptionError


def add_commands(groups: Any) -> None:
    """Add the group to argparse's sub-parsers (a type that argparse keeps private)."""
    kafka = groups.add_parser("kafka", help="an embedded Kafka broker, and Spark's jars for Kafka")
    commands = kafka.add_subparsers(title="commands", required=True, metavar="COMMAND")

    start = commands.add_parser(
        "start",
        help="run a broker in the foreground until Ctrl-C",
        description="Run a single-node Kafka broker on 127.0.0.1 until Ctrl-C or SIGTERM. Its "
        "address is printed when it answers.",
    )
    start.add_argument(
        "--port",
        type=int,
        default=9092,
        help="where clients connect; 0 chooses a free port (default: 9092)",
    )
    start.add_argument(
        "--data-dir",
        type=Path,
        help="keep the data there (default: a temporary folder, removed at the end)",
    )
    start.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="a broker setting; may be repeated",
    )
    start.set_defaults(run=_start)

    jars = commands.add_parser(
        "jars",
        help="print the connector's jars, separated by commas, for spark.jars",
        description="Fetch the jars of Spark's Kafka connector that fit the installed pyspark, "
        "and print them for spark.jars.",
    )
    jars.set_defaults(run=_jars)


def _start(arguments: argparse.Namespace) -> int:
    from onceforall.embedded import EmbeddedKafka

    config = dict(_parse_setting(setting) for setting in arguments.settings)
    broker = EmbeddedKafka(port=arguments.port, data_dir=arguments.data_dir, config=config)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with broker:
            print(broker.bootstrap_servers, flush=True)
            status = broker.wait()
            raise EmbeddedServerError(
                f"The broker ended by itself with status {status}. Start it with --data-dir to "
                "keep its log."
            )
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)


def _parse_setting(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not (key.strip() and equals):
        raise OptionError(f"--set {setting} is no setting. Write it as --set key=value.")
    return key.strip(), value


def _jars(arguments: argparse.Namespace) -> int:
    del arguments
    from onceforall.embedded import spark_kafka_jars

    print(",".join(str(jar) for jar in spark_kafka_jars()))
    return 0
