from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceforall.errors import (
    CheckpointMismatchError,
    FencedError,
    OvertakenError,
    PlanOverwrittenError,
)
from onceforall.protocol import messages
from onceforall.protocol.entries import Claim, Digest
from onceforall.protocol.events import BatchRequested
from onceforall.protocol.history import EMPTY, Decided, History
from onceforall.protocol.judgement import (
    Refusal,
    Verdict,
    divergence,
    gone_sinks,
    judge,
    judge_claim,
    judge_overtaken,
    judge_passed_over,
    total,
)
from onceforall.protocol.state import RunConfig
from protocol.building import commit, digests, history, offsets, request


def test_the_first_batch_of_an_empty_log_is_written():
    assert judge(request(0), EMPTY, -1) is Verdict.WRITE


def test_any_batch_is_written_when_nothing_was_ever_decided():
    assert judge(request(7), EMPTY, 6) is Verdict.WRITE


def test_the_batch_after_the_last_decided_one_is_written():
    assert judge(request(8), history(7), 7) is Verdict.WRITE


@pytest.mark.parametrize("start", [(), offsets(7)])
def test_a_batch_that_begins_where_the_decided_one_ends_or_nobody_knows_where_is_written(start):
    asked = BatchRequested(8, offsets(8), stateful=False, start=start)
    assert judge(asked, history(7), 7) is Verdict.WRITE


def test_a_batch_that_begins_elsewhere_than_the_decided_one_ends_is_refused():
    """A replaced run has written over the plan that Spark went on from."""
    asked = BatchRequested(8, offsets(8), stateful=False, start=offsets(6))
    refused(judge(asked, history(7), 7), PlanOverwrittenError, "Batch 8 begins at", "start again")


SETTINGS = {"spark.sql.shuffle.partitions": "200", "spark.sql.streaming.stateStore": "x"}


def header(*, partitions=200, time=1000, watermark=5, version="v1", settings=None):
    """Version and metadata of a batch as Spark plans it."""
    conf = {**SETTINGS, "spark.sql.shuffle.partitions": str(partitions), **(settings or {})}
    metadata = {"batchWatermarkMs": watermark, "batchTimestampMs": time, "conf": conf}
    return (version, json.dumps(metadata))


def repartitioned(batch, last=7, end=None, before=None, decided=None):
    """What is asked for behind batches that nobody decided, and the past."""
    asked = BatchRequested(
        batch,
        offsets(batch),
        stateful=True,
        start=offsets(last) if end is None else end,
        before=header(partitions=300) if before is None else before,
    )
    known = replace(commit(last), header=header() if decided is None else decided)
    return asked, History(Decided(known, 0, 1, done=True))


@pytest.mark.parametrize("batch", [9, 10])
def test_a_batch_behind_an_offline_repartitioning_is_written(batch):
    """Also behind two, and behind an undecided batch that it has passed over."""
    asked, past = repartitioned(batch)
    assert judge(asked, past, batch - 1) is Verdict.WRITE


@pytest.mark.parametrize(
    "change",
    [
        {"end": offsets(8)},
        {"before": header(partitions=300, time=1001)},
        {"before": header(partitions=300, watermark=6)},
        {"before": header(partitions=300, version="v2")},
        {"before": header(settings={"spark.sql.streaming.stateStore": "y"})},
        {"before": ()},
        {"before": ("v1", "no json")},
        {"before": ("v1", "[]")},
        {"decided": ()},
        {"decided": ("v1",)},
    ],
)
def test_batches_that_did_more_than_repartition_are_no_repartitioning(change):
    """A plain query's batch without input, for its timers alone, has another time."""
    asked, past = repartitioned(9, **change)
    refused(judge(asked, past, 8), CheckpointMismatchError, "batches 8 to 8 were run without")


def test_a_repartitioning_that_passed_over_a_decided_batch_is_named_with_how_to_take_it_back():
    asked, past = repartitioned(9, end=offsets(6), before=header(partitions=300, time=999))
    remedy = "delete offsets/8, commits/7 and commits/8"
    refused(judge(asked, past, 8), CheckpointMismatchError, "Batch 7 is decided", remedy)
    assert judge_passed_over(past.decided, 8, asked.before) == judge(asked, past, 8)


def test_a_decided_batch_without_input_can_be_passed_over_too():
    """Its offsets are those of the batch before it."""
    asked, past = repartitioned(9, before=header(partitions=300, time=999))
    refused(judge(asked, past, 8), CheckpointMismatchError, "Batch 7 is decided")


@pytest.mark.parametrize(
    ("planned", "before"),
    [(7, header(time=999)), (8, header(time=1000)), (8, ()), (8, ("v1", "{}"))],
)
def test_what_passes_over_no_decided_batch_is_not_said_to(planned, before):
    _, past = repartitioned(9)
    assert judge_passed_over(past.decided, planned, before) is None
    assert judge_passed_over(None, planned, before) is None


