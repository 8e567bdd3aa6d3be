#!/bin/sh
# UNTESTED: written by the documentation of Spark on YARN, never run. The driver runs on the cluster, in the environment that is shipped
# (archive.sh makes it), and YARN starts it again.
set -eu
exec spark-submit --master yarn --deploy-mode cluster \
  --archives environment.tar.gz#environment \
  --conf spark.yarn.appMasterEnv.PYSPARK_PYTHON=./environment/bin/python \
  --conf spark.yarn.maxAppAttempts=10 \
  --conf spark.yarn.am.attemptFailuresValidityInterval=1h \
  "$@"
