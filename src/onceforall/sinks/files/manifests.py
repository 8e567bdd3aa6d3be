"""The manifests of one query and sink in a folder: which data files are committed, a whole batch at a time.

``<path>/_onceforall/manifests/<query id>/<sink code>/`` holds

- ``<batch>.json``: the files of one batch. It is created with its whole content at once (temp file, sync, link, sync of the folder), and
  never over one that is there: that is the moment in which the batch is there for readers of manifests. Nobody changes it afterwards.
- ``<after>-<upto>.json``: the same for all batches above *after* up to *upto*, merged, so that a reader opens few files. After 100 batches
  those are merged into one such file, and 100 of those into one, but for those that have become large: no merge costs more for all that was
  written before.

Each has ``after``, the batch that this query and sink committed before it (-1: none), so that a reader knows whether it has them all: it
goes from -1 on, takes what begins where the last one ended, the longest first, and lists the folder again when something is missing. So a
snapshot is always a beginning of the sequence of batches, and a later snapshot is never shorter, whatever is written, merged or
deleted meanwhile. What was merged is deleted only at the next merge, about 100 batches later: a reader that listed it has read it by then,
or lists again.

A driver that was frozen before its link, and wakes after its successor has committed, merged and deleted the batch's manifest, creates a
manifest of that batch once more. No reader looks at it: the merged one is longer. The next merge deletes it.

The last manifest has no later one that names it, so it could be deleted and nobody would miss it. Hence its second name, ``.newest.<batch>``, a hard
link: a snapshot that ends before the batch of such a name lacks a manifest. It says *at least* this batch, and nothing else; a reader goes by
the name alone. What a writer can leave behind, by the step at which it was killed:

1. before the manifest's link, or before the folder was synced: the second name is that of an earlier batch. A reader sees the batch or not;
   nothing is missed.
2. behind that sync, before the second link: the same. The next start finds the batch decided and not done, and makes the second name.
3. behind it: all is there. The second name of the batch before is left in place, and those of earlier ones are deleted, of which any number may be
   left: the greatest counts.

The second name is made only behind the sync of the first, so a loss of power can't leave the second one alone, and it has no sync of its own: the next
manifest's makes it durable. Until then a loss of power can take it, and with it nothing but the watch over one batch. That is why the one of the
batch before stays: it is durable.

A driver of an older release passes over these names, as do its readers and its start: then the greatest is behind the last batch, and is
right nevertheless. A folder without such a name is read as ever. A late writer makes none where a later one, or a later manifest, is listed; one
that it makes all the same is less than the greatest. A listing may have the second name and not the first, because folders aren't listed in one
instant: the first is opened by its name then. A second name whose manifest is missing is never deleted: ``mending`` puts the manifest back from it.

The content is JSON with a checksum, as entries of the commit log (``commit_log.envelope``); a damaged one is named, not believed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceforall.commit_log.envelope import encode_fields
from onceforall.common import logs
from onceforall.errors import CommitLogError, CorruptEntryError, ForeignEntryError, NewerEntryError
from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.data_files import DataFile, data_file
from onceforall.sinks.files.folders import is_temporary
from onceforall.sinks.files.layout import Layout, read_layout
from onceforall.sinks.files.tree import Tree

if TYPE_CHECKING:
    pass

FORMAT = 1
MERGE_AFTER = 100
MERGED_BYTES = 16 << 20
"""A merged manifest of this size is not merged again."""

_KIND = "FILES"
_LOOSE = re.compile(r"(0|[1-9][0-9]{0,18})\.json")
_MERGED = re.compile(r"(-1|0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})\.json")
_NEWEST = re.compile(r"\.newest\.(0|[1-9][0-9]{0,18})")
_TRIES = 200

_log = logs.logger("onceforall.sinks.files")


@dataclass(frozen=True)
class BatchFiles:
    """The files of one batch.

    Attributes:
        batch: Spark's batch id.
        attempts: the names of the task attempts that wrote them.
        files: each with its layout.
    """

    batch: int
    attempts: frozenset[str]
    files: tuple[tuple[DataFile, Layout], ...]


@dataclass(frozen=True)
class Manifest:
    """What one file says: the batches above ``after``, in ascending order."""

    after: int
    batches: tuple[BatchFiles, ...]

    @property
    def upto(self) -> int:
        """The last batch."""
        return self.batches[-1].batch


def encode(manifest: Manifest, query_id: str, sink: str) -> bytes:
    """Return a manifest's bytes: the same for the same manifest."""
    layouts: dict[str, int] = {}
    batches = []
    for batch in manifest.batches:
        files = []
        for file, layout in batch.files:
            key = json.dumps(layout.body(), sort_keys=True)
            files.append({**file.body(), "layout": layouts.setdefault(key, len(layouts))})
        batches.append({"batch": batch.batch, "attempts": sorted(batch.attempts), "files": files})
    return encode_fields(
        {
            "onceforall": FORMAT,
            "kind": _KIND,
            "query_id": query_id,
            "sink": sink,
            "after": manifest.after,
            "upto": manifest.upto,
            "rows": sum(file.rows for batch in manifest.batches for file, _ in batch.files),
            "layouts": [json.loads(key) for key in layouts],
            "batches": batches,
        }
    )


