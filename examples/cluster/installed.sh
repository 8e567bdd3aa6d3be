#!/bin/sh
# For a cluster on whose machines onceforall is installed, for the same Python: on each of them
#   /opt/onceforall/bin/pip install 'onceforall[kafka]==0.2.0' pyspark==4.2.0
# and here
#   MASTER=spark://master:7077 PYTHON=/opt/onceforall/bin/python ./installed.sh job.py /shared/numbers
# Before the first start: onceforall cluster check --master "$MASTER", with the same PYSPARK_PYTHON.
set -eu
: "${MASTER:?such as spark://master:7077, or yarn}"
: "${PYTHON:?the interpreter with onceforall, at the same place on each machine}"
PYSPARK_DRIVER_PYTHON=$PYTHON PYSPARK_PYTHON=$PYTHON exec "$(dirname "$PYTHON")/spark-submit" --master "$MASTER" "$@"
