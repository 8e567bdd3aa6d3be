"""A real HDFS for demo and tests: Hadoop's mini cluster with one NameNode and one DataNode in a
Java process of its own, on loopback addresses only.

The caller's sequence::

    with EmbeddedHdfs() as server:              # fetches the jars once, formats a data folder,
                                                # waits until files can be written
        server.url                              # hdfs://127.0.0.1:port, for paths of Spark
        server.spark_settings()                 # what a session needs; it needs no further jars
        server.kill()                           # faults: kill, restart, freeze, thaw; the address
        server.restart()                        # and the content stay

Clients are the user of this process, who may do everything.

Not for production: there is one replica, and flushing is left to the operating system: what was
closed survives `kill`, but not a loss of power.
"""

from __future__ import annotations

from pathlib import Path

from onceforall.embedded.jars import hadoop_set, hadoop_version, jar_set, spark_jar
from onceforall.embedded.java_program import JavaProgramServer
from onceforall.embedded.network import HOST

# The mini cluster has the rest in its own jar.
_JARS_OF_SPARK = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
)
_SPARK_SETTINGS = {
    "spark.hadoop.dfs.replication": "1",
    # There is no other DataNode to put in the place of one that failed.
    "spark.hadoop.dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
    # A client asks whether its last block has arrived, and waits 400 ms when it hasn't: a small
    # file took 411 ms, and takes 18 ms.
    "spark.hadoop.dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
}


class EmbeddedHdfs(JavaProgramServer):
    """An HDFS of one NameNode and one DataNode in a child process.

    It ends with this process: at `stop`, at an ordinary end of the interpreter, and on Linux also
    when this process is killed (then a temporary data folder stays behind). Not safe for use by
    several threads at once; its clients may be many.
    """

    _noun = "HDFS"
    _folder_prefix = "onceforall-hdfs-"
    _log_name = "hdfs.log"
    _program = "MiniHdfs.java"
    _heap_mb = 384
    _jvm_options = ("-Dlog4j2.level=WARN",)
    _further_ports = 1

    def __init__(self, *, data_dir: Path | None = None, port: int = 0) -> None:
        """Nothing is started yet.

        Args:
            data_dir: where it keeps content and log; made when it is missing, and kept. A data
                folder of an earlier run is continued. None: a temporary folder, removed by `stop`.
            port: the NameNode's port of 127.0.0.1; 0 chooses a free one at the first start.

        Raises:
            OptionError: the port is impossible.
        """
        super().__init__(data_dir, port)

    @property
    def url(self) -> str:
        """``hdfs://127.0.0.1:port``, the beginning of every path on it; the same over `kill` and
        `restart`.

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        return f"hdfs://{HOST}:{self.port}"

    @property
    def web_url(self) -> str:
        """``http://127.0.0.1:port`` of the NameNode, for WebHDFS (below ``/webhdfs/v1``).

        Raises:
            EmbeddedServerError: the port is not chosen before the first start.
        """
        _ = self.port
        return f"http://{HOST}:{self._ports[0]}"

    @staticmethod
    def spark_settings() -> dict[str, str]:
        """Return the settings of a Spark session that uses it."""
        return dict(_SPARK_SETTINGS)

    def _find_class_path(self) -> list[Path]:
        carried = [spark_jar(name, "of the embedded HDFS") for name in _JARS_OF_SPARK]
        return [*carried, *jar_set(hadoop_set("hdfs", hadoop_version()))]

    @property
    def _shown_address(self) -> str:
        return self.url
