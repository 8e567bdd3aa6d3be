"""Makes the data folders of embedded nodes, with Kafka's own tool."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import TYPE_CHECKING

from onceforall.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG_TAIL_LINES = 25


def format_folder(
    folder: Path, java_command: Sequence[str], options: Sequence[str] = (), *, deadline_s: float
) -> None:
    """Let Kafka's StorageTool format what ``server.properties`` in a node's folder names, for a new
    cluster.

    Args:
        folder: the node's.
        java_command: Java with its options and the class path.
        options: of the tool.
        deadline_s: how long it may take.

    Raises:
        EmbeddedServerError: the tool failed, and the message holds the end of what it said; or it
            took longer.
    """
    arguments = ["format", *options, "-t", _random_id(), "-c", str(folder / "server.properties")]
    try:
        done = subprocess.run(
            [*java_command, "kafka.tools.StorageTool", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EmbeddedServerError(
            f"The data folder {folder} could not be formatted in {deadline_s:.0f} s. Start it "
            "when the machine does less, and check that its "
            "disk answers."
        ) from error
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_LOG_TAIL_LINES:])
        raise EmbeddedServerError(
            f"The data folder {folder} could not be formatted. Check the settings given as "
            "config, and that the disk has "
            f"room. Kafka's StorageTool said:\n{said}"
        )


def copy_formatted(formatted: Path, log_dir: Path, node: int) -> None:
    """Make the formatted ``log.dirs`` folder of another node of the same cluster: a JVM less than
    to format it.

    Args:
        formatted: the folder of the node that was formatted; it has not run yet.
        log_dir: the new folder.
        node: the other node's number.
    """
    shutil.copytree(formatted, log_dir)
    lines = (log_dir / "meta.properties").read_text(encoding="ascii").splitlines()
    own = {"node.id": str(node), "directory.id": _random_id()}
    stamped = [
        f"{key}={own.get(key, value)}"
        for key, _, value in (line.partition("=") for line in lines)
        if value
    ]
    (log_dir / "meta.properties").write_text("\n".join(stamped) + "\n", encoding="ascii")


def _random_id() -> str:
    """Return an id as Kafka writes them: 16 bytes in base64. A dash is avoided, for an argument
    must not begin with one.
    """
    return urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode().replace("-", "a")
