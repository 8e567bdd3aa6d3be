"""What a Python worker loads, and the daemon that loads it beforehand."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

import onceforall
from onceforall import worker_daemon
from onceforall.task.write_task import hash_sum, text_batch
from onceforall.worker_daemon import installed_first


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_task_takes_digests_and_answers_without_pandas(tmp_path):
    """To import it took a worker as long as everything else that it loads."""
    file = tmp_path / "rows.arrow"
    with pa.ipc.new_stream(file, pa.schema([("h", pa.int64())])) as writer:
        writer.write(pa.RecordBatch.from_pydict({"h": pa.array([-1, 5], pa.int64())}))
    found = run(
        "-c",
        """
import json, sys
import pyarrow as pa
from onceforall.task.write_task import hash_sum, text_batch
(batch,) = pa.ipc.open_stream(sys.argv[1])
summed = hash_sum(batch.column(0))
made = text_batch("result", ["{}", "ü"])
print(json.dumps({"pandas": "pandas" in sys.modules, "sum": summed, "rows": made.num_rows}))
""",
        file,
    )
    assert found == {"pandas": False, "sum": 4, "rows": 2}


@pytest.mark.parametrize("texts", [[], ["one"], ["", "ü€", "", "x" * 100_000]])
def test_a_batch_of_texts_is_what_arrow_makes_of_them(texts):
    made = text_batch("result", texts)
    made.validate(full=True)
    assert made.equals(pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], ["result"]))


def test_a_sum_of_hashes_is_that_of_the_slice_alone():
    hashes = pa.array([2**62, 7, -1, 2**62], pa.int64())
    assert hash_sum(hashes) == (2**62 + 7 - 1 + 2**62) % 2**64
    assert hash_sum(hashes.slice(1, 2)) == 6
    assert hash_sum(hashes.slice(4)) == 0


def test_the_package_imports_nothing_of_the_driver_before_it_is_asked_for():
    found = run(
        "-c",
        "import json, sys, onceforall; print(json.dumps([name for name in sys.modules if "
        "name.startswith('onceforall.')]))",
    )
    assert sorted(found) == ["onceforall._version", "onceforall.errors"]


def test_every_public_name_is_there_and_listed():
    assert {name: hasattr(onceforall, name) for name in onceforall.__all__} == dict.fromkeys(
        onceforall.__all__, True
    )
    assert set(onceforall.__all__) <= set(dir(onceforall))
    with pytest.raises(AttributeError, match="no attribute 'KafkaSync'"):
        _ = onceforall.KafkaSync


@pytest.fixture
def spark_home(tmp_path):
    """A folder with Spark's archives, and one with an installed PySpark."""
    archives, installed = tmp_path / "lib", tmp_path / "site-packages"
    (installed / "pyspark").mkdir(parents=True)
    (installed / "pyspark" / "version.py").write_text('__version__ = "4.2.0"\n')
    archives.mkdir()
    with zipfile.ZipFile(archives / "pyspark.zip", "w") as archive:
        archive.writestr("pyspark/version.py", '__version__ = "4.2.0"\n')
    return archives, installed


def path_of(archives, installed):
    return [
        "/home",
        f"{archives}/pyspark.zip",
        f"{archives}/py4j-0.10.9.9-src.zip",
        "/other.zip",
        f"{installed}",
    ]


def test_an_installed_pyspark_of_the_same_version_comes_before_the_archives(spark_home):
    archives, installed = spark_home
    assert installed_first(path_of(archives, installed)) == [
        "/home",
        "/other.zip",
        f"{installed}",
        f"{archives}/pyspark.zip",
        f"{archives}/py4j-0.10.9.9-src.zip",
    ]


@pytest.mark.parametrize(
    "how",
    [
        "another version",
        "not installed",
        "no archive",
        "a broken archive",
        "an archive of something else",
    ],
)
def test_the_path_stays_as_it_is_where_nothing_is_known_to_be_the_same(spark_home, how):
    archives, installed = spark_home
    path = path_of(archives, installed)
    packed = archives / "pyspark.zip"
    if how == "another version":
        (installed / "pyspark" / "version.py").write_text('__version__ = "4.1.0"\n')
    elif how == "not installed":
        (installed / "pyspark" / "version.py").unlink()
    elif how == "no archive":
        packed.unlink()
    elif how == "a broken archive":
        packed.write_bytes(b"PK")
    else:
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("another.py", "")
    assert installed_first(path) == path


def test_what_is_not_there_is_left_to_the_workers(monkeypatch):
    monkeypatch.setattr(worker_daemon, "_NEEDED", ("nothing_of_that_name", "json"))
    worker_daemon.load()


def test_a_query_runs_on_workers_that_were_forked_with_everything_loaded_and_without_threads(
    tmp_path,
):
    found = run(Path(__file__).parent / "support" / "worker_daemon_job.py", tmp_path)
    assert found["rows"] == 1000
    for worker in found["workers"]:
        assert "pyspark.zip" not in worker["pyspark"]
        assert worker["loaded"] == {
            "onceforall.task.write_task": True,
            "onceforall.sinks.kafka": True,
            "confluent_kafka": True,
        }
        assert worker["threads of the daemon"] == 1
        assert "onceforall.worker_daemon" in worker["daemon"]
    assert found["workers"]
