"""Find the Java that Spark would use, and say what to do when there is none.

A caller asks `find_java` once and keeps the answer: the check starts a JVM.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from onceforall.errors import EmbeddedServerError

MINIMUM_JAVA = 17
"""Kafka 4 brokers need Java 17 (KIP-1013), and so does Spark 4."""

_REMEDY = (
    f"Install a Java runtime {MINIMUM_JAVA} or newer and let JAVA_HOME point to it, or put "
    "its `java` on the PATH."
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_CHECK_DEADLINE_S = 60.0


def find_java() -> Path:
    """Return the `java` program that serves both Spark and the embedded servers.

    ``JAVA_HOME`` is taken first and the ``PATH`` after it, as Spark's own launcher does: a set
    ``JAVA_HOME`` that holds no Java is an error here as it is there, instead of a silent switch to
    another Java.

    Returns:
        The path of an executable whose ``-version`` reported at least `MINIMUM_JAVA`.

    Raises:
        EmbeddedServerError: there is no Java, it cannot be run, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java")
        if not (java.is_file() and os.access(java, os.X_OK)):
            raise EmbeddedServerError(
                f"JAVA_HOME is {home}, but there is no executable {java}. {_REMEDY}"
            )
    else:
        found = shutil.which("java")
        if found is None:
            raise EmbeddedServerError(
                f"No Java was found: JAVA_HOME is not set and no `java` is on the PATH. {_REMEDY}"
            )
        java = Path(found)
    version = java_version(java)
    if version < MINIMUM_JAVA:
        raise EmbeddedServerError(
            f"{java} is Java {version}, and Kafka needs {MINIMUM_JAVA}. {_REMEDY}"
        )
    return java


def java_version(java: Path) -> int:
    """Return the feature release of a `java` program, such as 8, 17 or 21.

    Raises:
        EmbeddedServerError: the program cannot be run, or does not answer as a Java does.
    """
    try:
        answer = subprocess.run(
            [str(java), "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CHECK_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedServerError(f"{java} cannot be run: {error}. {_REMEDY}") from error
    version = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        said = (answer.stderr + answer.stdout).strip()[-500:]
        raise EmbeddedServerError(
            f"`{java} -version` ended with {answer.returncode} and said {said!r}. {_REMEDY}"
        )
    return int(version.group(1))
