"""Which files of the package a batch enters: `python -m support.batch_path SERVERS FOLDER` runs a
query from a topic to a topic, and prints them.

The environment variable ``BATCH_PATH`` names a folder. Driver and workers note each file there when
a function of it is called for the first time while a file ``on`` is there; see `begin`, which a
``sitecustomize`` has to call.
"""

import json
import os
import sys
import threading
from pathlib import Path

_IS_FUNCTION = 0x2
"""CO_NEWLOCALS: what a module or a class body lacks, which runs at import."""


def begin():
    """Note what this process calls, in all its threads."""
    folder = Path(os.environ["BATCH_PATH"])
    on, notes = str(folder / "on"), folder / f"{os.getpid()}.txt"
    seen = set()

    def note(frame, event, _):
        if event != "call":
            return
        code = frame.f_code
        at = code.co_filename.rfind("/onceforall/")
        if at < 0 or not code.co_flags & _IS_FUNCTION or code.co_filename in seen:
            return
        if not os.path.exists(on):  # noqa: PTH110 - a Path would call functions
            return
        seen.add(code.co_filename)
        with notes.open("a") as out:
            out.write(code.co_filename[at + len("/onceforall/") :] + "\n")

    threading.setprofile(note)
    sys.setprofile(note)


def _run(servers, folder):
    from confluent_kafka import Producer

    import onceforall as ofa
    from onceforall.embedded import spark_kafka_jars
    from support.small_spark import small_spark

    jars = ",".join(map(str, spark_kafka_jars()))
    events = (
        small_spark(settings={"spark.jars": jars})
        .getOrCreate()
        .readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .load()
        .select("key", "value")
    )
    query = (
        ofa.write_stream(events)
        .to(ofa.KafkaSink({"bootstrap.servers": servers}, topic="out"))
        .queryName("path")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    producer = Producer({"bootstrap.servers": servers})
    on = Path(os.environ["BATCH_PATH"]) / "on"
    for batch in range(6):
        # The first ones make what later ones use.
        if batch == 3:
            on.touch()
        for number in range(100):
            producer.produce("in", key=str(number), value=b"%d" % batch)
        producer.flush()
        query.processAllAvailable()
    on.unlink()
    query.stop()
    notes = Path(os.environ["BATCH_PATH"]).glob("*.txt")
    entered = {line for each in notes for line in each.read_text().splitlines()}
    sys.stdout.write(json.dumps(sorted(entered)) + "\n")


if __name__ == "__main__":
    _run(sys.argv[1], Path(sys.argv[2]))
