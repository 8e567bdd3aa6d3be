"""The entry behind which nobody decides any more, for the commands that move a log or detach it:
MOVED and DETACHED.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from onceforall.commit_log.binding import BoundLog
from onceforall.commit_log.chains import entry_key
from onceforall.commit_log.creating import Creator
from onceforall.commit_log.envelope import entry_fields
from onceforall.commit_log.store import Store
from onceforall.protocol.entries import Done

__all__ = ["PAUSES_MS", "end_log", "ended_by"]

PAUSES_MS = (50, 200, 1000, 3000)
"""A command repeats a create without an answer after each of these pauses."""


def end_log(bound: BoundLog, generation: int, index: int, content: bytes) -> bool:
    """Create the entry, and tell whether it ends the log.

    It doesn't if a run has started since the generation was claimed: that one has sealed the chain,
    or met this entry. Nor does it if runs have started for so long that the chain was dropped: then
    its place was free again, and what stands in a dropped chain means nothing. So there is a look
    at the floor behind the create, as behind every append (see ``log``).

    Args:
        bound: the log.
        generation: ours.
        index: the next in its chain.
        content: the entry, encoded.

    Raises:
        CommitLogError: the store gave no answer; repeating the command finds out.
    """
    key = entry_key(generation, index)
    standing, _ = Creator(bound.store, PAUSES_MS, time.sleep)(key, content)
    if standing != content:
        return False
    if bound.log().oldest_generation() <= generation:
        return True
    bound.store.delete(key)
    return False


def ended_by(bound: BoundLog, kind: str) -> tuple[int, Mapping[str, Any]] | None:
    """Return the generation behind whose claim an entry of this kind ends the log, and that entry's
    body; None: there is none.

    Starts that met it have claimed generations above, and could seal none.
    """
    log = bound.log()
    newest = log.newest_generation()
    if newest is None:
        return None
    for generation in range(newest, log.oldest_generation() - 1, -1):
        fields = _entry(bound.store, generation, 1)
        if fields is None:
            continue
        if fields.get("kind") == Done.kind:
            # What was decided before was completed by whoever claimed this generation.
            fields = _entry(bound.store, generation, 2) or fields
        return (generation, fields["body"]) if fields.get("kind") == kind else None
    return None


def _entry(store: Store, generation: int, index: int) -> dict[str, Any] | None:
    key = entry_key(generation, index)
    content = store.read(key)
    return None if content is None else entry_fields(content, store.describe(key))