def decode(content: bytes, path: Path, query_id: str, sink: str) -> Manifest:
    """Read a manifest back.

    Raises:
        CorruptEntryError: it is empty, torn or damaged.
        ForeignEntryError: it is none of ours, or another query's or sink's.
        NewerEntryError: a newer release wrote it.
    """
    try:
        fields = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"it is not JSON ({error})") from error
    if not isinstance(fields, dict) or fields.get("kind") != _KIND or not isinstance(fields.get("onceforall"), int):
        raise _foreign(path, "it is no manifest")
    if fields["onceforall"] > FORMAT:
        raise NewerEntryError(
            f"The manifest {path} was written by a newer release of onceforall. Read it with that one or a later one."
        )
    try:
        if encode_fields({name: value for name, value in fields.items() if name != "checksum"}) != _as_read(fields):
            raise _corrupt(path, "its content does not match its checksum")
        if (fields["query_id"], fields["sink"]) != (query_id, sink):
            raise _foreign(
                path, f"it is of the query {fields['query_id']} and its sink {fields['sink']}, and was copied to here"
            )
        layouts = [read_layout(layout) for layout in fields["layouts"]]
        batches = tuple(_batch(body, layouts) for body in fields["batches"])
        numbers = [int(fields["after"]), *(batch.batch for batch in batches)]
        if numbers != sorted(set(numbers)) or not batches:
            raise ValueError("its batches are not in order")
        return Manifest(numbers[0], batches)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise _corrupt(path, f"{type(error).__name__}: {error}") from error


