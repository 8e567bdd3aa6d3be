"""The pinned jars of S3A, used by the Spark that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# A process of its own: spark.jars is read when the JVM starts, and another test may have started
# one here.
USE_BY_SPARK = """
import json, sys
from py4j.protocol import Py4JJavaError
from onceforall.embedded import s3a_jars
from support.small_spark import small_spark

folder, settings = sys.argv[1], json.loads(sys.argv[2])
settings["spark.jars"] = ",".join(str(jar) for jar in s3a_jars())
spark = small_spark("local[1]", settings=settings).getOrCreate()
spark.range(100).write.parquet(folder + "/numbers")
said = {"sum": spark.read.parquet(folder + "/numbers").selectExpr("sum(id)").first()[0]}

jvm = spark._jvm
path = jvm.org.apache.hadoop.fs.Path(folder + "/claim")
files = path.getFileSystem(spark._jsc.hadoopConfiguration())

def create(content):
    builder = files.createFile(path).must("fs.option.create.conditional.overwrite", True)
    stream = builder.recursive().build()
    stream.write(bytearray(content, "ascii"))
    stream.close()

create("first")
try:
    create("second")
except Py4JJavaError as error:
    said["second"] = error.java_exception.getClass().getSimpleName()
stream = files.open(path)
said["content"] = bytes(stream.readAllBytes()).decode()
stream.close()
print(json.dumps(said))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.s3
def test_the_installed_spark_uses_s3_with_the_pinned_jars_and_creates_a_key_once(
    s3_server, s3_bucket, tmp_path
):
    command = [
        sys.executable,
        "-c",
        USE_BY_SPARK,
        f"s3a://{s3_bucket}/spark",
        json.dumps(s3_server.spark_settings()),
    ]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    spark = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert spark.returncode == 0, spark.stderr[-3000:]
    assert json.loads(spark.stdout.strip().splitlines()[-1]) == {
        "sum": 4950,
        "second": "RemoteFileChangedException",
        "content": "first",
    }
