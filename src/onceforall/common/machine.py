"""The machine on which this runs."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
from pathlib import Path

__all__ = ["boot_id", "whoami"]


def whoami() -> str:
    """Return who runs this, for people who read the log: ``user@host pid 1``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        # A container may run under a number that has no name.
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "?"
    return f"{user}@{socket.gethostname()} pid {os.getpid()}"


def boot_id() -> str:
    """Return what is other after each boot; empty where nothing tells it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        pass
    try:
        # macOS tells it here; elsewhere there is no such name, or no such program.
        told = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
            capture_output=True,
            check=False,
            timeout=5,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout.strip()
