"""A COMMIT entry's committables as a table, where there are many: a batch of 500 transactions says
once what all of them have in common.

``{"same": {"cluster": "…"}, "columns": [["name"], ["proof", "offset"], …], "prefixes": ["…", "",
…], "rows": [["12", 40], …], "more": {"0": {"identity": {…}}}}``

``same`` is what every committable has alike, ``columns`` the paths to what differs, ``prefixes``
how each column's texts begin (null: they aren't all texts), ``rows`` one list per committable, and
``more`` what only some have, by their place. What is packed reads back as it was, the order of
keys aside, which JSON doesn't promise.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["FEWEST", "pack", "unpack"]

FEWEST = 32
"""Fewer committables of a sink stay as they are, for people who read the log."""

_Path = tuple[str, ...]


def pack(body: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a COMMIT entry's body with the committables of each sink as a table where there are
    many, and whether there is such a table.

    Args:
        body: JSON, as ``Commit.body`` gives it.
    """
    packed = {
        sink: _table(given) if len(given) >= FEWEST else given
        for sink, given in body["committables"].items()
    }
    changed = any(isinstance(each, dict) for each in packed.values())
    return {**body, "committables": packed}, changed


def unpack(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that was packed.

    Raises:
        KeyError, TypeError, ValueError: it wasn't made by ``pack``.
    """
    return {
        **body,
        "committables": {
            sink: list(_rows(given)) if isinstance(given, Mapping) else given
            for sink, given in body["committables"].items()
        },
    }


def _table(committables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    flat = [dict(_leaves(each)) for each in committables]
    everywhere = [path for path in flat[0] if all(path in each for each in flat)]
    same = [path for path in everywhere if all(_alike(each[path], flat[0][path]) for each in flat)]
    columns = [path for path in everywhere if path not in set(same)]
    common = [_common([each[path] for each in flat]) for path in columns]
    rows = [
        [
            each[path] if begin is None else each[path][len(begin) :]
            for path, begin in zip(columns, common, strict=True)
        ]
        for each in flat
    ]
    known = {*same, *columns}
    more = {
        str(place): _nested((path, value) for path, value in each.items() if path not in known)
        for place, each in enumerate(flat)
        if each.keys() - known
    }
    return {
        "same": _nested((path, flat[0][path]) for path in same),
        "columns": [list(path) for path in columns],
        "prefixes": common,
        "rows": rows,
        **({"more": more} if more else {}),
    }


def _rows(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    same = list(_leaves(table["same"]))
    columns = [tuple(map(str, path)) for path in table["columns"]]
    more = table.get("more", {})
    for place, row in enumerate(table["rows"]):
        differing = [
            (path, value if begin is None else begin + value)
            for path, begin, value in zip(columns, table["prefixes"], row, strict=True)
        ]
        yield _nested([*same, *differing, *_leaves(more.get(str(place), {}))])


def _leaves(value: Mapping[str, Any], path: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    """Yield what is in an object, and in those in it; an empty one is a leaf."""
    for key, each in value.items():
        if isinstance(each, Mapping) and each:
            yield from _leaves(each, (*path, key))
        else:
            yield (*path, key), each


def _nested(leaves: Iterator[tuple[_Path, Any]] | Sequence[tuple[_Path, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, value in leaves:
        inner = made
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
    return made


def _alike(one: Any, other: Any) -> bool:
    """Whether two JSON values are written alike: 1, 1.0 and true aren't, nor 0.0 and -0.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _common(values: Sequence[Any]) -> str | None:
    """Return how all texts begin; None where not all are texts."""
    return (
        os.path.commonprefix(values) if all(isinstance(each, str) for each in values) else None  # noqa: RUF071  of texts, not paths
    )
