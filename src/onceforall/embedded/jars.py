"""The jars of the embedded servers, of Spark's Kafka connector, of Hadoop's S3A client and of
PostgreSQL's JDBC driver: pinned, fetched once, and verified.

``pins.json`` names every jar with its size and SHA-256. The sets of it are kept in a cache folder,
one folder per set; what is missing there is fetched with the Ivy that pyspark's wheel carries, so
that neither Maven nor a Kafka installation is needed.

- The cache is ``$ONCEFORALL_CACHE``, else ``$XDG_CACHE_HOME/onceforall``, else
  ``~/.cache/onceforall``.
- ``$ONCEFORALL_IVY_SETTINGS`` names an ``ivysettings.xml``
  (https://ant.apache.org/ivy/history/latest-milestone/settings.html) for people behind a mirror. A
  proxy is given to Ivy, as to any Java, with ``JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=...``.
- Without a network: lay the jars into the folder by hand; they are verified like fetched ones.

Promised: a jar whose bytes differ from its pin is named in an error and is never handed out; a
crash in the middle of a fetch or two fetches at once leave either nothing or whole, verified jars.
Not promised: protection from somebody who can write to the cache while it is in use. A verified
folder is afterwards checked by name, size and time of modification only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from onceforall.common.arguments import shown
from onceforall.embedded.java import find_java
from onceforall.errors import EmbeddedServerError, OptionError, UnsupportedQueryError

if TYPE_CHECKING:
    from collections.abc import Iterable

KAFKA_VERSION = "4.3.1"
# Also the last of the 3.x line, to which many clusters stay bound for a while.
KAFKA_VERSIONS = (KAFKA_VERSION, "3.9.2")
# The connector exists up to 4.2.0 and its token provider up to 4.0.0; the 4.2 set was run with
# pyspark 4.2 and 4.3.
_CONNECTOR_SETS = {"4.0": "spark-4.0", "4.1": "spark-4.1", "4.2": "spark-4.2", "4.3": "spark-4.2"}
# Of Hadoop: a client must have the version of the Hadoop that the wheel of pyspark carries, 3.5.0
# in 4.2 and 4.3, 3.4.2 in 4.1, 3.4.1 in 4.0. Maven Central lacks a part of the SDK with which 3.4.1
# was built (s3-transfer-manager 2.24.6): its set has 2.24.8.
HADOOP_VERSIONS = ("3.5.0", "3.4.2", "3.4.1")
_MARKER = "verified.json"
_FETCH_PREFIX = ".fetch-"
_FETCH_DEADLINE_S = 900.0
_LEFTOVER_AGE_S = 86_400.0
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")

# Without poms Ivy asks for the jars alone, which took 11 s where resolving all the poms took 41 s.
_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false"/></resolvers>
</ivysettings>
"""  # noqa: E501


