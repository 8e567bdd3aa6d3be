"""Draw ``peers.md``, the bugs of other systems and our tests, from ``peers.toml`` beside it.

The same data always gives the same text; a test compares the two.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Any

import tomllib

SOURCE = Path(__file__).with_name("peers.toml")
TARGET = Path(__file__).with_name("peers.md")
KINDS = {"loss": "lost rows", "duplicate": "duplicated rows", "stuck": "got stuck"}

HEAD = """\
<!-- drawn from peers.toml by `make docs`; do not edit -->

# Peers' bugs as tests

**{shown} of {all} published exactly-once bugs of other systems are shown by a test here.** For {excluded} of them the test shows that it doesn't happen.
One can happen here, too, with Spark's defaults, and the test shows when: [{shared}](#{peer}).

These are bugs that {systems} had or have in places where onceforall has an equivalent. They lost rows
({loss}), duplicated rows ({duplicate}), or got a job stuck ({stuck}). We looked each up on {date}. Some are mended, and some are still open. *There* says what happened, as the source has it.
*Here* says what onceforall does in the same place. `make test` and `make test-all` run the tests. We left out bugs without a source or without an equivalent here, and variants. The list doesn't
say how many bugs a system has: those with an open tracker and careful reports have the most entries. If an entry is wrong, please say so.
"""  # noqa: E501


def bugs() -> list[dict[str, Any]]:
    """Return the entries in their order."""
    found: list[dict[str, Any]] = tomllib.loads(SOURCE.read_text(encoding="utf-8"))["bug"]
    return found


def drawing() -> str:
    """Return the whole text of ``peers.md``."""
    data = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    entries = data["bug"]
    by_peer = [(peer, list(group)) for peer, group in groupby(entries, lambda bug: bug["peer"])]
    [shared] = [bug for bug in entries if bug.get("shared")]
    *systems, last = [peer.removesuffix(" and its clients") for peer, _ in by_peer]
    head = HEAD.format(
        shown=sum(bool(bug["tests"]) for bug in entries),
        all=len(entries),
        excluded=len(entries) - 1,
        shared=shared["issue"],
        peer=shared["peer"].lower().replace(" ", "-"),
        systems=f"{', '.join(systems)}, {last}",
        date=data["looked_up"].isoformat(),
        **{kind: sum(bug["kind"] == kind for bug in entries) for kind in KINDS},
    )
    table = ["| | bugs | lost rows | duplicated rows | got stuck |", "|---|---|---|---|---|"]
    for peer, group in by_peer:
        counts = [sum(bug["kind"] == kind for bug in group) for kind in KINDS]
        cells = [f"[{peer}](#{peer.lower().replace(' ', '-')})", len(group), *counts]
        table.append(f"| {' | '.join(map(str, cells))} |")
    sections = [
        "\n".join([f"## {peer}\n", *("\n".join(_entry(bug)) for bug in group)])
        for peer, group in by_peer
    ]
    return "\n".join([head, "\n".join(table), "", *sections])


def _entry(bug: dict[str, Any]) -> list[str]:
    also = " It can happen here, too." if bug.get("shared") else ""
    return [
        f"**[{bug['issue']}]({bug['link']})**, *{_plain(bug['title'])}* ({KINDS[bug['kind']]})\n",
        f"- There: {bug['there']}",
        f"- Here: {bug['here']}{also} See {', '.join(_link(each) for each in bug['where'])}.",
        f"- Shown by {', '.join(f'`{test}`' for test in bug['tests'])}\n",
    ]


def _plain(title: str) -> str:
    """Return a title whose characters mean nothing to Markdown."""
    return re.sub(r"([\\*_\[\]<>])", r"\\\1", title.replace("`", ""))


def _link(place: str) -> str:
    path = Path(place.partition("#")[0])
    if path.parts[0] == "docs":
        return f"[{path.name}]({place.removeprefix('docs/')})"
    return f"[{path.name}](../{place})"


def main() -> None:
    """Write the drawing."""
    TARGET.write_text(drawing(), encoding="utf-8")
    print(TARGET.name)


if __name__ == "__main__":
    main()
