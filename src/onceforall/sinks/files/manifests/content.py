"""What one manifest says, its bytes, and what is said of a manifest that can't be believed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceforall.commit_log.envelope import encode_fields
from onceforall.errors import CommitLogError, CorruptEntryError, ForeignEntryError, NewerEntryError
from onceforall.sinks.files.data_files import DataFile, data_file
from onceforall.sinks.files.layout import Layout, read_layout
from onceforall.sinks.files.places import AnyPath

FORMAT = 1

_KIND = "FILES"


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


def decode(content: bytes, path: AnyPath, query_id: str, sink: str) -> Manifest:
    """Read a manifest back.

    Raises:
        CorruptEntryError: it is empty, torn or damaged.
        ForeignEntryError: it is none of ours, or another query's or sink's.
        NewerEntryError: a newer release wrote it.
    """
    try:
        fields = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise corrupt(path, f"it is not JSON ({error})") from error
    if (
        not isinstance(fields, dict)
        or fields.get("kind") != _KIND
        or not isinstance(fields.get("onceforall"), int)
    ):
        raise foreign(path, "it is no manifest")
    if fields["onceforall"] > FORMAT:
        raise NewerEntryError(
            f"The manifest {path} was written by a newer release of onceforall. Read it with that "
            "one or a later one."
        )
    try:
        if encode_fields(
            {name: value for name, value in fields.items() if name != "checksum"}
        ) != _as_read(fields):
            raise corrupt(path, "its content does not match its checksum")
        if (fields["query_id"], fields["sink"]) != (query_id, sink):
            raise foreign(
                path,
                f"it is of the query {fields['query_id']} and its sink {fields['sink']}, and was "
                "copied to here",
            )
        layouts = [read_layout(layout) for layout in fields["layouts"]]
        batches = tuple(_batch(body, layouts) for body in fields["batches"])
        numbers = [int(fields["after"]), *(batch.batch for batch in batches)]
        if numbers != sorted(set(numbers)) or not batches:
            raise ValueError("its batches are not in order")
        return Manifest(numbers[0], batches)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        raise corrupt(path, f"{type(error).__name__}: {error}") from error


def _as_read(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(
        fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def _batch(body: Mapping[str, Any], layouts: Sequence[Layout]) -> BatchFiles:
    attempts = frozenset(str(name) for name in body["attempts"])
    files = tuple(
        (data_file(file, attempts), layouts[int(file["layout"])]) for file in body["files"]
    )
    return BatchFiles(int(body["batch"]), attempts, files)


_ADVICE = (
    "'onceforall files check' on the sink's folder tells whether it can be mended. If not, "
    "restore it from a backup or a snapshot of the file "
    "system; without it readers can't tell which files are committed. Don't delete or edit "
    "manifests."
)


def corrupt(path: AnyPath, reason: str) -> CorruptEntryError:
    """Return the error of a manifest that is damaged, or of the folder of such ones."""
    return CorruptEntryError(f"The manifest {path} is damaged: {reason}. {_ADVICE}")


def incomplete(folder: AnyPath, reason: str) -> CorruptEntryError:
    """Return the error of a folder that lacks a manifest."""
    return CorruptEntryError(f"The manifests are incomplete: {folder}/{reason}. {_ADVICE}")


def without_advice(error: CommitLogError) -> str:
    """Return what such an error says, without its advice to let the manifests be checked: for
    who does that.
    """
    return str(error).partition(f". {_ADVICE}")[0].removesuffix(".")


def foreign(path: AnyPath, reason: str) -> ForeignEntryError:
    """Return the error of what lies among the manifests and is none of theirs."""
    return ForeignEntryError(
        f"{path} does not belong here: {reason}. Move it away, and put back what lay there."
    )
