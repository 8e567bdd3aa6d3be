"""Two owners of the same transactional ids, as after a copied checkpoint was adopted while the
original still ran.

Both have the query id, the sink's name and the generation in common, so their tasks take the same
ids. Whoever comes later fences the
other one: an owner loses whole transactions and is told so, and what a reader sees is whole
transactions of one owner.
"""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from collections import Counter

import pytest

pytestmark = pytest.mark.kafka

RECORDS = 40

TASK = """
import json, pickle, sys
import pyarrow as pa
from onceforall.sinks.kafka.task.producers import POOL
sink, attempt = pickle.load(sys.stdin.buffer)
for line in sys.stdin:
    what, values = json.loads(line)
    try:
        if what == "begin":
            for made in list(POOL._producers.values()):
                for _, producer in made:
                    POOL.discard(producer)
            transaction = sink.begin_transaction(attempt)
            answer = transaction.producer.name
        elif what == "write":
            sink.invoke(transaction, pa.RecordBatch.from_pydict({"value": [v.encode() for v in values]}))
            answer = transaction.flush()
        else:
            answer = sink.pre_commit(transaction)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    else:
        print(json.dumps({"answer": answer}), flush=True)
"""


class Owner:
    """A driver, and the process of its tasks: no live producer is shared with the other owner's."""

    def __init__(self, query, name):
        self.query = query
        self.name = name
        self.committed = []
        self.lost = []
        self.failed = []
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-c", TASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        pickle.dump((query.sink, query.attempt()), self._process.stdin)
        self._process.stdin.flush()

    def begin(self):
        """Start a task as a new worker would; it takes the id that every task of this query's
        first slot takes."""
        self._tag = f"{self.name}-{self._count}"
        self._count += 1
        return self._ask("begin")

    def write_half(self):
        return self._ask("write", [self._tag] * (RECORDS // 2))

    def prepare(self):
        return self._ask("pre_commit")

    def commit(self, committable):
        """What the driver does behind its decision."""
        report = self.query.commit(committable)
        (self.committed if report.completed or report.retired else self.lost).append(self._tag)
        return report

    def _ask(self, what, values=None):
        self._process.stdin.write(json.dumps([what, values]).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            self.failed.append(answer["error"])
            raise TaskFailedError(answer["error"])
        return answer["answer"]

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class TaskFailedError(Exception):
    pass


@pytest.fixture
def owners(query, topic):
    name = topic()
    first, second = query(name), query(name)
    second.id = first.id
    made = Owner(first, "original"), Owner(second, "copy")
    yield made
    for owner in made:
        owner.close()


@pytest.fixture
def seen(committed, owners):
    """How many records of each transaction are visible."""
    return lambda: Counter(
        message.value().decode() for message in committed(owners[0].query.sink._topic)
    )


def test_an_owner_that_is_overtaken_while_it_writes_cannot_prepare(owners, seen):
    original, copy = owners
    name = original.begin()
    original.write_half()
    assert copy.begin() == name, "the two don't share an id; the test proves nothing"
    with pytest.raises(TaskFailedError, match="AttemptFailedError"):
        original.write_half()
    with pytest.raises(TaskFailedError, match="AttemptFailedError"):
        original.prepare()
    copy.write_half()
    copy.write_half()
    copy.commit(copy.prepare())
    assert seen() == {"copy-0": RECORDS}


def test_an_owner_that_is_overtaken_behind_its_decision_is_told_that_its_transaction_is_lost(
    owners, seen, uncommitted
):
    original, copy = owners
    name = original.begin()
    original.write_half()
    original.write_half()
    decided = original.prepare()
    assert copy.begin() == name
    copy.write_half()
    report = original.commit(decided)
    assert not report.completed
    assert not report.retired
    # Its EndTxn did not end the other one's transaction either, which goes on.
    assert seen() == {}
    assert len(uncommitted(original.query.sink._topic)) == RECORDS * 3 // 2
    copy.write_half()
    copy.commit(copy.prepare())
    assert seen() == {"copy-0": RECORDS}


def test_the_sweep_of_a_copy_that_is_further_fences_what_the_original_writes(owners, seen):
    original, copy = owners
    original.begin()
    original.write_half()
    assert copy.query.sink.recover(copy.query.sweep(2)) == 1
    with pytest.raises(TaskFailedError, match="AttemptFailedError"):
        original.write_half()
    assert seen() == {}


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 4))]
)
def test_in_any_order_whole_transactions_are_visible_and_exactly_those_whose_owner_was_told_so(
    owners, seen, seed
):
    rng = random.Random(seed)
    waiting = {owner: steps_of(owner) for owner in owners}
    for _ in range(16):
        owner = rng.choice(owners)
        if rng.random() < 0.1:
            owner.query.sink.recover(owner.query.sweep(2))
        for _ in range(rng.choice((1, 2, 5))):
            if not goes_on(waiting[owner]):
                waiting[owner] = steps_of(owner)
    original, copy = owners
    assert original.committed + copy.committed
    assert original.lost + original.failed + copy.lost + copy.failed
    assert seen() == dict.fromkeys(original.committed + copy.committed, RECORDS)


def steps_of(owner):
    """One transaction, step by step."""
    owner.begin()
    yield
    owner.write_half()
    yield
    owner.write_half()
    yield
    committable = owner.prepare()
    yield
    owner.commit(committable)


def goes_on(steps):
    try:
        next(steps)
    except (TaskFailedError, StopIteration):
        return False
    return True
