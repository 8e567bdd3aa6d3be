"""The driver's side: from temp files to a committed batch, by as many processes at once as there
may be.

The steps, each of which may be the last one of a process, and each of which may be done again:

1. Look at every file of the batch: its temp file or its target is there, or its manifest says that
   it was committed. Nothing moves before all have been found, so that a batch that lost a file
   leaves no other one in the open.
2. ``link`` each temp file to its target. That fails where the name is taken, so nothing is ever
   overwritten; the same inode under both names is our own earlier link. The temp file's name goes
   only after step 4, so that at each moment one of the two is there.
3. Sync the folders, and those above them: who made them may have died before it could.
4. Create the manifest: now the batch is there for those who read manifests. Who finds it syncs its
folder too, for the same reason.
5. Delete the temp files' names. Sweeps find what is left.

Who is late (a driver that was frozen anywhere in here, while its successor completed this batch and
later ones) finds its temp file gone and its target there, or the batch's manifest, and changes
nothing: names are given out once, no link overwrites, no manifest is written twice, and in step 5
only names of the same attempts go, whose files have their targets.

The folder must be the one that the batch was decided for (module ``identity``); in another one
everything is in doubt, and nothing is done.

A file is *lost* when neither its temp file nor its target is there and the manifest doesn't have
it, or when its temp file does not have the
size that was decided: nothing of it is visible, and ``retire`` deletes the rest, so that it never
will be. It is *in doubt* when its target
has another size: somebody else changed it.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace

from onceforall.errors import SinkUnavailableError
from onceforall.failpoints import points as failpoints
from onceforall.protocol import contract
from onceforall.protocol.entries import Committable
from onceforall.protocol.names import TransactionName
from onceforall.sink import CommitReport, LostTransaction
from onceforall.sinks.files.data_files import DataFile
from onceforall.sinks.files.driver.identity import folder_id
from onceforall.sinks.files.driver.manifest_writing import ManifestWriter
from onceforall.sinks.files.driver.staged_files import (
    StagedFiles,
    after_of,
    layouts_of,
    read_staged,
)
from onceforall.sinks.files.manifests.content import BatchFiles
from onceforall.sinks.files.places import Place


class Folder:
    """A sink's folder, as the driver sees it."""

    def __init__(self, place: Place) -> None:
        """Nothing is looked at yet."""
        self.place = place
        self.root = place.root
        self.tree = place.tree

    def manifests(self, name: TransactionName) -> ManifestWriter:
        """Return the manifests of a transaction's query and sink."""
        return self.manifests_of(name.query_id, name.sink_code)

    def manifests_of(self, query_id: str, code: str) -> ManifestWriter:
        """Return the manifests of a query and one of its sinks, by the sink's code."""
        return ManifestWriter(self.tree, query_id, code)

    def commit(self, batch: int, committables: Sequence[Committable]) -> CommitReport:
        """Do the steps of the module's docstring.

        Raises:
            OSError: the file system refused; to be done again.
            CommitLogError: a manifest is damaged.
        """
        strange = self._decided_for_another(committables)
        staged, in_doubt = self._read_all(batch, committables)
        if strange is not None and (in_doubt or not self._all_recorded(batch, staged)):
            return CommitReport(in_doubt=_marked(LostTransaction(c, strange) for c in committables))
        lost: list[LostTransaction] = []
        todo: list[StagedFiles] = []
        done: list[StagedFiles] = []
        looked = self.place.missing(staged)
        # The manifest is read after the files were looked for: what vanished since was in there.
        manifests = {name: self.manifests_of(*name).find(batch) for name in _names(staged)}
        for transaction, missing in zip(staged, looked, strict=True):
            recorded = manifests[transaction.name.query_id, transaction.name.sink_code]
            if recorded is not None and transaction.attempt in recorded.attempts:
                done.append(transaction)
            elif missing:
                (in_doubt if any(is_doubt for is_doubt, _ in missing) else lost).append(
                    LostTransaction(
                        transaction.committable, "; ".join(reason for _, reason in missing)
                    )
                )
            elif recorded is not None:
                in_doubt.append(
                    LostTransaction(
                        transaction.committable, f"batch {batch} was committed without it"
                    )
                )
            else:
                todo.append(transaction)
        # Where a committable is damaged, the log is to be restored, and may then tell what is
        # missing now.
        (in_doubt or lost).extend(_unreadable(staged, todo))
        if todo and not lost:
            in_doubt += self._complete(batch, todo, whole=not in_doubt)
        if done:
            # Behind our answer comes DONE, and behind that nobody looks at this batch again.
            if not self.manifests(done[0].name).make_durable(batch):
                raise SinkUnavailableError(
                    f"The manifest of batch {batch} in {self.root} was there, and is gone: a loss "
                    "of power has taken what another process wrote. The batch is completed again."
                )
            failpoints.hit("file.commit.found_synced")
        if not lost and not in_doubt:
            self._clear(staged)
        doubtful = {str(each.committable.get("name")) for each in in_doubt}
        completed = tuple(t.committable for t in (*done, *staged) if t.attempt not in doubtful)
        gone = {str(each.committable["name"]) for each in lost}
        unique = {str(c["name"]): c for c in completed if str(c["name"]) not in gone}
        return CommitReport(tuple(unique.values()), (), tuple(lost), _marked(in_doubt))

    def _all_recorded(self, batch: int, staged: Sequence[StagedFiles]) -> bool:
        """Tell whether this folder's manifests have every attempt: names are given out once, so
        that it is the folder, whatever became of its id.
        """
        manifests = {name: self.manifests_of(*name).find(batch) for name in _names(staged)}
        return all(
            recorded is not None and transaction.attempt in recorded.attempts
            for transaction in staged
            for recorded in [manifests[transaction.name.query_id, transaction.name.sink_code]]
        )

    def _decided_for_another(self, committables: Sequence[Committable]) -> str | None:
        here = folder_id(self.tree)
        others = {str(c["folder"]) for c in committables if "folder" in c} - {here}
        if not others:
            return None
        return (
            f"it was decided for the folder with the id {min(others)}, and {self.root} has the id "
            f"{here}: the sink's path was changed, the volume of the old folder is not mounted, or "
            "the file with the id was made anew. Start once more with the old path, or mount the "
            "volume; or, where it is the old folder, move _onceforall/folder.json away and write "
            f"it again (onceforall files mend {shlex.quote(str(self.root))} --id {min(others)}). "
            "A new folder wants a sink with another name"
        )

    def _complete(
        self, batch: int, todo: Sequence[StagedFiles], *, whole: bool
    ) -> list[LostTransaction]:
        """Take steps 2 to 4 for a batch; return what stands in the way.

        What is decided and not in doubt gets its names also where the batch isn't whole, and then
        has no manifest: whatever is answered to the doubt, these rows belong in the open, and a
        sweep deletes temp files when the answer is that the batch is complete.
        """
        failpoints.hit("file.commit.before")
        refused = self.place.publish(todo)
        failpoints.hit("file.commit.synced")
        if refused or not whole:
            return refused
        added = self.manifests(todo[0].name).add(_batch_files(batch, todo), after_of(todo))
        return [
            LostTransaction(
                t.committable, f"batch {batch} was committed without it, by another process"
            )
            for t in todo
            if t.attempt not in added.attempts
        ]

    def _clear(self, staged: Iterable[StagedFiles]) -> None:
        """Delete the temp files of committed attempts; what fails, a sweep repeats."""
        failpoints.hit("file.commit.before_clearing")
        for transaction in staged:
            with contextlib.suppress(OSError):
                self.place.clear(transaction)
        failpoints.hit("file.commit.cleared")

    def retire(self, staged: StagedFiles) -> None:
        """Delete what is left of a lost transaction, so that it never becomes visible; a committed
        one keeps its files.

        Raises:
            OSError: the file system refused.
        """
        recorded = self.manifests(staged.name).find(staged.name.batch)
        is_committed = recorded is not None and staged.attempt in recorded.attempts
        if (
            not is_committed
            and not {_LOST, _IN_DOUBT} & staged.committable.keys()
            and not self.place.missing([staged])[0]
        ):
            return  # Neither lost nor committed: it waits for its commit.
        files = () if is_committed else staged.files
        if _IN_DOUBT in staged.committable:
            # What stands in their places may be somebody else's, and without the temp files it
            # would be taken for ours by whoever comes behind a crash here.
            self._unpublish(staged, files)
        # The temp files go first, so that a driver that wakes now finds nothing to make a target
        # of.
        self.place.discard(staged.attempt)
        failpoints.hit("file.retire.temporary_deleted")
        self._unpublish(staged, files)

    def _unpublish(self, staged: StagedFiles, files: Iterable[DataFile]) -> None:
        for file in files:
            self.place.unpublish(staged, file)

    def _read_all(
        self, batch: int, committables: Sequence[Committable]
    ) -> tuple[list[StagedFiles], list[LostTransaction]]:
        staged, in_doubt = [], []
        for committable in committables:
            read = self._read_of(batch, committable)
            if isinstance(read, StagedFiles):
                staged.append(read)
            else:
                in_doubt.append(read)
        return staged, in_doubt

    def _read_of(self, batch: int, committable: Committable) -> StagedFiles | LostTransaction:
        try:
            read = read_staged(committable)
            self.place.check_committable(read)
        except ValueError as error:
            reason = str(error)
        else:
            if read.name.batch == batch:
                return read
            reason = f"it is of batch {read.name.batch}"
        return LostTransaction(
            committable,
            f"the committable isn't one of FileSink, or is damaged: {reason}. {contract.RESTORE}",
        )


