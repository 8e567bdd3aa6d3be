"""Where the demo's checkpoints lie: in its folder, or on a store that it starts for itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onceforall.embedded import EmbeddedHdfs, EmbeddedS3, s3a_jars
from onceforall.spark.remote_path import AnyPath
from onceforall.spark.stores import Stores

KINDS = ("local", "s3", "hdfs")

_BUCKET = "onceforall-demo"


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints.

    Attributes:
        root: the folder.
        where: for messages.
        spark: the settings with which Spark reads and writes there.
        jars: what Spark needs for that.
    """

    root: AnyPath
    where: str
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    jars: Sequence[Path] = ()

    def of(self, writer: str, query: str) -> AnyPath:
        """Return the checkpoint of a writer's query."""
        return self.root / writer / "checkpoints" / query


@contextlib.contextmanager
def opened(kind: str, work_dir: Path) -> Iterator[Checkpoints]:
    """Start what is needed for a folder of checkpoints, and end it.

    Args:
        kind: one of ``KINDS``.
        work_dir: the demo's folder.

    Raises:
        MissingExtraError: the package of a server or a client is not installed.
        EmbeddedServerError: it doesn't start.
    """
    if kind == "s3":
        with EmbeddedS3() as s3:
            s3.create_bucket(_BUCKET)
            store = {
                "endpoint": s3.endpoint,
                "region": s3.region,
                "access_key_id": s3.access_key,
                "secret_access_key": s3.secret_key,
                "virtual_hosted_style_request": "false",
            }
            root = Stores(None, store).checkpoint(f"s3a://{_BUCKET}/demo")
            where = f"on an S3 server (moto) at {s3.endpoint}"
            yield Checkpoints(root, where, s3.spark_settings(), s3a_jars())
    elif kind == "hdfs":
        with EmbeddedHdfs(data_dir=work_dir / "hdfs") as hdfs:
            root = Stores(None).checkpoint(f"{hdfs.url}/demo")
            yield Checkpoints(root, f"on HDFS at {hdfs.url}", hdfs.spark_settings())
    else:
        yield Checkpoints(work_dir, f"in {work_dir}")
