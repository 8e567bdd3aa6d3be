"""What committables say of the files that tasks have staged, and how these are to be read.

How a file is to be read, its *layout* (schema, partition columns, format and its options), belongs
to the committable that names it, and not to
its write: when a batch is written again in part, by a run with another format, one write has files
of both. The layout of a table of ten columns has a kilobyte, and a batch may have hundreds of
tasks, so ``confirm`` leaves in each committable a hash of its layout, and the layouts themselves
under the key ``shared`` of the first committable of each kind. When that one is lost, the library
hands ``shared`` on (``onceforall.sink`` has the rule). Earlier releases left the layout itself on
the first committable of a write and nothing on the others, and handed
nothing on: what such a log doesn't tell any more, because the one that said it was lost, is
reported as lost too, and never guessed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onceforall.protocol.entries import Committable
from onceforall.protocol.names import TransactionName, parse_name
from onceforall.sinks.files.data_files import DataFile, from_slim
from onceforall.sinks.files.layout import Layout, read_layout


@dataclass(frozen=True)
class StagedFiles:
    """The temp files of one task attempt, as its committable says them: read back and checked."""

    committable: Committable
    name: TransactionName
    files: tuple[DataFile, ...]
    layout: Layout | str | None
    """How to read the files: the layout, or a hash of it, or None where an earlier release left
    it on another committable of the write."""
    shared: Mapping[str, Layout]
    """Layouts by their hash."""

    @property
    def attempt(self) -> str:
        """The attempt's name."""
        return str(self.name)


def read_staged(committable: Committable) -> StagedFiles:
    """Read a committable.

    Raises:
        ValueError: it is none of this sink's.
    """
    try:
        attempt = str(committable["name"])
        name = parse_name(attempt)
        if name is None:
            raise ValueError(f"{attempt!r} is not the name of a transaction")
        files = tuple(
            from_slim(body, name, str(committable["extension"])) for body in committable["files"]
        )
        given = committable.get("layout")
        layout = given if given is None or isinstance(given, str) else read_layout(given)
        shared = {
            str(code): read_layout(body) for code, body in committable.get("shared", {}).items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"it lacks what a committable of FileSink has ({type(error).__name__}: {error})"
        ) from error
    return StagedFiles(committable, name, files, layout, shared)


def after_of(staged: Iterable[StagedFiles]) -> int | None:
    """Return the batch that comes before this one in the sink, by the commit log; None where
    that knows none.
    """
    return max(
        (int(t.committable["after"]) for t in staged if t.committable.get("after") is not None),
        default=None,
    )


def layouts_of(staged: Iterable[StagedFiles]) -> dict[str, Layout]:
    """Return the layout of each attempt's files, as far as the batch's committables tell."""
    staged = list(staged)
    shared = {code: layout for t in staged for code, layout in t.shared.items()}
    # What earlier releases wrote: of one run and one write, the first says it for all. Another run
    # may have had another format.
    of_runs = {
        (t.name.generation, t.name.write): t.layout for t in staged if isinstance(t.layout, Layout)
    }
    found = {}
    for t in staged:
        if isinstance(t.layout, Layout):
            layout: Layout | None = t.layout
        else:
            layout = (
                of_runs.get((t.name.generation, t.name.write))
                if t.layout is None
                else shared.get(t.layout)
            )
        if layout is not None:
            found[t.attempt] = layout
    return found


def with_shared_layouts(committables: Iterable[Committable]) -> list[Committable]:
    """Return the committables of one batch, each with a hash of its layout, and the first of
    each hash with the layout itself too.
    """
    seen: set[str] = set()
    slim: list[Committable] = []
    for committable in committables:
        body = committable["layout"]
        code = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
        shared = {} if code in seen else {"shared": {code: body}}
        slim.append({**committable, "layout": code, **shared})
        seen.add(code)
    return slim
