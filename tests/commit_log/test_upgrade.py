"""A log of each release, kept for ever: a later release reads it, seals it, completes what it
decided, and goes on behind it.

Each folder ``fixtures/log-<release>`` is what a real query left that was killed right behind a
decision: three starts, the older of them cleaned, two sinks, and a last batch that is decided and
incomplete. ``keep_log.py`` made it. These files are never changed. From 0.1.0 on a log lies
elsewhere than its checkpoint, of which ``home/`` has the pointer, and has the rows of the batch in
doubt.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import functions as F

import onceforall
from onceforall.commit_log import CommitLog, LocalStore, binding
from onceforall.errors import (
    CheckpointMismatchError,
    ForeignEntryError,
    NewerEntryError,
    TransactionLostError,
)
from onceforall.protocol import decisions as do
from onceforall.protocol import events as saw
from onceforall.protocol import phases as P
from onceforall.protocol.entries import Claim, Digest, Done
from onceforall.protocol.history import CommitPermit
from onceforall.protocol.machine import step
from onceforall.protocol.state import Run, RunConfig
from onceforall.spark.row_hashes import row_hash
from onceforall.task.kept_rows import read_kept
from onceforall.task.row_places.local import LocalRows

FIXTURES = Path(__file__).parent / "fixtures"


@dataclass(frozen=True)
class Left:
    """What the kept log of a release says."""

    query_id: str
    generations: int
    last: tuple[int, int]
    batch: int
    offsets: tuple[str, ...]
    prefix: str
    ids: dict[str, set[str]]
    digests: dict[str, set[Digest]]
    sha256: str


def left(query_id, sha256, *hashes):
    """What each of them left: the queries are the same (see ``keep_log.py``), and so are their
    rows, but not how a row is hashed."""
    return Left(
        query_id=query_id,
        generations=3,
        last=(2, 5),
        batch=7,
        offsets=('{"offset":80,"timestamp":1700000008000}',),
        prefix=f"ads:{query_id}:",
        ids={
            "out": {"out:2:0.1.0:", "out:2:0.2.0:"},
            "größe ✓": {f"gr%C3%B6%C3%9Fe%20%E2%9C%93:2:0.{n}.0:" for n in (1, 2)},
        },
        digests={
            write: {Digest(5, number) for number in hashes} for write in ("out/0", "größe ✓/1")
        },
        sha256=sha256,
    )


BEFORE_PLAIN_COLUMNS = (0xE57630D22D76E344, 0x2361FCF505C83157)
SINCE_PLAIN_COLUMNS = (0x21C039FEE63DA8B6, 0xC5BCE8DEBEF3E76B)
LOGS = {
    # before a committable said which task it was, and its proof
    "log-0.1.0.dev1": left(
        "bca4b937-0fd5-4d45-a1ae-ff020fa2bdb6",
        "3798e5c8e2ab190a7da8c52f4ff10bd2fdbd71dde147d07bcda113471db6dac4",
        *BEFORE_PLAIN_COLUMNS,
    ),
    "log-0.1.0.dev2": left(
        "46b960a5-6689-4b6f-9e4a-7bd5b43eeb93",
        "9da21bbb5612e62dddbac63e9efad094d2cd6d45b82ef23954cacfa3079ea28a",
        *BEFORE_PLAIN_COLUMNS,
    ),
    "log-0.1.0": left(
        "65ad4435-5092-4f90-a523-0fa1860bc157",
        "8f6701e0e1f648f37110fb00e7fb24bb0b25e06f8d1c59fa55ac0e5757ccbd13",
        *SINCE_PLAIN_COLUMNS,
    ),
    "log-0.2.0": left(
        "81af6cf0-ea44-4e44-99c6-20e0c580322c",
        "9cb56ba157e8380ed46fd5cee0249f06073f88f48ea8cc8cdb58a521fd6c98d1",
        *SINCE_PLAIN_COLUMNS,
    ),
}
ELSEWHERE = "log-0.1.0"


@pytest.fixture(params=sorted(LOGS))
def kept(request, tmp_path):
    """A copy of a kept log, and what it says."""
    shutil.copytree(FIXTURES / request.param, tmp_path / "log")
    return tmp_path / "log", LOGS[request.param]


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def open_log(folder):
    return CommitLog(LocalStore(folder), sleep=lambda _: None)


class Start:
    """A start of this release over a log, up to the recovery of the sinks."""

    def __init__(self, folder, found, *, offsets=None, sinks=("out", "größe ✓"), stateful=False):
        self.log = open_log(folder)
        self.run = Run(RunConfig(found.query_id, "this run", "/checkpoints/ads", sinks))
        self.todo = ()
        self.feed(saw.BatchRequested(found.batch, offsets or found.offsets, stateful))
        self.feed(saw.LogInspected(self.log.newest_claim(), own_sealed=False))
        claimed = self.log.claim(self.todo[-1].claim)
        self.feed(saw.GenerationClaimed(claimed.generation, claimed.previous))
        self.history = self.log.seal_below(claimed.generation)
        self.feed(saw.PastSealed(self.history, found.batch - 1))

    def feed(self, event):
        self.run, self.todo = step(self.run, event)

    def recover(self):
        """The sinks answer that all is committed, and DONE is appended."""
        (recover,) = self.todo
        self.feed(
            saw.SinksRecovered(
                {name: saw.SinkAnswers(cs) for name, cs in recover.commit.committables.items()}
            )
        )
        (done,) = self.todo
        self.log.append(done.generation, Done(done.batch))
        self.feed(saw.DoneAppended())


def test_there_is_a_log_of_every_release_also_of_this_one():
    assert {folder.name for folder in FIXTURES.glob("log-*")} == set(LOGS)
    assert f"log-{onceforall.__version__}" in LOGS, "a new release: keep_log.py makes its log"


@pytest.mark.parametrize("name", LOGS)
def test_a_kept_log_is_as_it_was_when_it_was_kept(name):
    found = hashlib.sha256()
    for path, content in sorted(files(FIXTURES / name).items()):
        found.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
    assert found.hexdigest() == LOGS[name].sha256


def test_a_kept_pointer_leads_to_its_log(tmp_path):
    shutil.copytree(FIXTURES / ELSEWHERE, tmp_path / "log")
    home, log = LocalStore(tmp_path / "log" / "home"), LocalStore(tmp_path / "log")
    opened = []
    bound = binding.find(home, open_store=lambda location: opened.append(location) or log)
    assert opened == ["/volumes/ads-log"]
    assert (bound.location, bound.first_generation) == (opened[0], 0)
    assert CommitLog(bound.store).newest_claim().query_id == LOGS[ELSEWHERE].query_id
    (tmp_path / "log" / "binding.json").unlink()
    (tmp_path / "log" / "home" / "pointer" / "00000000.json").rename(
        tmp_path / "log" / "binding.json"
    )
    shutil.copytree(FIXTURES / ELSEWHERE / "home", tmp_path / "log" / "home", dirs_exist_ok=True)
    with pytest.raises(ForeignEntryError):
        binding.find(home, open_store=lambda _: log)


@pytest.mark.spark
def test_the_rows_that_a_kept_log_decided_are_read_and_hashed_as_they_were(spark, tmp_path):
    """Otherwise the first redo, and the first comparison, behind an upgrade would tell of a
    divergence that isn't one."""
    shutil.copytree(FIXTURES / ELSEWHERE, tmp_path / "log")
    (recover,) = Start(tmp_path / "log", LOGS[ELSEWHERE]).todo
    found = {name: set() for name in recover.commit.committables}
    for name, committables in recover.commit.committables.items():
        for each in committables:
            rows = [
                row
                for batch in read_kept(LocalRows(tmp_path / "log" / "rows"), each["rows"])
                for row in batch.to_pylist()
            ]
            frame = spark.createDataFrame(
                [(bytearray(row["value"]), bytearray(row["key"])) for row in rows],
                "value binary, key binary",
            )
            hashes = frame.select(row_hash(frame, [F.col("value"), F.col("key")])).collect()
            found[name].add(Digest(len(rows), sum(number for (number,) in hashes) % 2**64))
    assert {f"{name}/{turn}": found[name] for turn, name in enumerate(("out", "größe ✓"))} == LOGS[
        ELSEWHERE
    ].digests


