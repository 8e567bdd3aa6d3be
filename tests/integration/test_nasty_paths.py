"""Queries whose folders have names that URLs, globs and shells take for something else."""

import pytest

import onceforall as ofa
from onceforall.errors import CheckpointMismatchError
from onceforall.sinks.files import FileSink
from onceforall.spark import checkpoint as spark_checkpoint

pytestmark = pytest.mark.spark

NAMES = [
    "day%3D1",
    "a#b",
    "a?b",
    "a b",
    "a+b&c=d;e",
    "é",
    "a:b",
    "[x]",
    "{y,z}",
    "st*r",
    "%",
    "%%20",
    "~",
    "a\\b",
    "'\"`$x",
]


def streamed(source, checkpoint, sink):
    return ofa.write_stream(source.stream()).option("checkpointLocation", checkpoint).to(sink)


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param("", marks=pytest.mark.long),
        pytest.param("file:", marks=pytest.mark.long),
        pytest.param("file://", marks=pytest.mark.long),
    ],
)
def test_the_log_lies_in_sparks_own_checkpoint_and_nowhere_else(
    spark, source, run, tmp_path, prefix
):
    """Also where a neighbour has the name that one would get by unquoting."""
    source.add({"key": "a", "value": "1", "at": None})
    root = tmp_path / "here"
    (root / "day=1").mkdir(parents=True)
    for name in NAMES:
        run(streamed(source, f"{prefix}{root}/{name}", FileSink(f"{prefix}{tmp_path}/out/{name}")))
        checkpoint = root / name
        assert (checkpoint / "metadata").is_file()
        assert len(list((checkpoint / "onceforall").iterdir())) > 1, name
        files = ofa.read_files(f"{prefix}{tmp_path}/out/{name}")
        assert files.rows == 1
        assert files.to_spark(spark).count() == 1, name
        assert files.to_arrow().num_rows == 1
    assert {path.name for path in root.iterdir()} <= {*NAMES, "day=1"}
    assert list((root / "day=1").iterdir()) == []


def test_a_restart_goes_on(source, run, tmp_path):
    location = f"file:{tmp_path}/day%3D1#?"
    for value in ("1", "2"):
        source.add({"key": "a", "value": value, "at": None})
        run(streamed(source, location, FileSink(tmp_path / "out")))
    assert sorted(ofa.read_files(tmp_path / "out").to_arrow().column("value").to_pylist()) == [
        "1",
        "2",
    ]


def test_a_folder_that_is_not_the_querys_checkpoint_is_refused(tmp_path):
    """Whatever a JVM makes of a name: where Spark's own id is not, no log is written."""
    with pytest.raises(CheckpointMismatchError, match="no query's checkpoint"):
        spark_checkpoint.check_is_of_query(tmp_path, "6f1c")
    (tmp_path / "metadata").write_text('{"id":"abcd"}')
    with pytest.raises(CheckpointMismatchError, match="query abcd"):
        spark_checkpoint.check_is_of_query(tmp_path, "6f1c")
    spark_checkpoint.check_is_of_query(tmp_path, "abcd")
