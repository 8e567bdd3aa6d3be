"""A task or a driver in a process of its own, to be killed: ``python worker.py FOLDER STEP``.

``prepare`` writes two tasks' rows and leaves their committables in ``FOLDER.json``, or in the option
``kept``; ``commit`` and ``abort`` take them from there; ``batches`` commits one small batch after the other until it is
killed.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from onceforall.protocol.names import parse_name
from onceforall.sink import StartInfo, Sweep
from onceforall.sinks.files import FileSink
from onceforall.sinks.files.driver import manifest_writing
from sinks.files.building import QUERY, commit, numbers, permit, prepared


def main():
    folder, step, *rest = sys.argv[1:]
    options = json.loads(rest[0]) if rest else {}
    kept_at = options.pop("kept", None)
    sink = FileSink(folder, **{"partition_by": ["p"], **options})
    sink.check(StartInfo(QUERY, "out"))
    kept = Path(kept_at or f"{folder}.json")
    if step == "prepare":
        rows = [numbers(4, 4 * i, p=["a", "b", "a/..", None]) for i in range(2)]
        kept.write_text(
            json.dumps(
                sink.confirm([prepared(sink, each, partition=i) for i, each in enumerate(rows)])
            )
        )
    elif step == "commit":
        decided = json.loads(kept.read_text())
        assert (
            len(sink.commit(permit(parse_name(decided[0]["name"]).batch), decided).completed) == 2
        )
    elif step == "abort":
        sink.abort(json.loads(kept.read_text()))
        sink.recover(Sweep(QUERY, "out", 9))
    elif step == "batches":
        manifest_writing.MERGE_AFTER = 5
        for batch in range(10_000):
            commit(
                sink,
                batch,
                numbers(3, 6 * batch, p=["a", "b", "a"]),
                numbers(3, 6 * batch + 3, p=["a", "b", "a"]),
            )


if __name__ == "__main__":
    main()
