"""The machine on which this runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

__all__ = ["boot_id"]


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
