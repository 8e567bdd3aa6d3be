"""Draw the protocol's phases from its transition table, as Mermaid, into ``protocol-states.md``
beside this file.

The same table always gives the same text; a test compares the two.
"""

from __future__ import annotations

from pathlib import Path

from onceforall.protocol.machine import TRANSITIONS
from onceforall.protocol.phases import Phase

TARGET = Path(__file__).with_name("protocol-states.md")

INTRODUCTION = """\
# The states of a run

Drawn from `TRANSITIONS` in [machine.py](../src/onceforall/protocol/machine.py) by `make docs`; do not edit. An arrow is an event (module `events`); one that
leads to several states is decided by what it says. Any other event in a state raises a `ProtocolViolationError` and changes nothing.
"""  # noqa: E501


def drawing() -> str:
    """Return the whole text of ``protocol-states.md``."""
    lines = ["stateDiagram-v2", "    direction TB"]
    lines += [f'    state "{phase.title}" as {phase.__name__}' for phase in TRANSITIONS]
    lines += [f"    [*] --> {next(iter(TRANSITIONS)).__name__}"]
    for phase, row in TRANSITIONS.items():
        events: dict[type[Phase], list[str]] = {}
        for event, transition in row.items():
            for to in transition.to:
                events.setdefault(to, []).append(event.__name__)
        lines += [
            f"    {phase.__name__} --> {to.__name__}: {', '.join(names)}"
            for to, names in events.items()
        ]
    diagram = "\n".join(lines)
    return f"{INTRODUCTION}\n```mermaid\n{diagram}\n```\n"


def main() -> None:
    """Write the drawing."""
    TARGET.write_text(drawing(), encoding="utf-8")
    print(TARGET.name)


if __name__ == "__main__":
    main()
