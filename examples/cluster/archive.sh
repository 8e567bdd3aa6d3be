#!/bin/sh
# Ships an environment with the job: nothing is installed on the cluster but Spark and, at the same place as here, the Python that the
# environment was made with.
#   MASTER=spark://master:7077 ./archive.sh job.py /shared/numbers
# PACKAGES (onceforall) is what pip installs, such as 'onceforall[kafka,postgres]==0.2.0 pyspark==4.2.0'.
set -eu
: "${MASTER:?such as spark://master:7077, or yarn}"
PACKAGES=${PACKAGES:-onceforall pyspark}

if ! [ -e environment.tar.gz ]; then
  python3 -m venv environment-to-pack
  # shellcheck disable=SC2086  several packages
  environment-to-pack/bin/pip install --quiet $PACKAGES venv-pack
  environment-to-pack/bin/venv-pack --quiet --prefix environment-to-pack --output environment.tar.gz
fi

# The driver runs in it, too; executors unpack it into their work folder, under the name behind '#'.
PYSPARK_DRIVER_PYTHON=$PWD/environment-to-pack/bin/python PYSPARK_PYTHON=./environment/bin/python \
  exec environment-to-pack/bin/spark-submit --master "$MASTER" --archives environment.tar.gz#environment "$@"
