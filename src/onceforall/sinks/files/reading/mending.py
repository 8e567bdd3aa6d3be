"""Checks the chains of manifests in a folder, and mends what is provable.

Each manifest says which batch was committed before it. One that was written from a stale listing
(NFS keeps listings for seconds, and longer) passes over a batch that another host committed
meanwhile: it says ``after: 0`` in batch 2, though ``1.json`` is there. Readers then stop there, for
ever. And a merge by such a listing leaves a batch out.

*Provable* is this alone: a manifest that names an earlier one of the same chain as its predecessor,
while others stand between the two. All of them are committed, each by a decision of its own, and
their order is that of their numbers. So the mended manifest names the last one before it, and a
merged one takes up the single manifest that it left out. A manifest that names one that is *not
there* is not touched: the missing one holds files that nobody else knows; unless it has its second
name still, ``.newest.<batch>``, which was given it when it was durable: then it is put back from
there. So is a damaged one whose second name is another file by now and whole, and a damaged merged
one whose parts are all there still.

A mended manifest takes the old one's name at once, and the old one stays beside it under a hidden
name. A crash at any step leaves what the next run of the command goes on with. A running query is
not in the way: it never changes a manifest, and merges a chain only where that is whole. Only a
merged manifest is mended while the query stands still.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from onceforall.commit_log.envelope import FORMAT, encode_fields
from onceforall.errors import (
    CommitLogError,
    ConfigurationError,
    CorruptEntryError,
    ForeignEntryError,
    NewerEntryError,
    OptionError,
    SinkUnavailableError,
)
from onceforall.failpoints import points as failpoints
from onceforall.sinks.files.folder_ids import KIND, NAME, RESTORE_ID, folder_id
from onceforall.sinks.files.folders import PlaceError, explained
from onceforall.sinks.files.manifests.chain import Manifests, queries_of, sinks_of
from onceforall.sinks.files.manifests.content import BatchFiles, Manifest, encode, without_advice
from onceforall.sinks.files.manifests.names import Listing, newest_name
from onceforall.sinks.files.paths import HOME, MANIFESTS
from onceforall.sinks.files.places import AnyPath, Files
from onceforall.sinks.files.reading.sources import Source, source_of

__all__ = ["Finding", "check_files", "mend_files"]


_RESTORE = (
    "That can't be mended: restore the manifest from a backup or a snapshot of the file system."
)

_LOOKS = 5
"""What is wrong beside a running query is looked at again so often at the most, until two looks
agree."""


def _stray(name: str, batch: int) -> str:
    return (
        f"Nothing else names batch {batch}. If the query has never committed it (its commit log "
        f"and the chain end before), move {name} out of the folder. If it has, restore the "
        "manifest from a backup or a snapshot of the file system."
    )


@dataclass(frozen=True)
class Finding:
    """What is wrong with one manifest.

    Attributes:
        path: the manifest, or the folder that lacks one or can't be read.
        words: what is wrong with it.
        mended: what it should say; None: that can't be known, and it is left alone.
        content: the bytes of that.
        remedy: what to do where it isn't mended.
    """

    path: AnyPath
    words: str
    mended: str | None = None
    content: bytes = b""
    remedy: str = _RESTORE

    def __str__(self) -> str:
        told = self.remedy if self.mended is None else f"Mended, it {self.mended}."
        return f"{self.path}: {self.words}. {told}"


def check_files(
    path: str | os.PathLike[str], *, storage: Mapping[str, str] | None = None
) -> list[Finding]:
    """Return what is wrong with the manifests of a folder of ``FileSink``; an empty list: nothing.
    Nothing is changed.

    What can't be read, is damaged or no file is a finding too.

    Args:
        path: the sink's folder, or the URL of its prefix in a bucket.
        storage: how to reach the bucket, as ``read_files`` takes it.

    Raises:
        ConfigurationError: no FileSink has ever written there.
        NewerEntryError: a newer release wrote a manifest.
        OptionError, UnsupportedQueryError, MissingExtraError: as ``read_files``.
        SinkUnavailableError: the store didn't answer, or refused: what is wrong isn't known.
    """
    source = source_of(path, storage)
    try:
        return _found_in(source)
    except PlaceError as error:
        raise SinkUnavailableError(
            f"The manifests in {source.root} can't be checked: {error}, and repeat."
        ) from error


def _found_in(source: Source) -> list[Finding]:
    """Return what is wrong; raises ``PlaceError`` where the store tells nothing: that isn't known
    to be damage.
    """
    tree, root = source.tree, source.root
    try:
        is_there = tree.is_folder(root / HOME)
    except PlaceError:
        raise
    except OSError as error:
        return [_unreadable(root / HOME, error)]
    if not is_there:
        raise ConfigurationError(
            f"The folder {root} holds no folder {HOME}: no FileSink has written there. Name the "
            "sink's folder."
        )
    found = _of_the_id(source)
    try:
        queries = queries_of(tree) if tree.is_folder(root / MANIFESTS) else []
    except PlaceError:
        raise
    except OSError as error:
        return [*found, _unreadable(root / MANIFESTS, error)]
    for query in queries:
        try:
            sinks = sinks_of(tree, query)
        except PlaceError:
            raise
        except OSError as error:
            found.append(_unreadable(root / MANIFESTS / query, error))
            continue
        found += [finding for each in sinks for finding in _settled(each)]
    return found


def _of_the_id(source: Source) -> list[Finding]:
    """Return what is wrong with the folder's id."""
    path = source.root / HOME / NAME
    try:
        folder_id(source.tree)
    except (NewerEntryError, PlaceError):
        raise
    except FileNotFoundError:
        words = "it is missing, and is the folder's id"
    except (CommitLogError, OSError) as error:
        words = str(error).removesuffix(RESTORE_ID).strip().removesuffix(".")
    else:
        return []
    return [Finding(path, words.removeprefix(f"{path}, "), remedy=RESTORE_ID)]


