"""An S3 server for demo and tests: moto's, in a process of its own, on a loopback address only.

The caller's sequence::

    with EmbeddedS3() as server:                # starts moto, and waits until it answers
        server.create_bucket("events")
        boto3.client("s3", **server.client_arguments)   # any client, path style
        server.spark_settings()                 # what Spark's S3A client needs; see `s3a_jars`

The objects are in the memory of that process: they outlive the programs that use it, and are gone
after `stop`, `kill` and `restart`.

Not for production, and no proof about S3 itself: moto checks no signature and knows one region. A
conditional create has one winner, as in S3, because one request at a time is served.
"""

from __future__ import annotations

import re

from onceforall.common import arguments
from onceforall.embedded.moto import MotoServer
from onceforall.errors import EmbeddedServerError, OptionError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_CREDENTIALS = "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"


def s3a_settings(
    endpoint: str, access_key: str, secret_key: str, region: str, bucket: str | None = None
) -> dict[str, str]:
    """Return the Spark settings with which its S3A client uses a server on loopback.

    Args:
        endpoint: the server's URL.
        access_key: who asks.
        secret_key: the secret of it.
        region: the server's region.
        bucket: the settings are for this bucket only; None: for all.
    """
    prefix = "spark.hadoop.fs.s3a." + (f"bucket.{bucket}." if bucket is not None else "")
    settings = {
        "endpoint": endpoint,
        "endpoint.region": region,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "access.key": access_key,
        "secret.key": secret_key,
        "aws.credentials.provider": _CREDENTIALS,
    }
    return {prefix + name: value for name, value in settings.items()}


class EmbeddedS3(MotoServer):
    """An S3 server in a child process, with its objects in memory.

    It ends with this process: at `stop`, at an ordinary end of the interpreter, and on Linux also
    when this process is killed. Not safe for use by several threads at once; its clients may be
    many.

    Attributes:
        access_key: what clients give as access key; any is taken.
        secret_key: the secret of it.
        region: the region.
    """

    _noun = "S3 server"
    _folder_prefix = "onceforall-s3-"
    _log_name = "s3.log"
    _program = "onceforall.embedded.s3_program"
    _service = "s3"

    def __init__(self, *, port: int = 0) -> None:
        """Nothing is started yet.

        Args:
            port: the port of 127.0.0.1; 0 chooses a free one at the first start.

        Raises:
            OptionError: the port is impossible.
        """
        super().__init__(None, port)

    def spark_settings(self, bucket: str | None = None) -> dict[str, str]:
        """Return the settings of a Spark session (``spark.hadoop.fs.s3a.*``) that uses this server
        for ``s3a://``. Its jars are those of `s3a_jars`.

        Args:
            bucket: the settings are for this bucket only; None: for all.

        Raises:
            OptionError: that is no name of a bucket.
            EmbeddedServerError: the port is not chosen before the first start.
        """
        if bucket is not None:
            _check_bucket(bucket)
        return s3a_settings(self.endpoint, self.access_key, self.secret_key, self.region, bucket)

    def create_bucket(self, name: str) -> None:
        """Create a bucket; do nothing when it exists.

        Raises:
            OptionError: that is no name of a bucket.
            EmbeddedServerError: the server does not run, or refused.
        """
        _check_bucket(name)
        self._running_process()
        try:
            status, said = self._ask("PUT", f"/{name}")
        except OSError as error:
            raise EmbeddedServerError(
                f"The S3 server did not answer when bucket {name} was to be created: {error}. "
                "Look whether it is frozen, and try again."
            ) from error
        if status != 200:
            raise EmbeddedServerError(
                f"The bucket {name} could not be created: the S3 server answered {status}. Choose "
                f"another name. It said:\n{said}"
            )

    def _says_ready(self, status: int, said: str) -> bool:
        return status == 200 and "ListAllMyBucketsResult" in said


def _check_bucket(name: object) -> None:
    if not isinstance(name, str) or not _BUCKET.fullmatch(name):
        raise OptionError(
            f"{arguments.shown(name)} is no name of a bucket. Use 3 to 63 lower-case letters, "
            "digits, dots and dashes."
        )
