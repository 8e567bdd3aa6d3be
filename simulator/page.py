"""``python -m simulator.page``: what the simulators came to, as a page.

Each simulator leaves its figures in ``build/simulator``, with a digest of the code that ran. What
is missing there is taken from what is published, so that each can run on another day and in another
clone. With ``--publish`` page, figures and state go into ``docs/``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from evidence.digests import ROOT, digest_of, protocol_digest, run_by

FOLDER = Path("build/simulator")
DOCS = ROOT / "docs"
RANDOM, WORLDS, BROKERS, DATABASE = "results", "exhaustive", "brokers", "database"

HEAD = """# Results of the simulator

Written by `python -m simulator.page --publish`; nothing here is typed by hand.
[simulator.md](simulator.md) says what is played and what is checked; `make evidence` says whether
each part is of the code that is checked out. `make simulator` plays all of it, and goes on from
here.
"""


def digest_of_today(kind: str) -> str:
    """Return the digest of what a simulator runs."""
    if kind == RANDOM:
        return protocol_digest()
    entry = {
        WORLDS: "exhaustive.py",
        BROKERS: "brokers/__main__.py",
        DATABASE: "database/__main__.py",
    }[kind]
    shows = (ROOT / "evidence", Path(__file__).resolve())
    return digest_of(
        file
        for file in run_by([ROOT / "simulator" / entry])
        if not any(file.is_relative_to(each) for each in shows)
    )


def save(kind: str, folder: Path, body: Mapping[str, Any]) -> None:
    """Keep the figures of a simulator that plays seeds, with the digest of what it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {
            "version": digest_of_today(kind),
            "finished_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **body,
        },
        indent=1,
    )
    (folder / f"{kind}.json").write_text(f"{text}\n", encoding="utf-8")


def page_of(found: Mapping[str, Any]) -> str:
    """Return the page of what there is, by kind of simulator."""
    parts = [HEAD]
    if RANDOM in found:
        parts += ["## Random schedules", "", *_random(found[RANDOM])]
    if WORLDS in found:
        parts += ["## Every schedule of a world", "", *_worlds(found[WORLDS])]
    if BROKERS in found:
        parts += ["## The Kafka sink over simulated brokers", "", *_played(found[BROKERS])]
    if DATABASE in found:
        parts += ["## The PostgreSQL sink, statement by statement", "", *_played(found[DATABASE])]
    return "\n".join(parts)


def violations(found: Mapping[str, Any]) -> list[str]:
    """Return the kinds of simulator that have found any."""
    return [
        kind
        for kind, data in found.items()
        for each in (data if isinstance(data, list) else [data])
        if each["violations"]
    ]


def main(arguments: list[str] | None = None) -> int:
    """Write the page; return 0, or 1 where one with violations was to be published."""
    parser = argparse.ArgumentParser(prog="python -m simulator.page", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of the figures ({FOLDER})")
    parser.add_argument(
        "--docs", type=Path, default=DOCS, help="where the published ones are (docs)"
    )
    parser.add_argument("--publish", action="store_true", help="put it into docs, too")
    options = parser.parse_args(arguments)
    published = options.docs / "simulator-results.json"
    found: dict[str, Any] = {}
    if published.exists():
        found = json.loads(published.read_text(encoding="utf-8"))
    for kind in (RANDOM, WORLDS, BROKERS, DATABASE):
        file = options.folder / f"{kind}.json"
        if file.exists():
            found[kind] = json.loads(file.read_text(encoding="utf-8"))
    page = options.folder / "results.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(page_of(found), encoding="utf-8")
    if options.publish and (violated := violations(found)):
        sys.stderr.write(f"not published, for there are violations: {', '.join(violated)}\n")
        return 1
    if options.publish:
        page = Path(shutil.copy(page, options.docs / "simulator-results.md"))
        published.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        state = options.folder / "state.json"
        if state.exists():
            body = json.loads(state.read_text(encoding="utf-8"))
            (options.docs / "simulator-state.json").write_text(json.dumps(body) + "\n")
    sys.stdout.write(f"{page}\n")
    return 0


def _random(data: Mapping[str, Any]) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    yield (
        f"| schedules with {data['least_faults']} faults or more | **{data['schedules']:,}** "
        f"(seeds from {data['first_seed']} on; {data['schedules_with_fewer_faults']:,} more had "
        "fewer) |"
    )
    yield f"| violations | **{data['violations']}** |"
    yield f"| faults | {data['faults']:,}, {data['most_faults']} at the most in one |"
    yield f"| operations of drivers | {data['operations']:,} |"
    yield (
        f"| time | {data['seconds'] / 60:,.0f} minutes, with {data['cpu_seconds'] / 60:,.0f} "
        f"minutes of CPU; ended {data['finished_at']} |"
    )
    yield f"| random schedules: digest of the code | {data['version']} |"
    yield f"| faults by kind | {_counted(data['faults_by_kind'])} |"
    yield ""


def _worlds(worlds: list[Mapping[str, Any]]) -> Iterator[str]:
    yield "| world | states | transitions | searched to its end | violations | minutes |"
    yield "|---|---|---|---|---|---|"
    for world in worlds:
        size = ", ".join(
            f"{name}: {value}"
            for name, value in world["options"].items()
            if value not in (0, False, None)
        )
        ended = "yes" if world["exhausted"] else "no"
        yield (
            f"| {size} | {world['states']:,} | {world['transitions']:,} | {ended} | "
            f"{world['violations']} | {world['seconds'] / 60:.1f} |"
        )
    versions = " and ".join(sorted({world.get("version", "none") for world in worlds}))
    yield ""
    yield f"Every schedule: digest of the code {versions}."
    yield ""


def _played(data: Mapping[str, Any]) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    yield f"| schedules | **{data['schedules']:,}** (seeds from {data['first_seed']} on) |"
    yield f"| violations | **{data['violations']}** |"
    yield f"| time | {data['seconds'] / 60:,.1f} minutes; ended {data['finished_at']} |"
    yield f"| digest of the code | {data['version']} |"
    yield f"| what happened | {_counted(data['counts'])} |"
    yield ""


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{kind}: {count:,}" for kind, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
