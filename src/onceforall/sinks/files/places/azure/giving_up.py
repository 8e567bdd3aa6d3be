"""What a start checks of a container only: that blocks can be given up, and of which kind its
account is.
"""

from __future__ import annotations

import secrets

from onceforall.common import logs
from onceforall.errors import SinkCheckError
from onceforall.sinks.files.paths import HOME
from onceforall.sinks.files.places.azure.container import Container

_log = logs.logger("onceforall.sinks.files")


def warn_of_hierarchy(container: Container) -> None:
    """Say where the account is of a kind that was never tried."""
    if container.has_hierarchy():
        _log.warning(
            "The account of %s has a hierarchical namespace (Data Lake Storage Gen2), on which "
            "FileSink was never tried: empty folders may stay below %s. Try the query's restarts "
            "there before you rely on it, or use an account without one.",
            container.root.bucket, HOME,
        )  # fmt: skip


def check_giving_up(container: Container) -> None:
    """Send a block, give it up, and see that nothing is left.

    Raises:
        SinkCheckError: something is.
        StoreError: a request was refused.
    """
    path = container.root / f"{HOME}/probes" / secrets.token_hex(16)
    upload = container.begin_upload(path, {})
    container.send_part(path, upload, 1, b"probe")
    container.abort(path, upload)
    if container.uploads(path):
        raise SinkCheckError(
            f"The store of {container.root} keeps blocks that were given up, or the empty blob by "
            "which they were. Look for a rule that forbids deletion (immutability, a legal hold), "
            "or use another container."
        )
