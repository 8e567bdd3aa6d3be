"""The commit log: where a run of a query takes its decisions, and a successor learns of them."""

from __future__ import annotations

from onceforall.commit_log.log import Claimed, CommitLog
from onceforall.commit_log.store import AlreadyExists, Created, Store
from onceforall.commit_log.stores.local import LocalStore

__all__ = ["AlreadyExists", "Claimed", "CommitLog", "Created", "LocalStore", "Store"]