def test_every_entry_of_a_kept_log_can_be_read(kept):
    folder, found = kept
    log = open_log(folder)
    assert log.newest_generation() == found.generations - 1
    claim = log.newest_claim()
    assert isinstance(claim, Claim)
    assert (claim.query_id, claim.checkpoint) == (found.query_id, "/checkpoints/ads")
    kinds = [
        entry.kind
        for generation in range(found.generations)
        for _, entry in log.entries(generation)
    ]
    assert set(kinds) == {"CLAIM", "COMMIT", "DONE", "SEAL"}
    entries = [
        name
        for name in files(folder)
        if name.startswith("chains/") and not name.endswith("sealed.json")
    ]
    assert len(kinds) == len(entries)


def test_a_kept_log_is_sealed_and_what_it_decided_is_completed_and_skipped(kept):
    folder, found = kept
    before = files(folder)
    start = Start(folder, found)
    decided = start.history.decided
    assert (decided.generation, decided.index) == found.last
    assert (decided.commit.batch, decided.commit.offsets, decided.done) == (
        found.batch,
        found.offsets,
        False,
    )
    assert {
        write: set(digests) for write, digests in decided.commit.digests.items()
    } == found.digests
    (recover,) = start.todo
    assert isinstance(recover, do.RecoverSinks)
    assert recover.commit.permit == CommitPermit(*found.last, found.batch)
    ids = {sink: {found.prefix + name for name in names} for sink, names in found.ids.items()}
    assert {
        sink: {c["name"] for c in committables}
        for sink, committables in recover.commit.committables.items()
    } == ids
    assert all(sweep.spared == set().union(*ids.values()) for sweep in recover.sweeps.values())
    assert all(
        c.keys() >= {"producer_id", "producer_epoch", "records"}
        for cs in recover.commit.committables.values()
        for c in cs
    )
    start.recover()
    assert start.todo == (do.ReturnBatch(found.batch),)
    # Nothing that the older release wrote is touched.
    assert before.items() <= files(folder).items()
    last, _ = found.last
    assert [entry.kind for _, entry in open_log(folder).entries(last)][-2:] == ["COMMIT", "SEAL"]
    start.feed(saw.BatchRequested(found.batch + 1, ("next",), stateful=False))
    assert isinstance(start.todo[0], do.RunWrites)


