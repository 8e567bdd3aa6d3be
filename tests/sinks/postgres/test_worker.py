"""What a Python worker loads of the sink: the task's side, in each mode, and nothing of the
driver's."""

import pickle
import subprocess
import sys

import pytest

from support.postgres_sink import KEYED, Query, rows

pytestmark = pytest.mark.postgres

WORKER = """
import pickle, sys
import onceforall.task.write_task
sink, attempt, rows = pickle.load(sys.stdin.buffer)
arrived = set(sys.modules)
transaction = sink.begin_transaction(attempt)
sink.invoke(transaction, rows)
committable = sink.pre_commit(transaction)
pickle.dump((committable, arrived, set(sys.modules)), sys.stdout.buffer)
"""


def written_by_a_worker(query, part):
    """The committable of a task in a process of its own; and of the sink's package, what was
    loaded there when the sink had arrived, and in the end."""
    given = pickle.dumps((query.sink, query.attempt(), part))
    done = subprocess.run(
        [sys.executable, "-c", WORKER], input=given, capture_output=True, timeout=60, check=True
    )
    committable, *loaded = pickle.loads(done.stdout)
    package = "onceforall.sinks.postgres."
    return committable, *(
        {name.removeprefix(package) for name in modules if name.startswith(package)}
        for modules in loaded
    )


@pytest.mark.parametrize("mode", ["staged", "prepared", "upsert"])
def test_a_worker_that_writes_loads_nothing_of_the_drivers_side(database, mode):
    query = Query(database, KEYED, mode=mode, key="id")
    committable, arrived, loaded = written_by_a_worker(query, rows(1, 2))
    assert "sink" in arrived
    assert not {name for name in arrived if name.startswith(("task", "driver"))}
    assert {"task.attempts", "task.copying"} <= loaded
    assert not {name for name in loaded if name.startswith("driver")}
    if committable is not None:
        assert not query.commit(0, query.sink.confirm([committable])).lost
    assert query.ids() == [1, 2]
