"""Where a file sink's files lie, and what differs by that: a local folder (``local``), a prefix
in a bucket of S3 (``s3``) or of Google Cloud Storage (``gcs``), a folder in a container of Azure
(``azure``; ``objects`` is what these have in common), or a folder of HDFS (``hdfs``).

The steps of a batch are the same everywhere (modules ``task.writer`` and ``driver.committing``).
What a step is made of depends on the place, and is behind three small interfaces:

- ``Target``: what the user named. It is pickled to the tasks, and opens the other two.
- ``Staging``: in a task, the files of one attempt, which no reader sees yet.
- ``Place``: on the driver, everything else.

Ids of folders and manifests are small files with names of their own: ``Files`` reads them and
creates them, each at once and never over another. ``tree.Tree`` is that of a local folder,
``places.objects.tree.ObjectTree`` that of a bucket, ``places.hdfs.tree.HdfsTree`` that of HDFS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from onceforall.sink import LostTransaction, TaskAttempt
    from onceforall.sinks.files.data_files import DataFile
    from onceforall.sinks.files.driver.spark_metadata import SparkMetadata
    from onceforall.sinks.files.driver.staged_files import StagedFiles

AnyPath: TypeAlias = Any
"""A ``pathlib.Path``, or what has as much of its interface as is used here: ``/``, ``name``,
``parent``, ``parents`` and its text."""

USABLE_KEPT = 10_000
"""Of so many folders a place remembers that files can go there; then it looks again."""


def taken(target: AnyPath) -> str:
    """Return what is said before a decision of a file in a target's place."""
    return (
        f"{target} is there already, and no manifest names it. If there is a newer copy of this "
        "query's checkpoint, that batch may be its: put that one back. If there is none, move the "
        "file away"
    )


class Target(Protocol):
    """What the user named; it holds no connection and no secret when it is pickled."""

    @property
    def root(self) -> AnyPath:
        """The folder, for messages and lengths."""

    @property
    def root_bytes(self) -> int:
        """How long the part of a file's path is that says the folder."""

    @property
    def longest_path(self) -> int:
        """How long a path may be, in bytes."""

    def unfit(self, folder: str) -> str | None:
        """Return what of a folder's name can't be written here; None: nothing."""

    def spelled(self, folder: str) -> str:
        """Return a folder's name as it is possible here; its values are read back as they are."""

    @property
    def secrets(self) -> Mapping[str, str]:
        """What tasks need and a pickle doesn't have."""

    @property
    def imports(self) -> Mapping[str, str]:
        """The modules that a task needs beside pyarrow, with what installs each."""

    def with_session(self, spark: SparkSession) -> Target:
        """Return the target with what a session knows of it."""

    def staging(self, attempt: TaskAttempt) -> Staging:
        """Return the place of an attempt's files; nothing is touched yet."""

    def place(self) -> Place:
        """Return the driver's side; nothing is touched yet."""


class Staging(Protocol):
    """The files of one task attempt. Errors are those of the operating system (``OSError``)."""

    def begin(self) -> None:
        """Take the attempt's place.

        Raises:
            OSError: it is taken, or can't be made.
        """

    def open(self, name: str, folder: str) -> IO[bytes]:
        """Open a new file for writing.

        Args:
            name: of the file.
            folder: where it will be when it is committed, relative to the sink's.
        """

    def end(self, file: IO[bytes]) -> int:
        """End a file, and return its size: its content is durable then."""

    def finish(self) -> None:
        """Make the names of all files durable: another process will find them."""

    def discard(self) -> None:
        """Delete everything; who still has a file open can't end it any more."""

    def body(self) -> Mapping[str, Any]:
        """Return what a committable must say besides the files' names and sizes."""


class Files(Protocol):
    """Small files below a root, by their paths. Errors are ``OSError``, with ``FileNotFoundError``
    and ``FileExistsError`` for what their names say.
    """

    @property
    def root(self) -> AnyPath:
        """The folder that all paths are below."""

    def held(self, folder: AnyPath) -> AbstractContextManager[None]:
        """Prepare for what is done with many files of a folder."""

    def names(self, folder: AnyPath) -> list[str]:
        """Return what lies in a folder."""

    def is_folder(self, folder: AnyPath) -> bool:
        """Tell whether there is such a folder."""

    def size(self, file: AnyPath) -> int | None:
        """Return a file's size; None when there is none."""

    def read(self, file: AnyPath) -> bytes:
        """Return a file's content."""

    def is_there(self, file: AnyPath) -> bool:
        """Tell whether a name is taken."""

    def check_file(self, file: AnyPath) -> None:
        """See that a name is a file's, or free."""

    def create(self, path: AnyPath, content: bytes) -> bool:
        """Create a file with its whole content at once, durably; False when the name is taken: it
        is left as it is.
        """

    def link(self, file: AnyPath, name: AnyPath) -> None:
        """Give a file a second name, never over another file."""

    def replace(self, file: AnyPath, name: AnyPath) -> None:
        """Give a file another name instead of its own, and over what has that name."""

    def unlink(self, file: AnyPath) -> None:
        """Delete a name."""

    def make_folder(self, folder: AnyPath) -> None:
        """Make a folder and those above it that are missing, durably."""

    def sync_all(self, folders: Iterable[AnyPath]) -> None:
        """Make the names in folders durable."""


class Place(Protocol):
    """The driver's side of a target. Errors are ``OSError``: it is asked again then."""

    @property
    def tree(self) -> Files:
        """Its small files."""

    @property
    def root(self) -> AnyPath:
        """The folder."""

    def check(self, spark: SparkSession | None) -> None:
        """Check at start, before any data moves; make what is missing.

        Raises:
            SinkCheckError, CommitLogError, UnsupportedQueryError: naming the thing and the remedy.
        """

    def check_committable(self, staged: StagedFiles) -> None:
        """See that a committable says what is needed here.

        Raises:
            ValueError: it doesn't.
        """

    def confirm(self, staged: Sequence[StagedFiles], manifests: AnyPath) -> None:
        """See that the staged files are whole and that nothing can stop a commit; make the folders
        that it needs, and nothing else.

        Args:
            staged: all of a batch.
            manifests: the folder that its manifest goes to.

        Raises:
            AttemptFailedError: naming what stands in the way.
        """

    def confirm_others(self) -> None:
        """Look, before the decision, for what others may have put there since the start.

        Raises:
            SinkCheckError: naming it.
        """

    def missing(self, staged: Sequence[StagedFiles]) -> list[list[tuple[bool, str]]]:
        """Return, for each transaction, why files of it can't be committed, and whether that leaves
        a doubt; nothing for one that can, or is.
        """

    def publish(self, staged: Sequence[StagedFiles]) -> list[LostTransaction]:
        """Put all files where they belong, durably, and never over another; return what stands in
        the way. What is there already is right.
        """

    def attempts(self) -> list[str]:
        """Return the names of attempts of which something may be left.

        Raises:
            FileNotFoundError: there is no such folder yet.
        """

    def discard(self, attempt: str) -> bool:
        """Delete what is left of an attempt and isn't published; False when there was nothing."""

    def clear(self, staged: StagedFiles) -> None:
        """Delete what staging has left of a committed transaction; a sweep does what fails."""

    def unpublish(self, staged: StagedFiles, file: DataFile) -> None:
        """Delete a file of a lost transaction where it was published."""

    def delete_temporary_manifests(self, query_id: str) -> None:
        """Delete what killed processes of this query left beside its manifests."""

    def spark_log(self) -> SparkMetadata | None:
        """Return Spark's own log where it is to be kept up; None: there is none."""
