"""Spark for a test: on loopback alone, without a user interface, and with a JVM that is quick to
start."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
# Short-lived JVMs on few cores: most of their time went into optimizing code that then ran a few
# times.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def small_spark(master="local[2]", java_options="", settings=None):
    """Return a builder of a session, with more of Java's options and with Spark settings that
    win over ours."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config(
        "spark.driver.extraJavaOptions", f"{JAVA_OPTIONS} {java_options}"
    )
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder
