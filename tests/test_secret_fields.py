"""No ``repr`` shows a secret: a field of a dataclass that may hold one isn't in it."""

import ast

import pytest

from mutants.catalogue import SOURCE
from onceforall.driver.settings import Settings

SECRET = {"secrets", "pad", "password", "credential", "account_key", "sas_token"}
MAY_BE = {("store", "Mapping[str, str]"), ("database", "str"), ("spark", "Mapping[str, str]")}
"""Names that are secrets where they have this type: settings of a store, and a URL."""
NONE = {"sinks/postgres/driver/batches.py: Batch.database"}
"""That one is what a database is known by."""


def fields():
    """Of every dataclass: where it stands, the field's name, its type, and whether repr has it."""
    for path in sorted(SOURCE.rglob("*.py")):
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(each, ast.ClassDef) and is_shown(each):
                for field in each.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        hidden = field.value is not None and "repr=False" in ast.unparse(
                            field.value
                        )
                        place = f"{path.relative_to(SOURCE)}: {each.name}.{field.target.id}"
                        yield place, field.target.id, ast.unparse(field.annotation), not hidden


def is_shown(each):
    said = [ast.unparse(decorator) for decorator in each.decorator_list]
    return any(text.startswith("dataclass") and "repr=False" not in text for text in said)


FOUND = [
    (place, shown)
    for place, name, kind, shown in fields()
    if (name in SECRET or (name, kind) in MAY_BE) and place not in NONE
]


def test_the_fields_are_found():
    assert len(FOUND) >= 10


@pytest.mark.parametrize(("place", "shown"), FOUND, ids=[place for place, _ in FOUND])
def test_a_field_that_may_hold_a_secret_is_not_shown(place, shown):
    assert not shown


def test_settings_do_not_show_how_the_store_is_reached():
    assert "hush" not in repr(Settings(store={"secret_access_key": "hush"}))