def test_the_last_decided_batch_is_skipped_by_a_query_without_state():
    assert judge(request(7), history(7), 6) is Verdict.SKIP


def test_the_last_decided_batch_is_only_digested_by_a_query_with_state():
    assert judge(request(7, stateful=True), history(7), 6) is Verdict.DIGEST


def refused(answer, error, *words):
    assert isinstance(answer, Refusal)
    assert answer.error is error
    for word in words:
        assert word in answer.message


@pytest.mark.parametrize("stateful", [False, True])
def test_other_offsets_than_the_decided_ones_are_refused(stateful):
    answer = judge(BatchRequested(7, ("other",), stateful), history(7), 6)
    refused(answer, CheckpointMismatchError, "Batch 7", "other", offsets(7)[0], "checkpoint")


@pytest.mark.parametrize("batch", [3, 6])
def test_a_batch_below_the_last_decided_one_is_refused(batch):
    answer = judge(request(batch), history(7), 2)
    refused(
        answer,
        CheckpointMismatchError,
        f"batch {batch}",
        "batch 7 is already decided",
        "checkpoint",
    )


def test_a_gap_behind_the_last_decided_batch_is_refused():
    refused(
        judge(request(10), history(7), 9),
        CheckpointMismatchError,
        "batch 10",
        "8 to 9",
        "checkpoint",
    )


@pytest.mark.parametrize(
    ("past", "spark", "unplanned", "why"),
    [
        (EMPTY, 7, False, "that batch is not decided"),
        (EMPTY, 7, True, "its offset log doesn't have that batch"),
        (history(7), 8, False, "that batch is not decided"),
        (history(8), 8, True, "its offset log doesn't have that batch"),
        (history(9), 7, True, "its offset log doesn't have that batch"),
    ],
)
def test_a_checkpoint_whose_parts_are_of_different_times_is_not_taken_for_another_run(
    past, spark, unplanned, why
):
    """No start after this one would find it otherwise."""
    refused(
        judge(request(7), past, spark, spark_unplanned=unplanned),
        CheckpointMismatchError,
        f"asks for batch 7, but its own commit log has batch {spark} already, and {why}",
        "put back the folder",
    )


@pytest.mark.parametrize(("batch", "last", "spark"), [(7, 7, 7), (7, 9, 8), (7, 8, 7)])
def test_a_batch_that_another_run_has_finished_meanwhile_is_refused(batch, last, spark):
    refused(
        judge(request(batch), history(last), spark),
        OvertakenError,
        f"batch {batch}",
        f"batch {spark}",
        "another run",
    )


def test_only_a_batch_that_sparks_log_has_is_overtaken():
    assert judge_overtaken(8, 7, planned=True) is None
    assert judge_overtaken(0, -1, planned=False) is None
    assert judge_overtaken(7, 9, planned=False) is None
    for spark in (7, 9):
        overtaken = judge_overtaken(7, spark, planned=True)
        refused(overtaken, FencedError, "batch 7,", f"has batch {spark} by")


@pytest.mark.parametrize(("length", "cut"), [(400, False), (401, True)])
def test_offsets_are_cut_only_where_that_is_shorter(length, cut):
    answer = judge(BatchRequested(7, ("x" * length,), stateful=False), history(7), 6)
    assert ("…" in answer.message) == cut
    assert "x" * 400 in answer.message


def test_long_offsets_are_cut_in_the_message():
    answer = judge(BatchRequested(7, ("x" * 5000,), stateful=False), history(7), 6)
    refused(answer, CheckpointMismatchError, "…")
    assert len(answer.message) < 2000


@given(st.integers(0, 6), st.integers(0, 6), st.integers(-1, 6), st.booleans(), st.booleans())
def test_a_batch_is_passed_over_only_for_the_offsets_that_were_decided(
    batch, last, spark, stateful, same
):
    asked = BatchRequested(batch, offsets(batch) if same else ("other",), stateful)
    answer = judge(asked, history(last), spark)
    if answer in {Verdict.SKIP, Verdict.DIGEST}:
        assert batch == last
        assert same
        assert batch > spark
    elif answer is Verdict.WRITE:
        assert batch == last + 1


def test_the_same_rows_agree_wherever_they_were_placed():
    decided = commit(0)
    assert divergence(decided, {"a/0": (Digest(4, 2), Digest(6, 2**64 - 2))}) is None


def test_rows_of_other_content_differ():
    sentence = divergence(commit(3), {"a/0": (Digest(10, 99),)})
    assert "batch 3" in sentence
    assert "a/0: 10 rows, of other content" in sentence


