#!/usr/bin/env bash
# Runs the tests that need Spark on another version of pyspark: tests/compat.sh 4.0.0 [pytest arguments]
# Or on another Python: tests/compat.sh 4.2.0-py3.13, for which `python3.13`, or $PYTHON, is taken.
# Without arguments: the short tests of all that touches Spark, then (not for another Python) the kills at
# every step; what they came to is kept in build/compat, for `python -m evidence.versions`.
# tests/compat.sh 4.0.0 --again runs what failed there once more, one after the other: on a busy machine some
# wait in vain. The page says how many passed only so.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
shift
venv=.venv-compat-$version
results=build/compat
other_python=${version##*-py}
[ "$other_python" != "$version" ] || other_python=
if [ ! -e "$venv/.ready" ]; then
  python=${PYTHON:-python3}
  [ -z "$other_python" ] || python=${PYTHON:-python$other_python}
  "$python" -m venv "$venv"
  if [ -n "$other_python" ]; then
    touch "$venv/constraints.txt"  # what a user of that Python gets
  else
    .venv/bin/python -m pip freeze --exclude-editable | grep -iv '^pyspark==' > "$venv/constraints.txt"
  fi
  "$venv/bin/python" -m pip install --quiet --constraint "$venv/constraints.txt" "pyspark==${version%%-py*}" \
    pytest pytest-timeout pytest-cov pytest-xdist hypothesis hatchling editables \
    --editable '.[kafka,postgres,demo,operators,connect,s3,hdfs,kinesis]'
  touch "$venv/.ready"
fi
# Older versions of pyspark leave sockets to the garbage collector; that is not what is tested here.
test=("$venv/bin/python" -m pytest -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning)
if [ "${1:-}" = --again ]; then
  mapfile -t failed < <("$venv/bin/python" -m evidence.versions --failed "$version")
  [ ${#failed[@]} -gt 0 ] || exit 0
  exec "${test[@]}" -q --junitxml "$results/$version-again.xml" "${failed[@]}"
fi
if [ $# -gt 0 ]; then
  exec "${test[@]}" "$@"
fi
mkdir -p "$results"
"$venv/bin/python" -m evidence.versions --describe > "$results/$version.json"
code=0
"${test[@]}" -q -n 2 --dist loadfile -m "not long" --junitxml "$results/$version-short.xml" \
  tests/integration tests/crash tests/connect tests/operators tests/spark tests/sources/test_kinesis_spark.py || code=$?
[ -z "$other_python" ] || exit $code
"${test[@]}" -q -n 2 --dist loadscope -m long --junitxml "$results/$version-kills.xml" \
  tests/crash/test_kills.py tests/crash/test_lost.py tests/crash/test_stopping.py tests/crash/test_rolls.py tests/connect/test_kills.py tests/embedded/test_spark_jars.py || code=$?
exit $code