@dataclass(frozen=True)
class PinnedJar:
    """One jar, by its Maven coordinates and its content."""

    organisation: str
    module: str
    revision: str
    size_bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the jar in a Maven repository and in the cache."""
        return f"{self.module}-{self.revision}.jar"


def kafka_jars(version: str = KAFKA_VERSION) -> list[Path]:
    """Return the jars of the embedded broker, fetched into the cache when they are not there.

    Args:
        version: one of `KAFKA_VERSIONS`, or the beginning of one, such as ``3.9``.

    Returns:
        Existing, verified files: the class path of that Kafka.

    Raises:
        OptionError: no broker of that version is pinned.
        EmbeddedServerError: a jar is missing and cannot be fetched, or differs from its pin.
    """
    return jar_set(f"kafka-{kafka_version(version)}")


def kafka_version(version: str) -> str:
    """Return the pinned version of Kafka that ``version`` names, in whole or by its beginning:
    ``3.9`` is ``3.9.2``.

    Raises:
        OptionError: there is none.
    """
    for pinned in KAFKA_VERSIONS:
        if version == pinned or pinned.startswith(f"{version}."):
            return pinned
    raise OptionError(
        f"No broker of version {shown(version)} is pinned; there is one of "
        f"{' and '.join(KAFKA_VERSIONS)}. Use one of these."
    )


def spark_kafka_jars() -> list[Path]:
    """Return the jars of Spark's Kafka connector that fit the installed pyspark, fetched when they
    are not in the cache.

    Join them with commas for ``spark.jars``. Nothing is added to a running session.

    Raises:
        UnsupportedQueryError: no connector is known for the installed pyspark.
        EmbeddedServerError: pyspark is not there, or a jar is missing and cannot be fetched, or
            differs from its pin.
    """
    try:
        import pyspark
    except ImportError as error:
        raise EmbeddedServerError(
            "pyspark is not installed, so there is no Spark to choose a connector for. pip "
            "install pyspark"
        ) from error
    return jar_set(connector_set(pyspark.__version__))


def connector_set(spark_version: str) -> str:
    """Return the name of the pinned set of connector jars for a version of Spark, such as
    ``4.2.0``.

    Raises:
        UnsupportedQueryError: no set is known for this version.
    """
    minor = ".".join(spark_version.split(".")[:2])
    if minor not in _CONNECTOR_SETS:
        known = ", ".join(_CONNECTOR_SETS)
        raise UnsupportedQueryError(
            f"No Kafka connector is pinned for pyspark {spark_version}; there is one for {known}. "
            "Install one of "
            "these, or give Spark a connector of your own through spark.jars.packages."
        )
    return _CONNECTOR_SETS[minor]


def s3a_jars() -> list[Path]:
    """Return the jars of Hadoop's S3A client (``s3a://``) that fit the installed pyspark, fetched
    when they are not in the cache.

    Join them with commas for ``spark.jars``. They are the client and the parts of Amazon's SDK
    that it uses with a static key, 12 MB in place of the 686 MB of the SDK's bundle; other ways to
    get credentials may need more of it.

    Raises:
        UnsupportedQueryError: no client is pinned for the Hadoop of the installed pyspark.
        EmbeddedServerError: pyspark is not there, or a jar is missing and cannot be fetched, or
            differs from its pin.
    """
    return jar_set(hadoop_set("s3a", hadoop_version()))


def hadoop_set(kind: str, version: str) -> str:
    """Return the name of a pinned set of jars for a version of Hadoop.

    Args:
        kind: ``s3a`` (the client for S3) or ``hdfs`` (the embedded servers).
        version: of Hadoop, such as ``3.5.0``.

    Raises:
        UnsupportedQueryError: no set is pinned for this version.
    """
    if version not in HADOOP_VERSIONS:
        raise UnsupportedQueryError(
            f"The installed pyspark carries Hadoop {version}; jars for {kind} are pinned for "
            f"Hadoop {', '.join(HADOOP_VERSIONS)}, which pyspark 4.0.0, 4.1.1, 4.2.0 and 4.3.0 "
            f"carry. Install one of these, or give Spark jars of Hadoop {version} through "
            "spark.jars.packages."
        )
    return f"{kind}-{version}"


def hadoop_version() -> str:
    """Return the version of the Hadoop that the installed pyspark carries, such as ``3.5.0``.

    Raises:
        EmbeddedServerError: there is no pyspark with jars.
    """
    name = spark_jar("hadoop-client-api", "that fits").stem
    return name.removeprefix("hadoop-client-api-")


def jar_set(name: str) -> list[Path]:
    """Return the verified files of one pinned set; what is missing of it is fetched first.

    Raises:
        EmbeddedServerError: a jar is missing and cannot be fetched, or differs from its pin.
    """
    folder = jar_folder(name)
    jars = pinned_jars(name)
    missing = [jar for jar in jars if not (folder / jar.file_name).is_file()]
    if missing:
        _fetch(missing, folder)
    _verify(jars, folder)
    return [folder / jar.file_name for jar in jars]


def pinned_jar(jar: PinnedJar, name: str) -> Path:
    """Return the verified file of a jar that belongs to no set; it is fetched first if it is
    missing.

    Args:
        jar: its pin.
        name: of its folder in the cache, which no set has.

    Raises:
        EmbeddedServerError: it is missing and cannot be fetched, or differs from its pin.
    """
    folder = jar_folder(name)
    if not (folder / jar.file_name).is_file():
        _fetch([jar], folder)
    # Jars of one folder are asked for one by one, and the marker knows whole sets: it is compared
    # by its hash each time.
    _verify([jar], folder)
    return folder / jar.file_name


def cache_folder() -> Path:
    """Return the folder in which fetched files are kept; it need not exist."""
    chosen = os.environ.get("ONCEFORALL_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "onceforall"


def jar_folder(name: str) -> Path:
    """Return the folder of the cache that holds (or will hold) the jars of one pinned set."""
    return cache_folder() / "jars" / name


@cache
def pinned_jars(name: str) -> tuple[PinnedJar, ...]:
    """Return the pins of one set, in the order of the class path."""
    pins = json.loads(
        resources.files("onceforall.embedded").joinpath("pins.json").read_text(encoding="utf-8")
    )
    return tuple(PinnedJar(**pin) for pin in pins[name])


def _verify(jars: Iterable[PinnedJar], folder: Path) -> None:
    """Compare every jar with its pin: by size and time when the marker knows it, else by its
    hash.
    """
    known = _read_marker(folder)
    seen: dict[str, list[str | int]] = {}
    for jar in jars:
        path = folder / jar.file_name
        status = path.stat()
        state: list[str | int] = [jar.sha256, status.st_size, status.st_mtime_ns]
        if known.get(jar.file_name) != state:
            _check_content(jar, path, f"Delete {path} and start again: it will be fetched again")
        seen[jar.file_name] = state
    if seen != known:
        _write_marker(folder, seen)


def _check_content(jar: PinnedJar, path: Path, remedy: str) -> None:
    size_bytes = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if size_bytes != jar.size_bytes or digest.hexdigest() != jar.sha256:
        raise EmbeddedServerError(
            f"{path} is not the pinned {jar.file_name}: it has {size_bytes} bytes and SHA-256 "
            f"{digest.hexdigest()}, expected "
            f"are {jar.size_bytes} bytes and {jar.sha256}. It was not used. {remedy}."
        )


def _read_marker(folder: Path) -> dict[str, list[str | int]]:
    try:
        marker = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return marker if isinstance(marker, dict) else {}


def _write_marker(folder: Path, seen: dict[str, list[str | int]]) -> None:
    # A cache that is shared read-only works without a marker; it costs the hashes at each start.
    with contextlib.suppress(OSError):
        descriptor, draft = tempfile.mkstemp(dir=folder, prefix=_MARKER)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(seen, file)
        Path(draft).replace(folder / _MARKER)


def _fetch(jars: list[PinnedJar], folder: Path) -> None:
    """Fetch jars into a folder beside the cache's own, verify them there, and only then move
    them in.
    """
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=_FETCH_PREFIX, dir=parent))
    except OSError as error:
        raise _not_writable(parent, error) from error
    _remove_leftovers(parent)
    try:
        fetched = work / "jars"
        _run_ivy(jars, work, fetched, folder)
        for jar in jars:
            _check_content(
                jar,
                fetched / jar.file_name,
                "The repository served something else; see ONCEFORALL_IVY_SETTINGS if it is a "
                "mirror",
            )
        try:
            _move_in(fetched, folder)
        except OSError as error:
            raise _not_writable(folder, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_ivy(jars: list[PinnedJar], work: Path, fetched: Path, folder: Path) -> None:
    chosen = os.environ.get("ONCEFORALL_IVY_SETTINGS")
    if chosen and not Path(chosen).is_file():
        raise EmbeddedServerError(
            f"ONCEFORALL_IVY_SETTINGS is {chosen}, and there is no such file. Correct or unset it."
        )
    settings = Path(chosen).absolute() if chosen else work / "ivysettings.xml"
    if not chosen:
        settings.write_text(_IVY_SETTINGS, encoding="utf-8")
    (work / "ivy.xml").write_text(_ivy_module(jars), encoding="utf-8")
    command = [
        str(find_java()),
        "-Djava.net.useSystemProxies=true",
        "-jar",
        str(spark_jar("ivy", "that fetches")),
    ]
    command += [
        "-settings",
        str(settings),
        "-ivy",
        str(work / "ivy.xml"),
        "-cache",
        str(work / "ivy"),
        "-types",
        "jar",
        "bundle",
    ]
    command += ["-m2compatible", "-retrieve", f"{fetched.as_posix()}/[artifact]-[revision].[ext]"]
    try:
        ivy = subprocess.run(
            command,
            cwd=work,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_FETCH_DEADLINE_S,
            check=False,
        )
        failure, output = f"ended with {ivy.returncode}", ivy.stdout + ivy.stderr
    except subprocess.TimeoutExpired:
        failure, output = f"did not end within {_FETCH_DEADLINE_S:.0f} s", ""
    absent = [jar.file_name for jar in jars if not (fetched / jar.file_name).is_file()]
    # Ivy ends with 0 or not depending on which repository failed; the files are what counts.
    if absent:
        said = _CREDENTIALS.sub("***@", "\n".join(output.strip().splitlines()[-15:]))
        raise EmbeddedServerError(
            f"{len(absent)} of {len(jars)} jars could not be fetched (Ivy {failure}): "
            f"{', '.join(absent)}. Without a network, "
            f"lay these files into {folder} by hand; behind a mirror, let ONCEFORALL_IVY_SETTINGS "
            "name an ivysettings.xml; "
            f"behind a proxy, set JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=... . Ivy said:\n{said}"
        )


def _ivy_module(jars: Iterable[PinnedJar]) -> str:
    dependencies = "\n".join(
        f"    <dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.module)} "
        f"rev={quoteattr(jar.revision)}"
        f' transitive="false" conf="default"><artifact name={quoteattr(jar.module)} type="jar" '
        'ext="jar"/></dependency>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0">\n  <info organisation="onceforall" module="jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n</ivy-module>\n"
    )


def spark_jar(module: str, purpose: str) -> Path:
    """Return a jar that the installed pyspark carries.

    Args:
        module: its name without the version.
        purpose: ends the sentence "pyspark carries the ``module`` ..." of the error.

    Raises:
        EmbeddedServerError: there is no pyspark, or it has no such jar.
    """
    try:
        import pyspark
    except ImportError as error:
        raise EmbeddedServerError(
            f"pyspark is not installed, and it carries the {module} {purpose}. pip install pyspark"
        ) from error
    homes = [Path(pyspark.__file__).parent]
    if os.environ.get("SPARK_HOME"):
        homes.append(Path(os.environ["SPARK_HOME"]))
    for home in homes:
        if found := sorted((home / "jars").glob(f"{module}-[0-9]*.jar")):
            return found[-1]
    raise EmbeddedServerError(
        f"There is no {module}-*.jar in {', '.join(str(home / 'jars') for home in homes)}. Install "
        "the whole pyspark (not pyspark-client)."
    )


def _move_in(fetched: Path, folder: Path) -> None:
    try:
        fetched.rename(folder)
    except OSError:
        # The folder is there: jars laid by hand, or another fetch was first. Each file here is
        # whole and verified.
        folder.mkdir(exist_ok=True)
        for path in sorted(fetched.iterdir()):
            path.replace(folder / path.name)


def _not_writable(folder: Path, error: OSError) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"The cache folder {folder} cannot be written: {error}. Make it writable, or let "
        "ONCEFORALL_CACHE name another folder."
    )


def _remove_leftovers(parent: Path) -> None:
    """Remove what fetches left that were killed; a fetch that runs is younger than its deadline."""
    oldest = time.time() - _LEFTOVER_AGE_S
    for leftover in parent.glob(f"{_FETCH_PREFIX}*"):
        # Another fetch may remove it at the same time.
        with contextlib.suppress(OSError):
            if leftover.stat().st_mtime < oldest:
                shutil.rmtree(leftover, ignore_errors=True)
