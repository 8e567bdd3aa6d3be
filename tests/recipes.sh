#!/usr/bin/env bash
# Runs the recipes of examples/cluster that can be tried on one machine, on a standalone cluster of two workers whose own Python has nothing.
# Usage: tests/recipes.sh. Needs the environment of `make setup`, and a way to the package index.
set -euo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
BIN=$ROOT/.venv/bin
work=$(mktemp -d)
pids=()
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  wait
  rm -rf "$work"
}
trap finish EXIT

"$BIN/python" -m hatchling build -t wheel -d "$work" > /dev/null
wheel=$(echo "$work"/*.whl)
pyspark=$("$BIN/python" -c 'import pyspark; print(pyspark.__version__)')
home=$("$BIN/python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
port=$("$BIN/python" -c 'from onceforall.embedded.network import free_port; print(free_port())')
export MASTER=spark://127.0.0.1:$port SPARK_LOCAL_IP=127.0.0.1

# No Python of ours on its path.
spark() { env -u PYTHONPATH -u VIRTUAL_ENV PATH=/usr/bin:/bin SPARK_HOME="$home" SPARK_SCALA_VERSION=2.13 SPARK_LOCAL_IP="$1" java -Xmx256m -cp "$home/jars/*" "${@:2}" > "$work/$1.log" 2>&1 & pids+=($!); }
spark 127.0.0.1 org.apache.spark.deploy.master.Master --host 127.0.0.1 --port "$port" --webui-port 0
for host in 127.0.0.2 127.0.0.3; do
  spark $host org.apache.spark.deploy.worker.Worker --host $host --webui-port 0 -c 2 -m 2g --work-dir "$work/work-$host" "$MASTER"
done

check() {
  "$BIN/python" - "$1" << 'PYTHON'
import sys
import onceforall as ofa
rows = ofa.read_files(f"{sys.argv[1]}/out").to_arrow().num_rows
assert rows > 0, "nothing was written"
print(f"{sys.argv[1]}: {rows} rows")
PYTHON
}
small=(--conf spark.executor.memory=512m --conf spark.cores.max=2 --conf spark.executor.cores=1 --conf spark.ui.enabled=false --conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1 --conf spark.log.level=ERROR)

mkdir "$work/shipping"
cp examples/cluster/* "$work/shipping"
cd "$work/shipping"
PACKAGES="$wheel pyspark==$pyspark" ./archive.sh "${small[@]}" job.py "$work/by-archive" --once
# What arrives between the starts is what the second one takes.
./archive.sh "${small[@]}" job.py "$work/by-archive" --once
check "$work/by-archive"

PYTHON=$work/shipping/environment-to-pack/bin/python ./installed.sh "${small[@]}" job.py "$work/by-install" --once
PYTHON=$work/shipping/environment-to-pack/bin/python ./installed.sh "${small[@]}" job.py "$work/by-install" --once
check "$work/by-install"

# An interpreter without onceforall: an error before any data moves, and the code that says so.
code=0
PYSPARK_PYTHON=/usr/bin/python3 PYSPARK_DRIVER_PYTHON=$work/shipping/environment-to-pack/bin/python \
  environment-to-pack/bin/spark-submit --master "$MASTER" "${small[@]}" job.py "$work/without" --once 2> "$work/without.log" || code=$?
[[ $code == 78 ]] || { cat "$work/without.log"; echo "exit code $code, not 78" >&2; exit 1; }
PYSPARK_PYTHON=$work/shipping/environment-to-pack/bin/python environment-to-pack/bin/onceforall cluster check --master "$MASTER" --executors 2 \
  --conf spark.executor.memory=512m --conf spark.executor.cores=1 --conf spark.driver.host=127.0.0.1 --conf spark.driver.bindAddress=127.0.0.1
echo "The recipes work."
