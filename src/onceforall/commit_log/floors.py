"""The log's floor: the generation below which nothing counts any more, so that its chains can be
deleted as a whole.

A chain that was cleaned still has its CLAIM, its SEAL and ``sealed.json``. A query that runs for a
year goes through a hundred thousand generations, so these go too. What makes that safe is a floor,
created durably *before* the first of them is deleted: ``floors/<number>.json`` names a generation;
every chain below it is sealed, and no decision is in any of them that somebody could still need.
That stays true for ever, so floors only rise.

**How others are safe.** Whatever was concluded from chains, or done in one, holds only if the floor
is the same when it is read *afterwards*: then nothing that stood at the floor or above it had been
deleted. Otherwise:

- Who *looks* (for the newest generation, for the last decision) or *seals* looks again. What a
  frozen sealer put below the floor means nothing.
- A *claim* below the floor means nothing; the next generation is claimed.
- An *append* below the floor may stand where a deleted entry stood, or may have been decided,
  completed and deleted: nobody can tell any more, so its outcome is unknown.

**How the newest floor is found.** Numbers have no gaps, so by galloping (see ``chains.leading``),
without a listing. So that floors are no such number of files themselves, all but each 64th are
deleted when the next 64th is there: the 64ths have no gaps, and neither have the numbers behind the
last of them; where none follows *afterwards*, nothing was deleted there meanwhile.

The first generation's CLAIM stays: by it a log is told from an empty folder. So do the last two
entries of each chain where the log keeps them (``keep_ends`` in ``log``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timezone

from onceforall.commit_log.chains import entry_key, leading
from onceforall.commit_log.envelope import FORMAT, RESTORE, decode_fields, encode_fields
from onceforall.commit_log.store import Store
from onceforall.errors import ForeignEntryError

__all__ = ["Floor", "Floors", "floor_key"]

_KIND = "FLOOR"
_FLOOR_NAME = re.compile(r"([0-9]{8,})\.json", re.ASCII)
_CHAIN_NAME = re.compile(r"([0-9]{8,}|sealed)\.json", re.ASCII)


@dataclass(frozen=True)
class Floor:
    """A floor.

    Attributes:
        number: counted from 0; -1 for that of a log in which none was raised.
        generation: nothing below it counts.
        above: the generation of the floor before it: what lies between the two is being deleted.
    """

    number: int
    generation: int
    above: int


def floor_key(number: int) -> str:
    """Return the key of a floor."""
    return f"floors/{number:08d}.json"


class Floors:
    """The floors of a log.

    Args:
        store: the log's.
        first_generation: the number of the log's first chain.
        create: creates a key with a content, durably, and makes durable what stands there already.
        now: the time that they carry for people.
        ends: the names in a chain's folder that are never deleted; none where the chain's end can't
            be told, which then isn't touched. None: everything goes.
    """

    keep_each = 64
    """Of so many, one stays. A part of the format: whoever reads the log has to know it."""

    def __init__(
        self,
        store: Store,
        first_generation: int,
        create: Callable[[str, bytes], object],
        now: Callable[[], datetime],
        ends: Callable[[int], Collection[str]] | None = None,
    ) -> None:
        self._store = store
        self._first = first_generation
        self._create = create
        self._now = now
        self.ends = ends
        self._dropped = -1
        self._known = Floor(-1, first_generation, first_generation)

    def newest(self) -> Floor:
        """Return the newest floor: two reads when it is the one that was returned before.

        Raises:
            CommitLogError: it can't be read.
        """
        known, number = self._known, self._known.number
        while True:
            number += self._there_from(number + 1, 1, -(number + 1) % self.keep_each)
            kept = (number // self.keep_each + 1) * self.keep_each
            following = self._there_from(kept, self.keep_each)
            if following:
                number = kept + self.keep_each * (following - 1)
                continue
            found = known if number == known.number else self._read(number)
            if found is not None:
                self._known = found
                return found
            # A newer one had it deleted, or it was not durable and went with the power.
            number = known.number

    def raise_to(self, generation: int) -> None:
        """Raise the floor, durably; nothing is deleted.

        Args:
            generation: a chain that is sealed, with all below it, and below which there is nothing
                that counts.
        """
        while True:
            newest = self.newest()
            if newest.generation >= generation:
                return
            if self._made_durable(newest):
                break
        # Who is raced by another one has to look what that one wrote; it is as true.
        self._create(
            floor_key(newest.number + 1),
            self._content(newest.number + 1, generation, newest.generation),
        )

    def begin_at(self, generation: int) -> None:
        """Raise the first floor of a log that was copied without what had been dropped: nothing
        lies below it.
        """
        self._create(floor_key(0), self._content(0, generation, generation))

    def drop(self) -> None:
        """Delete the chains between the newest floor and the one before it, as far as they are
        there, and floors that nobody needs.
        """
        newest = self.newest()
        if newest.number == self._dropped:
            return
        # It may merely have been read: a loss of power could take it, and leave what is deleted
        # because of it deleted.
        if not self._made_durable(newest):
            return  # Whoever raises it again drops them.
        for generation in range(newest.above, newest.generation):
            self._drop(generation)
        kept = newest.number // self.keep_each * self.keep_each
        for name in self._store.list("floors"):
            match = _FLOOR_NAME.fullmatch(name)
            if match and int(match[1]) < kept and int(match[1]) % self.keep_each:
                self._store.delete(floor_key(int(match[1])))
        self._dropped = newest.number

    def _drop(self, generation: int) -> None:
        folder = f"chains/{generation:08d}"
        names = [name for name in self._store.list(folder) if _CHAIN_NAME.fullmatch(name)]
        if self.ends is not None:
            kept = self.ends(generation)
            # The mark last: as long as it stands, it tells where the chain ends.
            names = [name for name in names if kept and name not in kept]
        for name in names:
            if f"{folder}/{name}" != entry_key(self._first, 0):
                self._store.delete(f"{folder}/{name}")

    def _there_from(self, number: int, step: int, limit: int | None = None) -> int:
        return leading(lambda k: self._store.read(floor_key(number + step * k)) is not None, limit)

    def _made_durable(self, floor: Floor) -> bool:
        """Make a floor durable; False: it is not there any more, or another one is, for it went
        with a loss of power, and it is forgotten.
        """
        if floor.number < 0:
            return True
        content = self._store.read(floor_key(floor.number))
        if content is not None:
            self._create(floor_key(floor.number), content)
            if self._read(floor.number) == floor:
                return True
        self._known = Floor(-1, self._first, self._first)
        return False

    def _content(self, number: int, generation: int, above: int) -> bytes:
        written_at = (
            self._now()
            .astimezone(timezone.utc)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        fields = {
            "onceforall": FORMAT,
            "kind": _KIND,
            "number": number,
            "generation": generation,
            "above": above,
        }
        return encode_fields({**fields, "written_at": written_at})

    def _read(self, number: int) -> Floor | None:
        where = self._store.describe(floor_key(number))
        content = self._store.read(floor_key(number))
        if content is None:
            return None
        fields = decode_fields(content, where)
        generation, above = fields.get("generation"), fields.get("above")
        if (
            fields.get("kind") != _KIND
            or fields.get("number") != number
            or not isinstance(generation, int)
            or not isinstance(above, int)
        ):
            raise ForeignEntryError(
                f"{where} is not floor {number} of a commit log: it was copied or renamed to "
                f"here. {RESTORE}"
            )
        return Floor(number, generation, above)
