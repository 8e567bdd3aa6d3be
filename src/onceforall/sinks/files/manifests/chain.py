"""Reads the manifests of one query and sink, in the order in which they were committed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from onceforall.errors import CorruptEntryError
from onceforall.sinks.files.manifests.content import (
    BatchFiles,
    Manifest,
    corrupt,
    decode,
    foreign,
    incomplete,
)
from onceforall.sinks.files.manifests.names import (
    Listing,
    is_of_one_batch,
    listing_of,
    name_of,
    newest_name,
)
from onceforall.sinks.files.paths import MANIFESTS
from onceforall.sinks.files.places import AnyPath, Files

_TRIES = 200
_UNCHANGED_S, _PAUSE_S = 5.0, 0.25
"""A manifest is missing when listing after listing has shown the same for so long: a network file
system may list a folder as it was a while ago, and a merge may be under way."""


class Manifests:
    """The manifests of one query and sink."""

    def __init__(self, tree: Files, query_id: str, sink: str) -> None:
        """Take the sink's folder, Spark's query id, and ``sink_code`` of the sink's name."""
        self.folder = tree.root / MANIFESTS / query_id / sink
        self.tree = tree
        self.query_id = query_id
        self.sink = sink

    def find(self, batch: int) -> BatchFiles | None:
        """Return the files of a batch; None when it is not committed.

        Raises:
            CorruptEntryError, ForeignEntryError, NewerEntryError, OSError: its manifest can't be
                read.
        """
        absent = False
        for _ in range(_TRIES):
            listing = self.listing()
            covering = [(after, upto) for after, upto in listing.merged if after < batch <= upto]
            try:
                # Its own name is opened, listed or not: a network file system may list a folder as
                # it was a while ago.
                manifest = self._read(
                    name_of(max(covering, key=lambda pair: pair[1]) if covering else batch)
                )
            except FileNotFoundError:
                if not covering and batch not in listing.loose:
                    if absent:
                        return None
                    absent = True
                continue  # merged and deleted since, perhaps
            found = [each for each in manifest.batches if each.batch == batch]
            return found[0] if found else None
        raise self._vanishing()

    def has(self, batch: int) -> bool:
        """Tell whether a batch is committed; for the last ones that costs one look at a name,
        however many files they have.

        Raises:
            CorruptEntryError, ForeignEntryError, NewerEntryError, OSError: a merged manifest can't
                be read.
        """
        return (
            self.tree.size(self.folder / name_of(batch)) is not None or self.find(batch) is not None
        )

    def read(self) -> list[BatchFiles]:
        """Return all committed batches, in ascending order; see the package's docstring for what
        concurrent changes do.

        Raises:
            CorruptEntryError, ForeignEntryError, NewerEntryError: a manifest is damaged or missing,
                or none of ours.
            OSError: the folder can't be read.
        """
        known: dict[str, Manifest] = {}
        before: tuple[Listing, str] | None = None
        since = 0.0
        for _ in range(_TRIES):
            listing = self.listing()
            found = self._read_chain(listing, known)
            if isinstance(found, list):
                return found
            if (listing, found) != before:
                before, since = (listing, found), time.monotonic()
            elif time.monotonic() - since >= _UNCHANGED_S:
                break
            else:
                time.sleep(_PAUSE_S)
        raise self._vanishing(known)

    def _read_chain(self, listing: Listing, known: dict[str, Manifest]) -> list[BatchFiles] | str:
        """Return the batches, or the name at which the chain ends when something was written or
        deleted meanwhile, so that the folder must be listed again.

        Args:
            listing: of the folder.
            known: manifests that were read, by their names; those that are read come to them.
        """
        found: list[BatchFiles] = []
        at = -1
        if listing.marked and not listing.lists(listing.end) and not self.has_name(listing.end):
            return name_of(listing.end)
        for link in listing.chain():
            name = name_of(link)
            try:
                manifest = self._read_once(name, known)
                between: list[BatchFiles] = []
                batch = manifest.after
                while batch > at:  # no listing has shown these: they are read by the names they say
                    name = name_of(batch)
                    one = self._read_once(name, known)
                    between[:0] = one.batches
                    batch = one.after
            except FileNotFoundError:
                return name
            if batch != at:
                return name
            found += [*between, *manifest.batches]
            at = manifest.upto
        return found if at == listing.end else name_of(listing.end)

    def _read_once(self, name: str, known: dict[str, Manifest]) -> Manifest:
        """Read a manifest that is not known yet: none is ever changed."""
        if name not in known:
            known[name] = self._read(name)
        return known[name]

    def read_link(self, link: tuple[int, int] | int) -> Manifest:
        """Read one manifest by what its name says; the errors are those of ``decode``, and
        FileNotFoundError.
        """
        return self._read(name_of(link))

    def read_marked(self, batch: int) -> Manifest:
        """Read the manifest of a batch by its second name; the errors are those of
        ``read_link``.
        """
        return self._read(newest_name(batch), name_of(batch))

    def has_name(self, link: tuple[int, int] | int) -> bool:
        """Tell whether a manifest's name is taken: asked by the name, and not of a listing."""
        return self.tree.is_there(self.folder / name_of(link))

    def path_of(self, link: tuple[int, int] | int) -> AnyPath:
        """Return where a manifest lies."""
        return self.folder / name_of(link)

    def listing(self) -> Listing:
        """Return the names in the folder."""
        try:
            return listing_of(self.tree.names(self.folder))
        except FileNotFoundError:
            return listing_of(())

    def _read(self, file: str, name: str = "") -> Manifest:
        """Read a manifest; ``name``: what a file is called otherwise that lies there under a
        second name.
        """
        path, name = self.folder / file, name or file
        manifest = decode(self.tree.read(path), path, self.query_id, self.sink)
        says = name_of(manifest.upto), name_of((manifest.after, manifest.upto))
        if name not in says or (is_of_one_batch(name) and len(manifest.batches) > 1):
            raise foreign(
                path,
                f"it is of the batches above {manifest.after} up to {manifest.upto}, and was "
                "renamed",
            )
        return manifest

    def _vanishing(self, known: dict[str, Manifest] | None = None) -> CorruptEntryError:
        """Return what is wrong with the chain; ``known``: manifests that were read."""
        listing = self.listing()
        known = {} if known is None else known
        at = -1
        for link in listing.chain():
            with contextlib.suppress(FileNotFoundError):
                manifest = self._read_once(name_of(link), known)
                if manifest.after < at:
                    return corrupt(
                        self.path_of(link),
                        f"it says that it comes after batch {manifest.after}, and there is {at}",
                    )
                if manifest.after > at:
                    return incomplete(
                        self.folder, listing.missing(name_of(link), manifest.after, at)
                    )
                at = manifest.upto
        if listing.end > at and listing.end in listing.marked:
            return corrupt(
                self.folder / name_of(listing.end),
                f"it is missing, and {newest_name(listing.end)} is its second name",
            )
        words = listing.missing("", at, at)
        return (
            incomplete(self.folder, words)
            if words
            else corrupt(self.folder, "manifests come and go without an end")
        )


def all_of(tree: Files) -> Iterable[Manifests]:
    """Return the manifests of all queries and sinks in a sink's folder, in the order of their
    names.

    Raises:
        OSError: a folder can't be read, or a link stands in its place (ELOOP): none is followed.
    """
    if tree.is_folder(tree.root / MANIFESTS):
        for query in queries_of(tree):
            yield from sinks_of(tree, query)


def queries_of(tree: Files) -> list[str]:
    """Return the names of what lies in ``_onceforall/manifests``, sorted: those of queries, and
    perhaps of something foreign.
    """
    return sorted(tree.names(tree.root / MANIFESTS))


def sinks_of(tree: Files, query_id: str) -> list[Manifests]:
    """Return the manifests of one query's sinks, in the order of their names; none where the name
    is a plain file's.

    Raises:
        OSError: it can't be read, or a link stands in its place or in a sink's (ELOOP).
    """
    query = tree.root / MANIFESTS / query_id
    try:
        names = tree.names(query)
    except NotADirectoryError:
        return []
    return [
        Manifests(tree, query_id, name) for name in sorted(names) if tree.size(query / name) is None
    ]
