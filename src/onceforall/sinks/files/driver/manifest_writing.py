"""Writes the manifests of one query and sink; package ``manifests`` says why each step is right
wherever the one before it was the last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from itertools import pairwise

from onceforall.common import logs
from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.manifests.chain import Manifests
from onceforall.sinks.files.manifests.content import BatchFiles, Manifest, encode
from onceforall.sinks.files.manifests.names import name_of, newest_name
from onceforall.sinks.files.places import AnyPath

MERGE_AFTER = 100
MERGED_BYTES = 16 << 20
"""A merged manifest of this size is not merged again."""
_log = logs.logger("onceforall.sinks.files")


class ManifestWriter(Manifests):
    """The manifests of one query and sink, as the driver that commits its batches sees them."""

    def add(self, files: BatchFiles, after: int | None = None) -> BatchFiles:
        """Commit a batch, durably, unless it is; return what is committed: another process may have
        been faster.

        Args:
            files: of the batch.
            after: the batch before it, as the commit log knows it; None: the last one that is
                listed here, which on a network file system may not be the last one that is there.

        Raises:
            CorruptEntryError, ForeignEntryError, NewerEntryError, OSError: it can't be written, or
                read.
        """
        content = encode(
            Manifest(self._last_before(files.batch) if after is None else after, (files,)),
            self.query_id,
            self.sink,
        )
        self.tree.make_folder(self.folder)
        self.tree.sync_all(self._above())
        failpoints.hit("file.manifest.before")
        self.tree.create(self.folder / name_of(files.batch), content)
        failpoints.hit("file.manifest.after")
        self._mark(files.batch)
        found = self.find(files.batch)
        if found is None:
            raise self._vanishing()
        return found

    def _last_before(self, batch: int) -> int:
        listing = self.listing()
        ends = [*listing.loose, *(upto for _, upto in listing.merged), *listing.marked]
        return max((end for end in ends if end < batch), default=-1)

    def _mark(self, batch: int) -> None:
        """Give the manifest of a batch, which must be durable, its second name, and take those of
        earlier ones away but for the last.

        It watches over the manifest, and the batch doesn't depend on it: a file system that refuses
        is told in the log.
        """
        failpoints.hit("file.newest.before")
        try:
            listing = self.listing()
            if listing.end > batch or batch in listing.marked:
                return
            self.tree.link(self.folder / name_of(batch), self.folder / newest_name(batch))
            failpoints.hit("file.newest.linked")
            for old in sorted(listing.marked)[:-1]:
                if listing.lists(old):
                    self.tree.unlink(self.folder / newest_name(old))
        except (FileExistsError, FileNotFoundError):
            return  # another process was here, or has come further
        except OSError as error:
            _log.warning(
                "Nobody would miss the manifest %s if it was deleted: %s",
                self.folder / name_of(batch),
                error,
            )

    def make_durable(self, batch: int) -> bool:
        """Make durable what another process has named here for a batch: it may have been killed
        before it could sync it.

        Returns:
            Whether its manifest is there still. The storage may have lost its power meanwhile.

        Raises:
            OSError: the file system refused.
        """
        self.tree.sync_all([*self._above(), self.folder])
        if self.find(batch) is None:
            return False
        self._mark(batch)
        return True

    def _above(self) -> list[AnyPath]:
        """Return the folders that have a name on the way here, from the sink's own down: each
        may have been made and not synced.
        """
        return list(reversed(self.folder.parents[:4]))

    def merge(self) -> None:
        """Merge single manifests, and merged ones, when there are many, and delete what was merged
        before the last time.

        Raises:
            The errors of ``read``.
        """
        listing = self.listing()
        chain = listing.chain()
        loose = [link for link in chain if isinstance(link, int)]
        merged = [link for link in chain if not isinstance(link, int)]
        todo: Sequence[tuple[int, int] | int] = ()
        if len(loose) >= MERGE_AFTER:
            todo = loose
        elif len(merged) >= MERGE_AFTER and len(loose) < 2:
            # Asked once behind each merge of single ones, and not at each commit.
            todo = self._small(merged)
        if not todo:
            return
        manifests = [self.read_link(link) for link in todo]
        if any(one.upto != two.after for one, two in pairwise(manifests)):
            return  # listed while something was written: the next batch tries again
        whole = Manifest(
            manifests[0].after, tuple(batch for manifest in manifests for batch in manifest.batches)
        )
        if merged and todo is loose and whole.after != merged[-1][1]:
            return
        failpoints.hit("file.merge.before")
        self.tree.create(
            self.folder / name_of((whole.after, whole.upto)),
            encode(whole, self.query_id, self.sink),
        )
        failpoints.hit("file.merge.after")
        if not all(self.tree.is_there(self.folder / name_of(link)) for link in merged):
            return  # the folder was listed as it was a while ago
        end = merged[-1][1] if merged else -1
        old: list[tuple[int, int] | int] = [batch for batch in listing.loose if batch <= end]
        old += [pair for pair in listing.merged if pair not in merged and pair[1] <= end]
        for link in old:
            with contextlib.suppress(FileNotFoundError):
                self.tree.unlink(self.folder / name_of(link))
        failpoints.hit("file.merge.deleted")

    def _small(self, merged: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Return merged ones that are to be merged again, none where they are few: the first of
        those behind the last large one.

        A late writer takes the same beginning, and an end that isn't behind: readers pass over what
        it makes.
        """
        sizes = [self.tree.size(self.folder / name_of(link)) or 0 for link in merged]
        start = max((at + 1 for at, size in enumerate(sizes) if size >= MERGED_BYTES), default=0)
        if len(merged) - start < MERGE_AFTER:
            return ()
        end, total = start, 0
        while end < len(merged) and (end < start + 2 or total + sizes[end] <= MERGED_BYTES):
            total += sizes[end]
            end += 1
        return merged[start:end]

    def check_place(self, batch: int) -> None:
        """See that a batch's manifest could be made and read: nothing but a file has its name, and
        no folder on the way is a link.

        Raises:
            ForeignEntryError, OSError: naming what is in the way.
        """
        self.tree.check_file(self.folder / name_of(batch))
