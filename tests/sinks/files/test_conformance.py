"""The conformance suite, for each format: kill -9 between any two calls and within them, in real
processes."""

from __future__ import annotations

import contextlib
import shutil

import pyarrow as pa
import pytest

from onceforall import FileSink, read_files
from onceforall.testing.conformance import SinkUnderTest, check_sink


def under_test(folder, form, **more):
    def rows(numbers):
        return pa.RecordBatch.from_pydict(
            {
                "number": pa.array(numbers, pa.int64()),
                "text": pa.array([f"row {number}" for number in numbers]),
                "part": pa.array([number % 2 for number in numbers], pa.int32()),
            }
        )

    def read():
        from onceforall.errors import ConfigurationError

        try:
            return read_files(folder).to_arrow().to_pydict().get("number", [])
        except ConfigurationError:
            return []  # nobody has made the folder yet

    def leftovers():
        staging = folder / "_onceforall" / "staging"
        left = [str(path) for path in staging.iterdir()] if staging.exists() else []
        known = set(read_files(folder).paths) if staging.exists() else set()
        return left + [
            str(path)
            for path in folder.rglob("part-*")
            if str(path) not in known and staging not in path.parents
        ]

    def lose(committables):
        for committable in committables:
            for file in (folder / "_onceforall" / "staging" / committable["name"]).iterdir():
                file.unlink()

    @contextlib.contextmanager
    def another_target():
        away = folder.rename(f"{folder}-away")
        yield
        shutil.rmtree(folder)
        away.rename(folder)

    def make_sink():
        return FileSink(folder, format=form, partition_by=["part"])

    return SinkUnderTest(
        make_sink=make_sink,
        rows=rows,
        read=read,
        leftovers=leftovers,
        lose=lose,
        another_target=another_target,
        **more,
    )


def check(folder, form, **more):
    sink = under_test(folder, form, **more)
    report = check_sink(sink)
    assert len(report.passed) > 20
    assert set(report.skipped) <= {"no_secret_is_shown"}


@pytest.mark.long
def test_the_file_sink_keeps_the_contract(tmp_path):
    check(tmp_path / "out", "parquet", crash_points=1)


@pytest.mark.long
@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv"])
def test_the_file_sink_keeps_the_contract_in_each_format_killed_at_more_lines(tmp_path, form):
    check(tmp_path / "out", form)