def test_another_number_of_rows_differs():
    assert "a/0: 10 rows then, 9 now" in divergence(commit(0), digests(0, rows=9))


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_a_difference_is_told_as_the_query_goes_on(fails, lost):
    said = ["onceforall.inDoubt=aborted"]
    told = divergence(commit(0), digests(0, rows=9), said, fails=fails, lost=lost)
    again = "a/0: 10 rows then, 9 now"
    assert told == messages.diverged(0, again, said, fails=fails, lost=lost)


def test_a_write_that_only_one_of_both_has_differs():
    assert "a/0: 10 rows then, 0 now" in divergence(commit(0), {})
    assert "z/9: 0 rows then, 1 now" in divergence(
        commit(0), {**digests(0), "z/9": (Digest(1, 1),)}
    )


def test_a_write_without_rows_is_as_good_as_none():
    assert divergence(commit(0), {**digests(0), "z/9": (Digest(0, 0),)}) is None


@given(st.lists(st.builds(Digest, st.integers(0, 100), st.integers(0, 2**64 - 1)), max_size=6))
def test_a_total_does_not_depend_on_the_order(tasks):
    assert total(tuple(tasks)) == total(tuple(reversed(tasks)))


STORAGE = {"type": "ext4", "id": "a1", "folder": "17", "nvme-serial": "vol0a"}
CLONE = {**STORAGE, "nvme-serial": "vol0b"}


def claimed(here, host="node-2", boot_id="boot-2", adopt=False):
    """Judge a start at a place, behind a run on node-1 in its first boot."""
    config = RunConfig(
        "query",
        "run",
        "/cp",
        ("out",),
        host=host,
        boot_id=boot_id,
        storage=here,
        adopt_checkpoint=adopt,
    )
    return judge_claim(
        config, Claim("query", "older run", "/cp", "me", "node-1", "boot-1", STORAGE)
    )


@pytest.mark.parametrize(
    ("before", "now", "gone"),
    [
        ({"pg": "postgres", "out": "file"}, {"out": "file"}, {"pg": "postgres"}),
        ({"pg": "postgres"}, {"pg": "file"}, {"pg": "postgres"}),
        ({"pg": "postgres"}, {"pg2": "postgres"}, {"pg": "postgres"}),
        ({"out": "file"}, {"new": "kafka", "out": "file"}, {}),
        ({}, {"out": "file"}, {}),
        ({"pg": "postgres"}, {}, {}),
    ],
)
def test_what_the_run_before_wrote_to_and_this_one_does_not_is_known(before, now, gone):
    config = RunConfig("query", "run", "/cp", tuple(now), kinds=now)
    assert gone_sinks(config, Claim("query", "older run", "/cp", kinds=before)) == gone
    assert gone_sinks(config, None) == {}


def test_a_cloned_volume_under_the_same_path_on_another_machine_is_refused():
    refused(
        claimed(CLONE),
        CheckpointMismatchError,
        "clone",
        "nvme-serial was vol0a, and is vol0b",
        "onceforall.adoptCheckpoint",
    )


@pytest.mark.parametrize(("owner", "named"), [("me", "me"), ("", "node-1")])
def test_whose_clone_it_is_is_named_or_else_the_machine(owner, named):
    config = RunConfig("query", "run", "/cp", ("out",), host="node-2", boot_id="b", storage=CLONE)
    past = Claim("query", "older run", "/cp", owner, "node-1", "boot-1", STORAGE)
    refused(judge_claim(config, past), CheckpointMismatchError, f"than when {named} used it last")


def test_a_clone_is_refused_on_the_same_machine_behind_a_boot_and_in_another_pod_of_it():
    assert claimed(CLONE, host="node-1") is not None
    assert claimed(CLONE, boot_id="boot-1") is not None


@pytest.mark.parametrize(
    "here",
    [{**STORAGE, "id": "b2"}, {**STORAGE, "folder": "18"}, {**STORAGE, "type": "xfs"}],
    ids=str,
)
def test_a_copy_to_another_file_system_is_refused(here):
    assert claimed(here) is not None


def test_a_volume_that_travels_with_its_pod_and_a_machine_that_boots_are_not_asked():
    assert claimed(STORAGE) is None
    assert claimed(STORAGE, host="node-1") is None


def test_the_same_owner_is_not_asked_whatever_became_of_the_storage():
    assert claimed(CLONE, host="node-1", boot_id="boot-1") is None


def test_what_only_one_of_the_two_knows_tells_nothing():
    assert claimed({"type": "ext4", "scsi-wwid": "x"}) is None
    assert claimed({}) is None
    config = RunConfig("query", "run", "/cp", ("out",), host="node-2", storage=CLONE)
    assert judge_claim(config, Claim("query", "run of an earlier release", "/cp")) is None


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.glusterfs", "ceph"])
def test_a_network_file_system_is_not_asked_about(kind):
    assert claimed({**CLONE, "type": kind}) is None


def test_one_that_is_adopted_is_not_asked_about():
    assert claimed(CLONE, adopt=True) is None
