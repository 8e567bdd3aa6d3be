"""The sink that docs/own-sink.md builds, taken from the page itself."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own-sink.md"


def blocks():
    """The page's blocks of Python, by the file name in their first line."""
    found = re.findall(
        r"^```python\n# (\S+\.py)\n(.*?)^```$",
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    return dict(found)


def save(folder):
    """Put the page's files into a folder, as its reader does."""
    for name, code in blocks().items():
        (folder / name).write_text(code)


def _sink():
    """Run the sink's block.

    As in a program's main module, its class travels to other processes by value.
    """
    namespace = {"__name__": "page.json_file_sink.py"}
    exec(compile(blocks()["json_file_sink.py"], "json_file_sink.py", "exec"), namespace)
    return namespace["JsonFileSink"]


JsonFileSink = _sink()
