"""Tests a store before a commit log is trusted to it: the full test, for people."""

from __future__ import annotations

from collections.abc import Mapping

from onceforall.commit_log.stores.probing import Check, check
from onceforall.common import arguments
from onceforall.spark.stores import Stores

__all__ = ["check_store"]


def check_store(
    url: str, *, creators: int = 20, rounds: int = 100, settings: Mapping[str, str] | None = None
) -> Check:
    """Create, read and delete small objects with many creators at once, and say what was found.

    Args:
        url: a folder of the store, such as ``s3a://bucket/checkpoints``; what is created lies
            below it in ``probe``, and is deleted again.
        creators: how many create one key at once.
        rounds: how many keys they do that with.
        settings: ``onceforall.store.*``, without that prefix.

    Raises:
        OptionError: an argument is wrong.
        UnsupportedQueryError: no client serves this kind of store.
        CommitLogError: the store doesn't answer, or refuses.
    """
    arguments.whole("creators", creators, 1)
    arguments.whole("rounds", rounds, 1)
    stores = Stores(None, settings)
    location = stores.log_location(arguments.path("url", url))
    return check(lambda: stores.open(location), creators=creators, rounds=rounds)