def mend_files(
    path: str | os.PathLike[str],
    *,
    folder: str | None = None,
    storage: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Mend what is provable, and return all that was found: what has ``mended`` None is as it was.

    Args:
        path: as for ``check_files``.
        folder: the id of the folder, which the query's error names: where the file that has it is
            missing, it is written again.
        storage: as for ``check_files``.

    Raises:
        The errors of ``check_files``, and:
        OptionError: the folder has another id, or a damaged file of it, or it is none.
        CommitLogError: a manifest can't be written, or a running query has changed the chain
            meanwhile.
    """
    if folder is not None:
        source = source_of(path, storage)
        try:
            _write_id(source, folder)
        except PlaceError as error:
            raise SinkUnavailableError(
                f"The id can't be written in {source.root}: {error}, and repeat."
            ) from error
    found = check_files(path, storage=storage)
    tree = source_of(path, storage).tree
    for finding in found:
        if finding.mended is not None:
            try:
                _replace(tree, finding.path, finding.content)
            except OSError as error:
                raise CommitLogError(
                    f"The manifest {finding.path} can't be mended: {explained(error)}, and mend "
                    "again."
                ) from error
    again = [
        finding
        for finding in (check_files(path, storage=storage) if found else ())
        if finding.mended is not None
    ]
    if again:
        raise CommitLogError(
            f"Something has changed while it was mended: {again[0]} Stop the query that writes "
            "there, and mend again."
        )
    return found


def _write_id(source: Source, folder: str) -> None:
    path = source.root / HOME / NAME
    if re.fullmatch("[0-9a-f]{32}", folder) is None:
        raise OptionError(
            f"{folder!r} is no id of a folder: it has 32 digits, of 0 to 9 and a to f. The error "
            "of the query names it."
        )
    if not source.tree.is_folder(source.root / HOME):
        raise ConfigurationError(
            f"The folder {source.root} holds no folder {HOME}: no FileSink has written there. Name "
            "the sink's folder."
        )
    source.tree.create(path, encode_fields({"onceforall": FORMAT, "kind": KIND, "id": folder}))
    try:
        found = folder_id(source.tree)
    except CommitLogError as error:
        raise OptionError(f"{path} is there, and damaged. Move it away, and repeat.") from error
    if found != folder:
        raise OptionError(
            f"The folder {source.root} has the id {found}, and not {folder}. If that was made anew "
            f"in this folder, move {path} away, and repeat."
        )


def _settled(manifests: Manifests) -> list[Finding]:
    """Return what is found in a chain whenever it is looked at: a running query may have merged and
    deleted what a look had listed.
    """
    before: list[Finding] | None = None
    found = list(_findings(manifests))
    for _ in range(_LOOKS):
        if not found or found == before:
            break
        before, found = found, list(_findings(manifests))
    return found


def _findings(manifests: Manifests) -> Iterator[Finding]:  # noqa: C901, PLR0912, PLR0915  one walk, and what may be found on it
    """Walk a chain as a reader does, but go on behind a predecessor that is wrong, and behind a
    manifest that has its second name only.
    """
    try:
        listing = manifests.listing()
    except PlaceError:
        raise
    except OSError as error:
        yield _unreadable(manifests.folder, error)
        return
    back: dict[tuple[int, int] | int, Manifest] = {}
    for batch in sorted(listing.marked):
        if listing.lists(batch) or manifests.has_name(batch):
            if batch == listing.end:  # nothing but the last manifest needs one
                yield from _useless_second_name(manifests, batch)
            continue
        path, words = (
            manifests.path_of(batch),
            f"it is missing, and {newest_name(batch)} is its second name",
        )
        try:
            found = back[batch] = manifests.read_marked(batch)
        except (NewerEntryError, PlaceError):
            raise
        except (CommitLogError, OSError) as error:
            remedy = (
                _stray(newest_name(batch), batch)
                if isinstance(error, ForeignEntryError)
                else _RESTORE
            )
            yield Finding(path, f"{words}, which doesn't help ({_words(error)})", remedy=remedy)
        else:
            yield Finding(
                path, words, "is put back", encode(found, manifests.query_id, manifests.sink)
            )
    # One that is missing and can't be put back was told just now.
    told = frozenset(
        batch for batch in listing.marked if not listing.lists(batch) and batch not in back
    )
    marked = listing.marked
    listing = replace(
        listing,
        loose=(listing.loose | {batch for batch in listing.marked if batch in back}) - told,
        marked=frozenset(),
    )
    at, passed = -1, {-1}
    for link in listing.chain():
        path = manifests.path_of(link)
        try:
            manifest = back[link] if link in back else manifests.read_link(link)
        except (NewerEntryError, PlaceError):
            raise
        except (CommitLogError, OSError) as error:
            yield _kept_elsewhere(manifests, listing, marked, link, error)
            # What it said can't be known, nor therefore whether what comes after it is right to
            # name it.
            at = link if isinstance(link, int) else link[1]
            passed.add(at)
            continue
        if isinstance(link, int):
            if manifest.after > at:
                yield Finding(manifests.folder, listing.missing(path.name, manifest.after, at))
            elif manifest.after < at and manifest.after not in passed:
                yield Finding(
                    path,
                    f"it says that it comes after batch {manifest.after}, of which there is no "
                    "manifest",
                )
            elif manifest.after < at:
                mended = Manifest(at, manifest.batches)
                yield Finding(
                    path,
                    f"it says that it comes after batch {manifest.after}, but that of batch {at} "
                    "is between them",
                    f"comes after batch {at}",
                    encode(mended, manifests.query_id, manifests.sink),
                )
        else:
            yield from _left_out(manifests, link, manifest, listing.loose)
        passed |= {batch.batch for batch in manifest.batches}
        at = manifest.upto
    if at < listing.end:
        yield Finding(manifests.folder, listing.missing("", at, at))


def _useless_second_name(manifests: Manifests, batch: int) -> Iterator[Finding]:
    """Find a second name that wouldn't help, of a manifest that is whole; of one that isn't, the
    finding is another.
    """
    try:
        manifests.read_marked(batch)
    except FileNotFoundError:
        return  # a running query has taken it away
    except (NewerEntryError, PlaceError):
        raise
    except (CommitLogError, OSError) as error:
        if isinstance(error, CorruptEntryError) and not _is_readable(manifests, batch):
            return
        yield Finding(
            manifests.folder / newest_name(batch),
            f"it is the second name of the manifest of batch {batch}, and can't be read "
            f"({_words(error)})",
            remedy="Delete it. The batch has its manifest, and the next one gets both names.",
        )


def _is_readable(manifests: Manifests, batch: int) -> bool:
    try:
        manifests.read_link(batch)
    except PlaceError:
        raise
    except FileNotFoundError:
        return True  # merged
    except (CommitLogError, OSError):
        return False
    return True


def _kept_elsewhere(
    manifests: Manifests,
    listing: Listing,
    marked: frozenset[int],
    link: tuple[int, int] | int,
    error: CommitLogError | OSError,
) -> Finding:
    """Return what is found of a manifest that can't be read: what it said may be known from its
    second name, or from those that were merged into it.
    """
    path = manifests.path_of(link)
    whole, source = None, ""
    if isinstance(error, CorruptEntryError):
        if isinstance(link, int) and link in marked:
            source = newest_name(link)
            with _damage_aside():
                whole = manifests.read_marked(link)
        elif not isinstance(link, int):
            source = "the manifests that were merged into it"
            with _damage_aside():
                whole = _merged_again(manifests, listing, *link)
    if whole is not None:
        content = encode(whole, manifests.query_id, manifests.sink)
        return Finding(
            path,
            f"it can't be read ({_words(error)}), and {source} can",
            "is put back from there, and what stood there is kept under a hidden name",
            content,
        )
    found = _unreadable(path, error)
    if isinstance(error, ForeignEntryError) and isinstance(link, int) and link == listing.end:
        found = replace(found, remedy=_stray(path.name, link))
    return found


@contextlib.contextmanager
def _damage_aside() -> Iterator[None]:
    try:
        yield
    except PlaceError:
        raise
    except (CommitLogError, OSError):
        pass


def _merged_again(manifests: Manifests, listing: Listing, after: int, upto: int) -> Manifest | None:
    """Return what a merged manifest said, by those that it was made of, where all are there still:
    a merge deletes them behind it.
    """
    batches: list[BatchFiles] = []
    at = after
    while at < upto:
        inner = [
            pair
            for pair in listing.merged
            if pair[0] == at and at < pair[1] <= upto and pair != (after, upto)
        ]
        single = min((batch for batch in listing.loose if at < batch <= upto), default=None)
        link = max(inner) if inner else single
        if link is None:
            return None
        manifest = manifests.read_link(link)
        if manifest.after != at:
            return None
        batches += manifest.batches
        at = manifest.upto
    return Manifest(after, tuple(batches)) if at == upto else None


def _unreadable(path: AnyPath, error: CommitLogError | OSError) -> Finding:
    return Finding(path, f"it can't be read ({_words(error)})")


def _words(error: CommitLogError | OSError) -> str:
    return without_advice(error) if isinstance(error, CommitLogError) else explained(error)


def _left_out(
    manifests: Manifests, link: tuple[int, int], manifest: Manifest, loose: frozenset[int]
) -> Iterator[Finding]:
    """Find single manifests in the range of a merged one that are not in it: a late writer's
    are.
    """
    known = {batch.batch for batch in manifest.batches}
    missing: list[BatchFiles] = []
    for batch in sorted(
        batch for batch in loose if manifest.after < batch < manifest.upto and batch not in known
    ):
        try:
            missing += manifests.read_link(batch).batches
        except (NewerEntryError, PlaceError):  # noqa: PERF203  each may fail, and the others count
            raise
        except (CommitLogError, OSError) as error:
            yield _unreadable(manifests.path_of(batch), error)
    if missing:
        batches = tuple(sorted((*manifest.batches, *missing), key=lambda each: each.batch))
        numbers = ", ".join(str(each.batch) for each in missing)
        yield Finding(
            manifests.path_of(link),
            f"it leaves out batch {numbers}, which has a manifest of its own",
            f"has batch {numbers}",
            encode(Manifest(manifest.after, batches), manifests.query_id, manifests.sink),
        )


def _replace(tree: Files, path: AnyPath, content: bytes) -> None:
    """Give a manifest another content at once, durably; the old one, where there is one, stays
    under a hidden name.
    """
    if not tree.is_there(path):
        tree.create(path, content)
        return
    mark = secrets.token_hex(4)
    aside, new = (
        path.parent / f".{path.name}.before-mending-{mark}",
        path.parent / f".{path.name}.mended-{mark}",
    )
    if not tree.create(new, content):
        raise CorruptEntryError(f"{new} is there already. Mend again.")
    failpoints.hit("file.mend.written")
    tree.link(path, aside)
    tree.sync_all([path.parent])
    failpoints.hit("file.mend.kept")
    tree.replace(new, path)
    failpoints.hit("file.mend.replaced")
    tree.sync_all([path.parent])
