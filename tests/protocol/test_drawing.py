from __future__ import annotations

import runpy
from pathlib import Path

from onceforall.protocol import phases as P
from onceforall.protocol.events import StopRequested
from onceforall.protocol.machine import TRANSITIONS, Transition

DOCS = Path(__file__).parents[2] / "docs"


def drawing():
    return runpy.run_path(str(DOCS / "draw_protocol.py"))["drawing"]()


def test_the_drawing_in_the_documentation_is_up_to_date():
    assert (DOCS / "protocol-states.md").read_text(encoding="utf-8") == drawing(), "run `make docs`"


def test_every_arrow_of_the_table_is_drawn_once():
    arrows = [
        line.strip() for line in drawing().splitlines() if " --> " in line and "[*]" not in line
    ]
    drawn = [(source, to, event) for source, to, events in map(parts, arrows) for event in events]
    table = [
        (p.__name__, to.__name__, e.__name__)
        for p, row in TRANSITIONS.items()
        for e, t in row.items()
        for to in t.to
    ]
    assert sorted(drawn) == sorted(table)


def parts(arrow):
    states, events = arrow.split(": ")
    source, to = states.split(" --> ")
    return source, to, events.split(", ")


def test_another_table_gives_another_drawing(monkeypatch):
    before = drawing()
    monkeypatch.setitem(
        TRANSITIONS[P.Ready], StopRequested, Transition(lambda run, *_: (run, ()), (P.Stopped,))
    )
    assert drawing() != before
