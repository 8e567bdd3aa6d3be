"""A store whose every call is an operation of the schedule."""

from __future__ import annotations

import re

from onceforall.commit_log import AlreadyExists, Created
from onceforall.commit_log.envelope import decode
from simulation.actor import point

ENTRY = re.compile(r"chains/(\d+)/(\d+)\.json")


class LostAnswerError(Exception):
    """What a client library raises when the network is gone."""


class SimulatedStore:
    """A store with the guarantees of ``Store`` and no others; each call is an operation of the schedule."""

    def __init__(self, world):
        self.world = world
        self.contents = {}
        self.ever = set()
        self.late = []

    def read(self, key):
        point()
        if self.world.faults.take("read") is not None:
            raise LostAnswerError(f"read {key}")
        return self.contents.get(key)

    def list(self, folder):
        point()
        prefix = folder + "/"
        return sorted(k[len(prefix) :] for k in self.contents if k.startswith(prefix) and "/" not in k[len(prefix) :])

    def create(self, key, content):
        point()
        fault = self.world.faults.take("create")
        if fault in {None, "after"}:
            answer = self._create(key, content)
            if fault is None:
                return answer
        elif fault == "late":
            self.late.append((key, content))
        raise LostAnswerError(f"create {key} ({fault})")

    def deliver_late(self, index):
        self._create(*self.late.pop(index))

    def _create(self, key, content):
        if key in self.contents:
            return AlreadyExists(self.contents[key])
        self.contents[key] = content
        match = ENTRY.fullmatch(key)
        if match and key not in self.ever:
            self.ever.add(key)
            self.world.appended(
                int(match[1]), int(match[2]), decode(content, where=key, generation=int(match[1]), index=int(match[2])).entry
            )
        return Created()

    def delete(self, key):
        point()
        self.contents.pop(key, None)

    def describe(self, key):
        return key
