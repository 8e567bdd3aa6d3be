"""Names of columns and of fields: every reader finds a column under the name that it was written
with, or it is refused at start."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from onceforall.errors import SchemaError
from onceforall.sinks.files import FileSink
from sinks.files.building import checked, commit
from sinks.files.test_types import readers

pytestmark = pytest.mark.spark

NAMES = [
    "", " ", " a ", ".", "a.b", "a`b", "``", '"', 'a"b', "a'b", "a,b", "a;b", "a{b}", "a(b)", "a=b", "a:b", "a<b>", "a/b", "a\\b", "a%20b", "%", "#a", "*", "?",
    "a\nb", "a\rb", "\n", "\r\n", "a\tb", "\t", "\x01", "\x1f", "\x7f", "\x85", "\u2028", "\ufeff", "\ufeffa", "é", "e\u0301", "😀", "ß", "İ", "null", "NULL", "true", "1", "-",
    "element", "key", "value", "list", "key_value", "array", "_corrupt_record", "_metadata", "_c0", "__index_level_0__", "file_path", "x" * 2000,
    "__filename", "__fragment_index", "__batch_index", "__last_in_fragment",
]  # fmt: skip
LINE_ENDS = {name for name in NAMES if "\n" in name or "\r" in name}
OF_PYARROW = {"__filename", "__fragment_index", "__batch_index", "__last_in_fragment"}
REFUSED = {
    ("parquet", "column"): {"", *OF_PYARROW},
    ("parquet", "field"): set(),
    ("orc", "column"): {"", "a`b", "``", *OF_PYARROW},
    ("orc", "field"): {"", "a`b", "``"},
    ("json", "column"): {"", "_corrupt_record", *OF_PYARROW},
    ("json", "field"): set(),
    ("csv", "column"): {"", "_corrupt_record", *LINE_ENDS, *OF_PYARROW},
}


@pytest.mark.parametrize(("form", "place"), REFUSED)
@pytest.mark.sample(3)
def test_every_name_is_found_by_every_reader_or_refused_at_start(spark, tmp_path, form, place):
    refused, columns = set(), {"n": pa.array([1, 2, 3], pa.int64())}
    for name in NAMES:
        rows = pa.RecordBatch.from_pydict({"n": columns["n"], **column(name, place)})
        try:
            FileSink(tmp_path, format=form).columns(from_arrow_schema(rows.schema))
        except SchemaError:
            refused.add(name)
    assert refused == REFUSED[form, place]
    # Side by side where they aren't each other's but for case, which is refused; fields lie in a
    # column each.
    taken, options = {}, {"header": True, "delimiter": ","} if form == "csv" else {}
    for i, name in enumerate(name for name in NAMES if name not in refused):
        taken.setdefault(name.lower() if place == "column" else "", []).append((i, name))
    for turn in range(max(map(len, taken.values())) if place == "column" else 1):
        some = (
            [each[turn] for each in taken.values() if len(each) > turn]
            if place == "column"
            else taken[""]
        )
        made = dict(columns)
        for i, name in some:
            made |= column(name, place, f"s{i}")
        rows = pa.RecordBatch.from_pydict(made)
        folder = tmp_path / str(turn)
        commit(checked(folder, format=form, options=options), 0, rows)
        for reader, _, read in readers(spark, folder, form, rows.schema, options):
            found = read().sort_by("n").to_pydict()
            wrong = [name for name, values in rows.to_pydict().items() if found.get(name) != values]
            assert not wrong, f"{reader} of {form}: {wrong}"


def column(name, place, whole="s"):
    """Return a column of this name, or one with a field of this name."""
    if place == "column":
        return {name: pa.array([f"a{name}", "b", None])}
    return {
        whole: pa.array(
            [{name: f"a{name}"}, {name: "b"}, {name: None}], pa.struct([(name, pa.string())])
        )
    }
