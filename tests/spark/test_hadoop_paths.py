"""What a location means: as Hadoop, to which Spark hands it, takes it."""

import os
import posixpath
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onceforall.embedded.jars import hadoop_version
from onceforall.errors import OptionError, UnsupportedQueryError
from onceforall.sinks.files.paths import local_folder
from onceforall.spark import hadoop_paths

PIECES = [
    "/",
    "//",
    ":",
    "file:",
    "hdfs:",
    "a",
    "é",
    "%3D",
    "%",
    "#",
    "?",
    " ",
    ".",
    "..",
    "\\",
    "*",
    "[x]",
    "{y}",
    "~",
    "+",
    "\n",
    "\t",
    "=",
    "@h",
    "1",
]
LOCATIONS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/a%3Db", "/a%3Db"),
        ("file:/a%3Db", "/a%3Db"),
        ("file:///a%20b", "/a%20b"),
        ("file:/a#b?c", "/a#b?c"),
        ("/a/../b//c/", "/b/c"),
        ("/a:b", "/a:b"),
        ("file:/../a", "/a"),
        ("file:a:/b", "/a:/b"),
    ],
)
def test_a_location_is_taken_literally(location, path):
    assert str(hadoop_paths.local_folder(location)) == path


@pytest.mark.parametrize(
    ("location", "error", "says"),
    [
        ("", OptionError, "empty"),
        ("/a\0b", OptionError, "null"),
        ("file:a", OptionError, "file:/"),
        ("a:b", OptionError, "a:/"),
        ("my path:b/c", OptionError, "file:/"),
        (":/a", OptionError, "scheme"),
        ("file://host/a", OptionError, "host"),
        ("//host/a", OptionError, "host"),
        ("FILE:/a", UnsupportedQueryError, "FILE"),
        ("hdfs://h/a", UnsupportedQueryError, "hdfs"),
        ("s3a://bucket/a", UnsupportedQueryError, "s3a"),
    ],
)
def test_what_is_no_local_folder_is_refused(location, error, says):
    with pytest.raises(error, match=says):
        hadoop_paths.local_folder(location)


def test_a_sinks_folder_may_name_this_host(tmp_path):
    assert local_folder(f"file://localhost{tmp_path}/a%20b") == tmp_path / "a%20b"
    with pytest.raises(OptionError, match="localhost"):
        hadoop_paths.local_folder(f"file://localhost{tmp_path}")


@pytest.mark.spark
def test_every_location_is_what_hadoop_makes_of_it(spark):
    """Hadoop decides; where it throws, we refuse."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import IllegalArgumentException

    make = spark.sparkContext._jvm.org.apache.hadoop.fs.Path
    seen = {"read": 0, "refused": 0}

    @settings(max_examples=400)
    @given(LOCATIONS)
    @example("file:/a%3Db/c#d?e")
    @example("//a")
    @example("file:a:b")
    @example("file:1:b")
    @example("file://h/a:")
    @example("a:b:/c")
    @example("///a")
    @example("file://")
    @example("/a/../../b")
    def compare(location):
        try:
            uri = make(location).toUri()
        except (IllegalArgumentException, Py4JJavaError) as error:
            seen["refused"] += 1
            if hadoop_version() < "3.5" and "Relative path in absolute URI" in str(error):
                return  # Hadoop 3.5 takes file:a:b, and so do we; Spark itself refuses it then
            with pytest.raises((OptionError, UnsupportedQueryError)):
                hadoop_paths.local_folder(location)
            return
        if uri.getScheme() is None and ":" in location.partition("/")[0]:
            # Hadoop means a scheme and doesn't quote it, so that Java reads '#:' as a fragment.
            with pytest.raises(OptionError):
                hadoop_paths.split(location)
            return
        seen["read"] += 1
        found = hadoop_paths.split(location)
        theirs = uri.getPath()
        assert (found.scheme, found.authority) == (uri.getScheme(), uri.getAuthority())
        # Java keeps .. before the first folder, which the kernel takes for the root.
        assert posixpath.normpath(found.path) == posixpath.normpath(theirs)
        assert posixpath.isabs(found.path) == posixpath.isabs(theirs)

    compare()
    assert min(seen.values()) > 40


@pytest.mark.spark
def test_a_relative_checkpoint_is_one_of_the_jvms_folder(spark, tmp_path, monkeypatch):
    """Python may have changed its own since."""
    theirs = spark.sparkContext._jvm.java.lang.System.getProperty("user.dir")
    monkeypatch.chdir(tmp_path)
    assert (
        str(hadoop_paths.checkpoint_folder(spark, "checkpoints/a%3D"))
        == f"{theirs}/checkpoints/a%3D"
    )


@pytest.mark.spark
@pytest.mark.long
def test_a_folder_that_the_jvm_cannot_name_is_refused(tmp_path):
    """Its locale is POSIX: Spark would make a folder of question marks, and Python reads
    another."""
    code = (
        "from support.small_spark import small_spark\n"
        "from onceforall.spark.hadoop_paths import checkpoint_folder\n"
        "from onceforall.errors import OptionError\n"
        "spark = small_spark().getOrCreate()\n"
        f"print('ASCII', checkpoint_folder(spark, {str(tmp_path)!r}))\n"
        "try:\n"
        f"    checkpoint_folder(spark, {str(tmp_path / 'é')!r})\n"
        "except OptionError as error:\n"
        "    print('REFUSED', ascii(str(error)))\n"
    )
    environment = {
        **os.environ,
        "LC_ALL": "C",
        "PYTHONUTF8": "1",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert f"ASCII {tmp_path}" in ended.stdout
    assert "REFUSED" in ended.stdout
    assert "LC_ALL=C.UTF-8" in ended.stdout
