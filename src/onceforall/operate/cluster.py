"""Looks, from every executor, whether a query of this library can run there: Python, packages, the
way to each server, the clock.

Executors get no secret: they look up each server's name and connect to its port, and that is all.
Whether a password is right, the driver's start finds out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onceforall._version import __version__
from onceforall.common import arguments
from onceforall.common.arguments import shown
from onceforall.driver.executors import ask_each, by_value, executors_of
from onceforall.errors import MissingExtraError, OptionError, SinkUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ClusterReport", "Place", "check_cluster", "wait_for_executors"]

EXTRAS: Mapping[str, Sequence[str]] = {
    "kafka": ("confluent-kafka",),
    "postgres": ("psycopg",),
    "operators": ("protobuf",),
    "s3": ("boto3",),
    "azure": ("azure-storage-blob", "azure-identity"),
    "gcs": ("google-cloud-storage",),
    "stores": ("obstore",),
    "hdfs": ("hdfs-native",),
    "kinesis": ("boto3", "protobuf"),
    "pravega": ("grpcio", "protobuf"),
}
"""Of each extra that tasks need, the packages whose versions are looked at."""

_ALWAYS = ("onceforall", "pyspark", "pyarrow", "numpy")
_WITHIN_S = 60.0
_CONNECT_WITHIN_S = 5.0
_BROKERS_WITHIN_S = 15.0
_CLOCK_S = 5.0
"""A clock that is further off than this, for certain, is a finding: requests to S3 are refused by
their time, and watermarks and Kafka's timestamps are wrong by it."""
_DEFAULT_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "postgres": 5432}


@dataclass(frozen=True)
class Place:
    """What one process sees: the driver, or an executor.

    Attributes:
        host: its host, as its operating system says.
        executable: the Python there.
        python: its version.
        packages: versions by name; None: not installed.
        unreachable: by server, why it can't be reached; servers that can are left out.
        clock_ahead_s: how far its clock is ahead of the driver's at least, in seconds; negative:
            behind; 0 where it may be right.
    """

    host: str
    executable: str
    python: str
    packages: Mapping[str, str | None]
    unreachable: Mapping[str, str]
    clock_ahead_s: float = 0.0


@dataclass(frozen=True)
class ClusterReport:
    """What was found.

    Attributes:
        driver: what the driver sees.
        executors: what each executor sees that has answered.
        there: how many executors there are.
        servers: those that were looked for, as ``host:port``.
        problems: sentences, each with the remedy; empty: nothing was found.
    """

    driver: Place
    executors: Sequence[Place]
    there: int
    servers: Sequence[str]
    problems: Sequence[str] = field(default_factory=tuple)


def check_cluster(
    spark: SparkSession,
    *,
    extras: Iterable[str] = (),
    servers: Iterable[str] = (),
    kafka: Mapping[str, str] | None = None,
    within_s: float = _WITHIN_S,
) -> ClusterReport:
    """Run a job that looks from each executor that is there now.

    Args:
        spark: a session of the cluster; its executors are looked at.
        extras: of this library, those that the query's tasks need, such as ``kafka``.
        servers: what tasks connect to: ``host:port``, several with commas, or a URL with a host
            (``postgresql://…``, ``https://…``); nothing else of it is looked at.
        kafka: options of librdkafka's for a cluster of brokers (``bootstrap.servers``, and what
            logs in). The driver asks it for its brokers, and each executor looks for each of them
            at the address that it tells clients.
        within_s: how long executors may take to answer, in seconds.

    Returns:
        The report. Executors that don't answer in time, or come later (dynamic allocation), are
        not in it; a problem says how many didn't answer.

    Raises:
        OptionError: an argument is wrong.
        ExecutorCheckError: no Python runs there, or another version than the driver's.
        UnsupportedQueryError: the session is Spark Connect's, which doesn't tell its executors.
        SinkUnavailableError: no broker has answered the driver.
        MissingExtraError: `kafka` is given, and confluent-kafka isn't installed here.
    """
    named = _extras(extras)
    given = arguments.names("servers", servers, "a server, or a list of servers")
    looked_for = [address for text in given for address in _addresses(text)]
    seconds = arguments.number("within_s", within_s, positive=True)
    options = {} if kafka is None else arguments.mapping("kafka", kafka, "options of librdkafka's")
    arguments.check_session(spark, "check_cluster")
    if options:
        looked_for += [each for each in _brokers(options) if each not in looked_for]
    packages = (*_ALWAYS, *(package for extra in named for package in EXTRAS[extra]))
    connects_s = min(_CONNECT_WITHIN_S, seconds / 2)
    look = partial(by_value(_look), packages, looked_for, connects_s)
    began = time.time()
    answers, there = ask_each(spark.sparkContext, look, seconds)
    ended = time.time()
    ((_, mine),) = _look(packages, looked_for, connects_s, ())
    driver = _place(mine, 0.0, float("inf"))
    executors = sorted(
        (_place(answer, began, ended) for answer in answers), key=lambda place: place.host
    )
    problems = tuple(_problems(driver, executors, there, named))
    return ClusterReport(driver, executors, there, looked_for, problems)


def wait_for_executors(spark: SparkSession, count: int, within_s: float) -> None:
    """Wait until there are so many executors, or the time is over.

    Args:
        spark: a session of the cluster.
        count: how many.
        within_s: how long, in seconds.
    """
    arguments.check_session(spark, "wait_for_executors")
    end = time.monotonic() + within_s
    while len(executors_of(spark.sparkContext)) < count and time.monotonic() < end:
        time.sleep(0.1)