def test_the_batch_that_a_kept_log_decided_is_digested_where_there_is_state_and_compares_as_equal(
    kept,
):
    folder, found = kept
    start = Start(folder, found, stateful=True)
    start.recover()
    assert isinstance(start.todo[0], do.TakeDigests)
    start.feed(
        saw.DigestsTaken({write: tuple(digests) for write, digests in found.digests.items()})
    )
    assert start.todo == (do.ReturnBatch(found.batch),)


def test_a_decision_of_a_kept_log_holds_for_its_offsets_and_its_sinks(kept):
    folder, found = kept
    start = Start(folder, found, offsets=("other",))
    start.recover()
    assert type(start.run.phase) is P.Stopped
    assert start.todo[0].error is CheckpointMismatchError
    gone = Start(folder, found, sinks=("another",))
    # By now the batch has its DONE, and the sinks may go.
    assert type(gone.run.phase) is P.Recovering


def test_a_lost_transaction_is_written_again_if_the_log_says_which_task_it_was_and_is_reported_otherwise(
    kept,
):
    folder, found = kept
    start = Start(folder, found)
    (recover,) = start.todo
    (lost, *others), out = (
        recover.commit.committables["größe ✓"],
        recover.commit.committables["out"],
    )
    answers = {
        "out": saw.SinkAnswers(out),
        "größe ✓": saw.SinkAnswers(
            tuple(others), (), (saw.Lost("größe ✓", lost, "PRODUCER_FENCED"),)
        ),
    }
    start.feed(saw.SinksRecovered(answers))
    (decision,) = start.todo
    if "task" in lost:
        assert decision == do.FenceLost({"größe ✓": (lost,)})
    else:
        assert decision.error is TransactionLostError


def test_a_log_of_a_later_release_stops_the_start_and_is_left_as_it_is(kept):
    folder, found = kept
    generation, index = found.last
    entry = folder / "chains" / f"{generation:08d}" / f"{index:08d}.json"
    later = json.dumps(
        {**json.loads(entry.read_bytes()), "onceforall": 3, "checksum": "blake3:00"}
    ).encode()
    entry.write_bytes(later)
    before = files(folder)
    with pytest.raises(
        NewerEntryError,
        match=rf"{index:08d}\.json.*newer release of onceforall.*Upgrade onceforall",
    ):
        Start(folder, found)
    after = files(folder)
    assert before.items() <= after.items()
    assert [name for name in after if name not in before and f"{generation:08d}/" in name] == []


def test_a_claim_of_a_later_release_stops_the_start_before_anything_is_written(kept):
    folder, found = kept
    entry = folder / "chains" / f"{found.generations - 1:08d}" / "00000000.json"
    entry.write_bytes(json.dumps({**json.loads(entry.read_bytes()), "onceforall": 3}).encode())
    before = files(folder)
    with pytest.raises(NewerEntryError):
        Start(folder, found)
    assert files(folder) == before
