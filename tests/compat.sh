#!/usr/bin/env bash
# Runs the tests that need Spark on another version of pyspark: tests/compat.sh 4.0.0 [pytest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
shift
venv=.venv-compat-$version
if [ ! -e "$venv/.ready" ]; then
  "${PYTHON:-python3}" -m venv "$venv"
  .venv/bin/python -m pip freeze --exclude-editable | grep -iv '^pyspark==' > "$venv/constraints.txt"
  "$venv/bin/python" -m pip install --quiet --constraint "$venv/constraints.txt" "pyspark==$version" \
    pytest pytest-timeout pytest-cov hypothesis hatchling editables --editable '.[kafka,demo,operators,connect]'
  touch "$venv/.ready"
fi
if [ $# -eq 0 ]; then
  set -- tests/integration tests/crash tests/connect tests/embedded/test_spark_jars.py tests/sources/test_kinesis_spark.py
fi
"$venv/bin/python" -c 'import pyspark; print("pyspark", pyspark.__version__)'
# Older versions of pyspark leave sockets to the garbage collector; that is not what is tested here.
exec "$venv/bin/python" -m pytest -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning "$@"