def _names(staged: Iterable[StagedFiles]) -> set[tuple[str, str]]:
    return {(t.name.query_id, t.name.sink_code) for t in staged}


def _batch_files(batch: int, staged: Sequence[StagedFiles]) -> BatchFiles:
    layouts = layouts_of(staged)
    files = [(file, layouts[t.attempt]) for t in staged for file in t.files]
    return BatchFiles(
        batch,
        frozenset(t.attempt for t in staged),
        tuple(sorted(files, key=lambda pair: pair[0].path)),
    )


_LOST = "layout_lost"
"""A key of committables that are reported as lost because nobody knows their layout: their files
are there, and ``retire`` must delete them."""


_IN_DOUBT = "in_doubt"
"""A key of committables that are reported as in doubt: where a person says that they are aborted,
``retire`` deletes their files, which are all there, perhaps."""


def _marked(in_doubt: Iterable[LostTransaction]) -> tuple[LostTransaction, ...]:
    return tuple(
        replace(each, committable={**each.committable, _IN_DOUBT: True}) for each in in_doubt
    )


def _unreadable(staged: Sequence[StagedFiles], todo: list[StagedFiles]) -> list[LostTransaction]:
    """Take those whose layout nobody knows any more out of ``todo``, and return them."""
    layouts = layouts_of(staged)
    unknown = [t for t in todo if t.attempt not in layouts]
    todo[:] = [t for t in todo if t.attempt in layouts]
    return [
        LostTransaction(
            {**t.committable, _LOST: True},
            f"its {len(t.files)} files are there, but how to read them stood in another "
            "transaction of the same run, which was lost when an earlier "
            "release of onceforall wrote a part of the batch again; their rows are written again "
            "too",
        )
        for t in unknown
    ]


__all__ = ["Folder"]