def _as_read(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _batch(body: Mapping[str, Any], layouts: Sequence[Layout]) -> BatchFiles:
    attempts = frozenset(str(name) for name in body["attempts"])
    files = tuple((data_file(file, attempts), layouts[int(file["layout"])]) for file in body["files"])
    return BatchFiles(int(body["batch"]), attempts, files)


@dataclass(frozen=True)
class _Listing:
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

        Single ones are not checked here for what they come after. The last one may be listed by its second name only.
        """
        taken: list[tuple[int, int] | int] = []
        at = -1
        while ends := [upto for after, upto in self.merged if after == at and upto > at]:
            taken.append((at, max(ends)))
            at = max(ends)
        newest = max(self.marked, default=-1)
        unlisted = {newest} if newest > max(at, *self.loose, -1) and not self.lists(newest) else set()
        return [*taken, *sorted(batch for batch in self.loose | unlisted if batch > at)]

    def missing(self, before: str, after: int, at: int) -> str:
        """Return, in words, which manifest is missing ("": none is) where a chain ends with batch ``at`` and goes on with a manifest that comes after ``after``.

        A batch's own manifest and a merged one that ends with it have names of their own, and which of the two was there is not known.

        Args:
            before: the name of the manifest that comes after ``after``; "": none, and the chain goes on with merged manifests only.
            after: what it names as its predecessor.
            at: where the chain ends before that.
        """
        if not before:
            beyond = [pair for pair in self.merged if pair[0] > at]
            if not beyond:
                return ""
            after, before = min(beyond)[0], _name(min(beyond))
        while found := [pair for pair in self.merged if pair[1] == after and pair[0] > at]:
            after, before = min(found)[0], _name(min(found))
        return f"{_name(after)}, or a merged manifest that ends with batch {after} too, is missing, and {before} comes after it"


class Manifests:
    """The manifests of one query and sink."""

    def __init__(self, folder: Path, query_id: str, sink: str) -> None:
        """Take the folder ``_onceforall/manifests`` of the sink's folder, Spark's query id, and ``sink_code`` of the sink's name."""
        self.folder = folder / query_id / sink
        self.tree = Tree(folder.parents[1])
        self.query_id = query_id
        self.sink = sink

    def find(self, batch: int) -> BatchFiles | None:
        """Return the files of a batch; None when it is not committed.

        Raises:
            CorruptEntryError, ForeignEntryError, NewerEntryError, OSError: its manifest can't be read.
        """
        absent = False
        for _ in range(_TRIES):
            listing = self._list()
            covering = [(after, upto) for after, upto in listing.merged if after < batch <= upto]
            try:
                # Its own name is opened, listed or not: a network file system may list a folder as it was a while ago.
                manifest = self._read(_name(max(covering, key=lambda pair: pair[1]) if covering else batch))
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
        """Tell whether a batch is committed; for the last ones that costs one look at a name, however many files they have.

        Raises:
            CorruptEntryError, ForeignEntryError, NewerEntryError, OSError: a merged manifest can't be read.
        """
        return self.tree.size(self.folder / _name(batch)) is not None or self.find(batch) is not None

    def add(self, files: BatchFiles, after: int | None = None) -> BatchFiles:
        """Commit a batch, durably, unless it is; return what is committed: another process may have been faster.

        Args:
            files: of the batch.
            after: the batch before it, as the commit log knows it; None: the last one that is listed here, which on a network file system
                may not be the last one that is there.

        Raises:
            CorruptEntryError, ForeignEntryError, NewerEntryError, OSError: it can't be written, or read.
        """
        content = encode(
            Manifest(self._last_before(files.batch) if after is None else after, (files,)), self.query_id, self.sink
        )
        self.tree.make_folder(self.folder)
        self.tree.sync_all(self._above())
        failpoints.hit("file.manifest.before")
        self.tree.create(self.folder / _name(files.batch), content)
        failpoints.hit("file.manifest.after")
        self._mark(files.batch)
        found = self.find(files.batch)
        if found is None:
            raise self._vanishing()
        return found

    def _last_before(self, batch: int) -> int:
        listing = self._list()
        ends = [*listing.loose, *(upto for _, upto in listing.merged), *listing.marked]
        return max((end for end in ends if end < batch), default=-1)

    def _mark(self, batch: int) -> None:
        """Give the manifest of a batch, which must be durable, its second name, and take those of earlier ones away but for the last.

        It watches over the manifest, and the batch doesn't depend on it: a file system that refuses is told in the log.
        """
        failpoints.hit("file.newest.before")
        try:
            listing = self._list()
            if listing.end > batch or batch in listing.marked:
                return
            self.tree.link(self.folder / _name(batch), self.folder / newest_name(batch))
            failpoints.hit("file.newest.linked")
            for old in sorted(listing.marked)[:-1]:
                if listing.lists(old):
                    self.tree.unlink(self.folder / newest_name(old))
        except (FileExistsError, FileNotFoundError):
            return  # another process was here, or has come further
        except OSError as error:
            _log.warning("Nobody would miss the manifest %s if it was deleted: %s", self.folder / _name(batch), error)

    def make_durable(self, batch: int) -> None:
        """Make durable what another process has named here for a batch: it may have been killed before it could sync it.

        Raises:
            OSError: the file system refused.
        """
        self.tree.sync_all([*self._above(), self.folder])
        self._mark(batch)

    def _above(self) -> list[Path]:
        """Return the folders that have a name on the way here, from the sink's own down: each may have been made and not synced."""
        return list(reversed(self.folder.parents[:4]))

    def read(self) -> list[BatchFiles]:
        """Return all committed batches, in ascending order; see the module's docstring for what concurrent changes do.

        Raises:
            CorruptEntryError, ForeignEntryError, NewerEntryError: a manifest is damaged or missing, or none of ours.
            OSError: the folder can't be read.
        """
        for _ in range(_TRIES):
            listing = self._list()
            found = self._read_chain(listing)
            if found is not None:
                return found
        raise self._vanishing()

    def merge(self) -> None:
        """Merge single manifests, and merged ones, when there are many, and delete what was merged before the last time.

        Raises:
            The errors of ``read``.
        """
        listing = self._list()
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
        manifests = [self._read(_name(link)) for link in todo]
        if any(one.upto != two.after for one, two in pairwise(manifests)):
            return  # listed while something was written: the next batch tries again
        whole = Manifest(manifests[0].after, tuple(batch for manifest in manifests for batch in manifest.batches))
        if merged and todo is loose and whole.after != merged[-1][1]:
            return
        failpoints.hit("file.merge.before")
        self.tree.create(self.folder / _name((whole.after, whole.upto)), encode(whole, self.query_id, self.sink))
        failpoints.hit("file.merge.after")
        if not all(self.tree.is_there(self.folder / _name(link)) for link in merged):
            return  # the folder was listed as it was a while ago
        end = merged[-1][1] if merged else -1
        old: list[tuple[int, int] | int] = [batch for batch in listing.loose if batch <= end]
        old += [pair for pair in listing.merged if pair not in merged and pair[1] <= end]
        for link in old:
            with contextlib.suppress(FileNotFoundError):
                self.tree.unlink(self.folder / _name(link))
        failpoints.hit("file.merge.deleted")

    def _small(self, merged: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Return merged ones that are to be merged again, none where they are few: the first of those behind the last large one.

        A late writer takes the same beginning, and an end that isn't behind: readers pass over what it makes.
        """
        sizes = [self.tree.size(self.folder / _name(link)) or 0 for link in merged]
        start = max((at + 1 for at, size in enumerate(sizes) if size >= MERGED_BYTES), default=0)
        if len(merged) - start < MERGE_AFTER:
            return ()
        end, total = start, 0
        while end < len(merged) and (end < start + 2 or total + sizes[end] <= MERGED_BYTES):
            total += sizes[end]
            end += 1
        return merged[start:end]

    def _read_chain(self, listing: _Listing) -> list[BatchFiles] | None:
        """Return the batches, or None when something was written or deleted meanwhile, so that the folder must be listed again."""
        found: list[BatchFiles] = []
        at = -1
        if listing.marked and not listing.lists(listing.end) and not self.has_name(listing.end):
            return None
        for link in listing.chain():
            try:
                manifest = self._read(_name(link))
                between = self._not_listed(manifest.after, at)
            except FileNotFoundError:
                return None
            if between is None:
                return None
            found += [*between, *manifest.batches]
            at = manifest.upto
        return found if at == listing.end else None

    def _not_listed(self, batch: int, at: int) -> list[BatchFiles] | None:
        """Return the batches above ``at`` up to this one, which no listing has shown, by the names that they say; None when they lead elsewhere."""
        found: list[BatchFiles] = []
        while batch > at:
            manifest = self._read(_name(batch))
            found[:0] = manifest.batches
            batch = manifest.after
        return found if batch == at else None

    def listing(self) -> _Listing:
        """Return the names in the folder, for ``mending``."""
        return self._list()

    def read_link(self, link: tuple[int, int] | int) -> Manifest:
        """Read one manifest by what its name says, for ``mending``; the errors are those of ``decode``, and FileNotFoundError."""
        return self._read(_name(link))

    def read_marked(self, batch: int) -> Manifest:
        """Read the manifest of a batch by its second name; the errors are those of ``read_link``."""
        return self._read(newest_name(batch), _name(batch))

    def has_name(self, link: tuple[int, int] | int) -> bool:
        """Tell whether a manifest's name is taken: asked by the name, and not of a listing."""
        return self.tree.is_there(self.folder / _name(link))

    def check_place(self, batch: int) -> None:
        """See that a batch's manifest could be made and read: nothing but a file has its name, and no folder on the way is a link.

        Raises:
            ForeignEntryError, OSError: naming what is in the way.
        """
        self.tree.check_file(self.folder / _name(batch))

    def path_of(self, link: tuple[int, int] | int) -> Path:
        """Return where a manifest lies."""
        return self.folder / _name(link)

    def _list(self) -> _Listing:
        try:
            names = self.tree.names(self.folder)
        except FileNotFoundError:
            names = []
        loose = frozenset(int(match[1]) for name in names if (match := _LOOSE.fullmatch(name)))
        merged = frozenset((int(match[1]), int(match[2])) for name in names if (match := _MERGED.fullmatch(name)))
        marked = frozenset(int(match[1]) for name in names if (match := _NEWEST.fullmatch(name)))
        return _Listing(loose, merged, marked)

    def _read(self, file: str, name: str = "") -> Manifest:
        """Read a manifest; ``name``: what a file is called otherwise that lies there under a second name."""
        path, name = self.folder / file, name or file
        manifest = decode(self.tree.read(path), path, self.query_id, self.sink)
        says = _name(manifest.upto), _name((manifest.after, manifest.upto))
        if name not in says or (_LOOSE.fullmatch(name) and len(manifest.batches) > 1):
            raise _foreign(path, f"it is of the batches above {manifest.after} up to {manifest.upto}, and was renamed")
        return manifest

    def _vanishing(self) -> CorruptEntryError:
        listing = self._list()
        at = -1
        for link in listing.chain():
            with contextlib.suppress(FileNotFoundError):
                manifest = self._read(_name(link))
                if manifest.after < at:
                    return _corrupt(
                        self.path_of(link), f"it says that it comes after batch {manifest.after}, and there is {at}"
                    )
                if manifest.after > at:
                    return _incomplete(self.folder, listing.missing(_name(link), manifest.after, at))
                at = manifest.upto
        if listing.end > at and listing.end in listing.marked:
            return _corrupt(
                self.folder / _name(listing.end), f"it is missing, and {newest_name(listing.end)} is its second name"
            )
        words = listing.missing("", at, at)
        return _incomplete(self.folder, words) if words else _corrupt(self.folder, "manifests come and go without an end")


def _name(link: tuple[int, int] | int) -> str:
    return f"{link}.json" if isinstance(link, int) else f"{link[0]}-{link[1]}.json"


def newest_name(batch: int) -> str:
    """Return the second name of a batch's manifest."""
    return f".newest.{batch}"


def all_of(folder: Path) -> Iterable[Manifests]:
    """Return the manifests of all queries and sinks below ``_onceforall/manifests``, in the order of their names.

    Raises:
        OSError: a folder can't be read, or a link stands in its place (ELOOP): none is followed.
    """
    for query in queries_of(folder):
        yield from sinks_of(folder, query)


def queries_of(folder: Path) -> list[str]:
    """Return the names of what lies in ``_onceforall/manifests``, sorted: those of queries, and perhaps of something foreign."""
    return sorted(Tree(folder.parents[1]).names(folder))


def sinks_of(folder: Path, query_id: str) -> list[Manifests]:
    """Return the manifests of one query's sinks, in the order of their names; none where the name is a plain file's.

    Raises:
        OSError: it can't be read, or a link stands in its place or in a sink's (ELOOP).
    """
    tree = Tree(folder.parents[1])
    try:
        names = tree.names(folder / query_id)
    except NotADirectoryError:
        return []
    return [Manifests(folder, query_id, name) for name in sorted(names) if tree.size(folder / query_id / name) is None]


def has_our_name(name: str) -> bool:
    """Tell whether a name in a folder of manifests is one that we give: to a manifest, a second name or a temp file."""
    return any(pattern.fullmatch(name) for pattern in (_LOOSE, _MERGED, _NEWEST)) or is_temporary(name)


_ADVICE = (
    "'onceforall files check' on the sink's folder tells whether it can be mended. If not, restore it from a backup or a snapshot of the file "
    "system; without it readers can't tell which files are committed. Don't delete or edit manifests."
)


def _corrupt(path: Path, reason: str) -> CorruptEntryError:
    return CorruptEntryError(f"The manifest {path} is damaged: {reason}. {_ADVICE}")


def _incomplete(folder: Path, reason: str) -> CorruptEntryError:
    return CorruptEntryError(f"The manifests are incomplete: {folder}/{reason}. {_ADVICE}")


def without_advice(error: CommitLogError) -> str:
    """Return what an error of this module says, without its advice to let the manifests be checked: for who does that."""
    return str(error).partition(f". {_ADVICE}")[0].removesuffix(".")


def _foreign(path: Path, reason: str) -> ForeignEntryError:
    return ForeignEntryError(f"{path} does not belong here: {reason}. Move it away, and put back what lay there.")
