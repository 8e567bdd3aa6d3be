"""The names of manifests: what each says, and what all of a folder say together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from onceforall.sinks.files.folders import is_temporary

_LOOSE = re.compile(r"(0|[1-9][0-9]{0,18})\.json")
_MERGED = re.compile(r"(-1|0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})\.json")
_NEWEST = re.compile(r"\.newest\.(0|[1-9][0-9]{0,18})")


def name_of(link: tuple[int, int] | int) -> str:
    """Return the name of a batch's manifest, or of the merged one of (after, upto)."""
    return f"{link}.json" if isinstance(link, int) else f"{link[0]}-{link[1]}.json"


def newest_name(batch: int) -> str:
    """Return the second name of a batch's manifest."""
    return f".newest.{batch}"


def has_our_name(name: str) -> bool:
    """Tell whether a name in a folder of manifests is one that we give: to a manifest, a second
    name or a temp file.
    """
    return any(pattern.fullmatch(name) for pattern in (_LOOSE, _MERGED, _NEWEST)) or is_temporary(
        name
    )


def is_of_one_batch(name: str) -> bool:
    """Tell whether a name is that of one batch's manifest."""
    return _LOOSE.fullmatch(name) is not None


@dataclass(frozen=True)
class Listing:
    """The names in a folder of manifests."""

    loose: frozenset[int]
    merged: frozenset[tuple[int, int]]
    marked: frozenset[int] = frozenset()
    """The batches whose manifest has, or had, a second name."""

    @property
    def end(self) -> int:
        """The last batch that a name tells; -1: none."""
        return max([*self.loose, *(upto for _, upto in self.merged), *self.marked], default=-1)

    def lists(self, batch: int) -> bool:
        """Tell whether a manifest that holds this batch is listed."""
        return batch in self.loose or any(after < batch <= upto for after, upto in self.merged)

    def chain(self) -> list[tuple[int, int] | int]:
        """Return what a reader takes, by names: merged ones as (after, upto), then single batches.

        Single ones are not checked here for what they come after. The last one may be listed by its
        second name only.
        """
        taken: list[tuple[int, int] | int] = []
        at = -1
        while ends := [upto for after, upto in self.merged if after == at and upto > at]:
            taken.append((at, max(ends)))
            at = max(ends)
        newest = max(self.marked, default=-1)
        unlisted = (
            {newest} if newest > max(at, *self.loose, -1) and not self.lists(newest) else set()
        )
        return [*taken, *sorted(batch for batch in self.loose | unlisted if batch > at)]

    def missing(self, before: str, after: int, at: int) -> str:
        """Return, in words, which manifest is missing ("": none is) where a chain ends with batch
        ``at`` and goes on with a manifest that comes after ``after``.

        A batch's own manifest and a merged one that ends with it have names of their own, and which
        of the two was there is not known.

        Args:
            before: the name of the manifest that comes after ``after``; "": none, and the chain
                goes on with merged manifests only.
            after: what it names as its predecessor.
            at: where the chain ends before that.
        """
        if not before:
            beyond = [pair for pair in self.merged if pair[0] > at]
            if not beyond:
                return ""
            after, before = min(beyond)[0], name_of(min(beyond))
        while found := [pair for pair in self.merged if pair[1] == after and pair[0] > at]:
            after, before = min(found)[0], name_of(min(found))
        return (
            f"{name_of(after)}, or a merged manifest that ends with batch {after} too, is "
            f"missing, and {before} comes after it"
        )


def listing_of(names: Iterable[str]) -> Listing:
    """Return what the names in a folder say; those that we don't give are passed over."""
    names = list(names)
    loose = frozenset(int(match[1]) for name in names if (match := _LOOSE.fullmatch(name)))
    merged = frozenset(
        (int(match[1]), int(match[2])) for name in names if (match := _MERGED.fullmatch(name))
    )
    marked = frozenset(int(match[1]) for name in names if (match := _NEWEST.fullmatch(name)))
    return Listing(loose, merged, marked)
