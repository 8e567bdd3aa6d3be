"""The documentation of the file sink says what the code does."""

import inspect
import runpy
from pathlib import Path

import pytest

from onceforall.sinks.files import FileSink, read_files
from onceforall.sinks.files.task.formats import _OPTIONS, COMPRESSIONS

DOCS = Path(__file__).resolve().parents[3] / "docs"
TEXT = (DOCS / "files.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", inspect.signature(FileSink).parameters)
def test_every_argument_has_a_row_with_its_default(name):
    (row,) = [line for line in TEXT.splitlines() if line.startswith(f"| `{name}` |")]
    default = inspect.signature(FileSink).parameters[name].default
    if default is inspect.Parameter.empty:
        assert "| required |" in row
    elif isinstance(default, str):
        assert f'| `"{default}"` |' in row
    elif isinstance(default, int):
        assert f"| `{default}`" in row


def test_every_format_its_compressions_and_options_are_named():
    for form, codecs in COMPRESSIONS.items():
        assert f'"{form}"' in TEXT
        assert all(codec in TEXT for codec in codecs)
        assert all(f"`{option}`" in TEXT for option in _OPTIONS[form])


def test_every_argument_of_reading_is_named():
    for name in list(inspect.signature(read_files).parameters)[1:]:
        assert f"{name}=" in TEXT, name


def test_the_table_of_types_is_drawn_from_what_the_property_test_asserts():
    drawing = runpy.run_path(str(DOCS / "draw_files_types.py"))["drawing"]
    assert drawing(TEXT) == TEXT, "run `make docs`"
    assert "| TIMESTAMP_NTZ | kept | refused at start" in TEXT
    assert drawing(TEXT.replace("| kept |", "| lost |")) == TEXT