def _extras(extras: Iterable[str]) -> list[str]:
    named = arguments.names("extras", extras)
    for name in named:
        if name not in EXTRAS:
            raise OptionError(
                f"extras has {name!r} in it, and tasks need none of that name. Give any of "
                f"{', '.join(EXTRAS)}."
            )
    return list(dict.fromkeys(named))


def _brokers(options: Mapping[str, Any]) -> list[str]:
    """Return the addresses that the brokers tell their clients."""
    try:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient
    except ImportError as error:
        raise MissingExtraError("confluent-kafka", "kafka") from error
    try:
        # What librdkafka says on stderr comes as the exception, too.
        client = AdminClient({"log_level": 2, **options})
        found = client.list_topics(timeout=_BROKERS_WITHIN_S)
    except (KafkaException, TypeError, ValueError) as error:
        raise SinkUnavailableError(
            f"No broker of {shown(options.get('bootstrap.servers'))} has told the driver its "
            f"brokers: {error}. Look at the address and at what logs in."
        ) from error
    return sorted(f"{broker.host}:{broker.port}" for broker in found.brokers.values())


def _addresses(text: str) -> Iterator[str]:
    """Yield ``host:port`` of each server in a text, without what else a URL has."""
    for each in text.split(","):
        part = each.strip()
        try:
            url = urlsplit(part if "://" in part else f"//{part}")
            host, port = url.hostname, url.port or _DEFAULT_PORTS.get(url.scheme)
        except ValueError:
            host = port = None
        if not host or port is None or not arguments.is_host(host):
            raise OptionError(
                "servers has an entry without a host or a port. Give host:port, or a URL with a "
                "host (postgresql://host/…)."
            )
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _place(answer: Sequence[Any], began: float, ended: float) -> Place:
    host, executable, python, packages, unreachable, clock = answer
    ahead = max(0.0, clock - ended) + min(0.0, clock - began)
    return Place(host, executable, python, packages, unreachable, round(ahead, 1))


def _problems(
    driver: Place, executors: Sequence[Place], there: int, extras: Sequence[str]
) -> Iterator[str]:
    if not executors:
        yield (
            "No executor has answered. Look whether the cluster has free cores and memory for one, "
            "and whether executors can connect to the driver (spark.driver.host)."
        )
    elif len(executors) < there:
        yield (
            f"{there - len(executors)} of {there} executors have not answered in time. Run the "
            "check again when no other job keeps them busy."
        )
    bracket = f"[{','.join(extras)}]" if extras else ""
    install = f"pip install 'onceforall{bracket}=={__version__}'"
    yield from _problems_of("The driver", driver, install)
    for place in executors:
        yield from _problems_of("The executor", place, install)
        yield from _differences(place, driver)


def _problems_of(what: str, place: Place, install: str) -> Iterator[str]:
    where = f"{what} on {place.host} ({place.executable})"
    missing = [name for name, version in place.packages.items() if version is None]
    if missing:
        yield f"{where} lacks {', '.join(missing)}. Install there: {install}."
    for server, reason in place.unreachable.items():
        yield (
            f"{where} can't reach {server}: {reason}. Look at its name service, routes and "
            "firewalls, and at the address that the server tells its clients."
        )
    if abs(place.clock_ahead_s) > _CLOCK_S:
        yield (
            f"{where} has a clock that is {abs(place.clock_ahead_s)} s or more "
            f"{'ahead of' if place.clock_ahead_s > 0 else 'behind'} the driver's. Let NTP keep "
            "both."
        )


def _differences(place: Place, driver: Place) -> Iterator[str]:
    for name in ("onceforall", "pyspark"):
        mine, its = driver.packages[name], place.packages[name]
        if its is not None and its != mine:
            yield (
                f"The executor on {place.host} ({place.executable}) has {name} {its}, and the "
                f"driver has {mine}. Install the driver's there."
            )
    if place.python.rpartition(".")[0] != driver.python.rpartition(".")[0]:
        yield (
            f"The executor on {place.host} has Python {place.python}, and the driver has "
            f"{driver.python}. Let PYSPARK_PYTHON name an interpreter of the same version."
        )


def _look(
    packages: Sequence[str], servers: Sequence[str], within_s: float, _rows: Iterable[Any]
) -> Iterator[tuple[str, Any]]:
    """Tell what is seen here; it runs in an executor's Python, and needs nothing but Python."""
    import importlib.metadata
    import os
    import platform
    import socket
    import sys
    import time
    from concurrent.futures import ThreadPoolExecutor

    versions: dict[str, str | None] = {}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except Exception:  # noqa: BLE001, PERF203  a package that is damaged may raise anything
            versions[name] = None

    def reach(server: str) -> str | None:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=within_s).close()
        except (OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    # Beside one another: behind a firewall that answers nothing, each takes all of its time.
    with ThreadPoolExecutor(max(1, len(servers))) as threads:
        reasons = list(threads.map(reach, servers))
    unreachable = {server: why for server, why in zip(servers, reasons) if why is not None}  # noqa: B905  of one length
    yield (
        os.environ.get("SPARK_LOCAL_DIRS", ""),
        (
            socket.gethostname(),
            sys.executable,
            platform.python_version(),
            versions,
            unreachable,
            time.time(),
        ),
    )
