"""Places of checkpoints that aren't on the disk."""

import pyspark

from onceforall.commit_log.stores.objects import ObjectClient
from onceforall.embedded import s3a_jars
from onceforall.spark.remote_path import RemotePath
from support.web_hdfs import WebHdfs

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
HALF_THE_REQUESTS = (
    "org.apache.spark.sql.execution.streaming."
    f"{'' if pyspark.__version__.startswith('4.0.') else 'checkpointing.'}"
    "FileSystemBasedCheckpointFileManager"
)


def s3_client(server, bucket):
    return ObjectClient(
        f"s3a://{bucket}/checkpoints/ads",
        {
            "endpoint": server.endpoint,
            "region": server.region,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
            "virtual_hosted_style_request": "false",
        },
    )


def remote_place(request, kind, *, stateful=False):
    """A checkpoint's place as a test reads it, and the settings that Spark needs for it.

    Args:
        request: pytest's, for the fixtures of the servers.
        kind: ``s3`` or ``hdfs``.
        stateful: the query keeps state, for which the manager with half the requests is no good.
    """
    if kind == "s3":
        server, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket")
        return RemotePath(s3_client(server, bucket)), {
            "spark.jars": ",".join(map(str, s3a_jars())),
            **({} if stateful else {MANAGER: HALF_THE_REQUESTS}),
            **server.spark_settings(),
        }
    server, url = request.getfixturevalue("hdfs_server"), request.getfixturevalue("hdfs_folder")
    return RemotePath(WebHdfs(server.web_url, url)), dict(server.spark_settings())
