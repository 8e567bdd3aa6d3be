"""Draw the table of types by format and reader into ``files.md`` beside this file, from the data
that the property test asserts.

The data is ``tests/sinks/files/type_table.py``. The same data always gives the same text; a test
compares the two.
"""

from __future__ import annotations

import runpy
from pathlib import Path

TARGET = Path(__file__).with_name("files.md")
DATA = Path(__file__).parents[1] / "tests" / "sinks" / "files" / "type_table.py"
BEGIN = "<!-- drawn by `make docs`; do not edit -->\n"
END = "<!-- end of what is drawn -->\n"


def drawing(page: str) -> str:
    """Return the whole text of ``files.md``, with the table in its place.

    Args:
        page: the text so far.
    """
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{runpy.run_path(str(DATA))['drawn']()}\n{END}{after}"


def main() -> None:
    """Write the drawing."""
    TARGET.write_text(drawing(TARGET.read_text(encoding="utf-8")), encoding="utf-8")
    print(TARGET.name)


if __name__ == "__main__":
    main()
