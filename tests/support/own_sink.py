"""The sink that docs/own-sink.md builds, taken from the page itself."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-sink.md"


def blocks():
    """The page's blocks of Python, by the file name in their first line."""
    found = re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return dict(found)


def run_block(name, **given):
    """Run one block and return its names. As in a program's main module, its classes travel to other processes by value."""
    namespace = {"__name__": f"page.{name}", **given}
    exec(compile(blocks()[name], name, "exec"), namespace)
    return namespace


JsonFileSink = run_block("json_file_sink.py")["JsonFileSink"]
