"""Each promise of the checker has at least one planted violation here that must be reported
under its own name, and true histories are never blamed."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceforall.commit_log import CommitLog, LocalStore
from onceforall.protocol.entries import Claim, Commit, Digest, Done, Seal
from onceforall.protocol.names import TransactionName
from onceforall.testing import checker
from onceforall.testing.checker import (
    NO_ROWS,
    UNREADABLE,
    LogView,
    Report,
    Rows,
    RunningCheck,
    SinkCounts,
    TableTruth,
    UniformTruth,
    check_log,
    check_quiet,
    check_state,
    findings,
    last_counts,
    running_counts,
)
from onceforall.testing.observers import CommitLogObserver

ROWS, KEYS, TASKS, LANES = 20, 7, 4, 3
TRUTH = UniformTruth(ROWS, keys=KEYS, tasks=TASKS)


def numbers(values):
    return np.asarray(values, np.int64)


def topic(ids, lanes=None, positions=None, keys=None):
    """Rows as a topic has them: each key in one partition, in the order of the ids given."""
    ids = numbers(ids)
    lanes = ids % KEYS % LANES if lanes is None else numbers(lanes)
    positions = np.arange(len(ids)) if positions is None else numbers(positions)
    return Rows(ids, lanes, positions, ids % KEYS if keys is None else np.asarray(keys))


def table(ids):
    ids = numbers(ids)
    return Rows(ids, keys=ids % KEYS)


def through(batches):
    return range(batches * ROWS)


def quiet(rows, batches=3, **more):
    return check_quiet(TRUTH, {"out": rows}, range(batches), **more)


def only(report):
    """The violations, of which there must be some of one kind only."""
    (kind,) = report.kinds()
    assert not report.ok
    return kind


# --- when all is quiet ----------------------------------------------------------------------------


def test_what_is_right_is_not_blamed():
    report = check_quiet(
        TRUTH,
        {"out": topic(through(3)), "files": table(through(3))},
        range(3),
        {"out": [], "files": []},
    )
    assert report.ok, report.violations
    assert report.sinks["out"] == SinkCounts(records=60, expected=60)
    assert report.total.records == 120
    report.raise_if_broken()


def test_a_lost_row_is_reported_as_lost():
    report = quiet(table([row for row in through(3) if row != 25]))
    assert report.kinds() == {findings.LOST, findings.TORN}
    assert report.sinks["out"].lost == 1
    assert "25" in str(report.violations[0])
    with pytest.raises(AssertionError, match="lost: out: 1 rows, ids 25"):
        report.raise_if_broken()


def test_a_lost_batch_is_reported_as_lost_and_the_sinks_as_disagreeing():
    report = check_quiet(
        TRUTH, {"out": topic(through(3)), "files": table([*range(20), *range(40, 60)])}, range(3)
    )
    assert report.kinds() == {findings.LOST, findings.DISAGREEING}
    assert report.sinks["files"].lost == ROWS
    assert report.sinks["out"].lost == 0


def test_a_row_that_is_there_twice_is_reported_as_duplicated():
    report = quiet(topic([*through(3), 3, 3, 44]))
    assert only(report) == findings.DUPLICATED
    assert report.sinks["out"].duplicated == 3
    assert "ids 3, 44" in str(report.violations[0])


@pytest.mark.parametrize("stranger", [UNREADABLE, -7])
def test_a_row_that_no_input_has_is_reported_as_alien(stranger):
    report = quiet(table([*through(3), stranger]), batches=3)
    assert report.kinds() == {findings.ALIEN}
    assert report.sinks["out"].alien == 1


@pytest.mark.parametrize("ids", [[0.4, 1.7], [0.0, 1.0], [False, True], ["0", "1"]])
def test_ids_that_are_no_whole_numbers_are_no_inputs(ids):
    rows = Rows(np.asarray(ids))
    assert findings.ALIEN in check_quiet(UniformTruth(2), {"out": rows}, range(1)).kinds()


def test_a_row_of_a_batch_that_nobody_decided_is_reported_as_undecided():
    report = quiet(table([*through(3), 61, 10**15]))
    assert only(report) == findings.UNDECIDED
    assert report.sinks["out"].alien == 2
    assert "batches 3, 50000000000000" in str(report.violations[0])


def test_a_row_under_another_key_is_reported():
    keys = numbers(through(3)) % KEYS
    keys[5] += 1
    assert only(quiet(topic(through(3), keys=keys))) == findings.WRONG_KEY


def test_keys_may_be_texts():
    texts = (numbers(through(3)) % KEYS).astype(str)
    assert quiet(topic(through(3), keys=texts)).ok


def test_a_part_of_a_batch_is_reported_as_torn():
    report = quiet(table([*range(40), *range(50, 60)]))
    assert findings.TORN in report.kinds()
    assert report.sinks["out"].torn == 1


def test_batches_of_one_key_in_the_wrong_order_are_reported():
    ids = [*range(20), *range(40, 60), *range(20, 40)]
    report = quiet(topic(ids))
    assert only(report) == findings.MISORDERED
    assert report.sinks["out"].misordered > 0


def test_rows_of_one_key_that_one_task_wrote_in_the_wrong_order_are_reported():
    # 0 and 28 are of key 0 and task 0.
    truth = UniformTruth(40, keys=KEYS, tasks=TASKS)
    ids = list(range(40))
    ids[0], ids[28] = 28, 0
    assert only(check_quiet(truth, {"out": topic(ids)}, range(1))) == findings.MISORDERED


def test_rows_of_one_key_that_two_tasks_wrote_have_no_order_within_a_batch():
    ids = list(range(20))
    ids[0], ids[7] = 7, 0  # key 0, tasks 0 and 3
    assert check_quiet(TRUTH, {"out": topic(ids)}, range(1)).ok
    strict = UniformTruth(ROWS, keys=KEYS, tasks=1)
    assert only(check_quiet(strict, {"out": topic(ids)}, range(1))) == findings.MISORDERED


def test_a_key_in_two_partitions_is_reported_unless_that_is_wanted():
    lanes = numbers(through(3)) % LANES
    rows = topic(through(3), lanes=lanes)
    assert only(quiet(rows)) == findings.MISORDERED
    assert quiet(rows, one_lane_per_key=False).ok


def test_the_order_of_arrival_at_the_reader_means_nothing():
    order = np.random.default_rng(1).permutation(60)
    rows = topic(through(3))
    assert quiet(
        Rows(rows.ids[order], rows.lanes[order], rows.positions[order], rows.keys[order])
    ).ok


def test_leftovers_are_reported():
    report = quiet(
        table(through(3)), leftovers={"out": ["prepared transaction x", "staging table y"]}
    )
    assert only(report) == findings.LEFTOVER
    assert report.sinks["out"].leftovers == 2


def test_leftovers_of_a_sink_that_was_not_read_are_reported():
    report = quiet(table(through(3)), leftovers={"other": ["staging table y"]})
    assert only(report) == findings.LEFTOVER
    assert not report.ok


@pytest.mark.parametrize(
    "views", [{}, {"out": NO_ROWS}, {"out": table(through(0)), "files": table(through(0))}]
)
def test_no_records_at_all_fail(views):
    report = check_quiet(TRUTH, views, range(0))
    assert only(report) == findings.NOTHING_READ
    with pytest.raises(AssertionError, match="nothing was checked"):
        report.raise_if_broken()


def test_one_sink_without_records_fails():
    report = check_quiet(TRUTH, {"out": table(through(3)), "files": NO_ROWS}, range(3))
    assert findings.NOTHING_READ in report.kinds()
    assert not report.ok


def test_a_sink_that_has_a_truth_and_was_not_read_fails():
    truths = {"out": TRUTH, "files": TRUTH}
    (violation,) = check_quiet(truths, {"out": topic(through(3))}, range(3)).violations
    assert (violation.kind, violation.sink) == (findings.NOTHING_READ, "files")


@pytest.mark.parametrize(
    "named",
    [{"truth": {"out": TRUTH, "files": TRUTH}}, {"whole": {"files"}}, {"settle_s": {"files": 1}}],
    ids=["truth", "whole", "settle_s"],
)
def test_a_sink_that_is_named_and_was_never_read_fails(named):
    """A misspelt name would be passed over otherwise."""
    check = RunningCheck(**{"truth": TRUTH, **named})
    check.observe({"out": table(through(1))}, range(1), at_s=0)
    (violation,) = check.report().violations
    assert (violation.kind, violation.sink) == (findings.NOTHING_READ, "files")
    check.observe({"out": table(through(1)), "files": table(through(1))}, range(1), at_s=1)
    assert check.report().ok


def test_a_log_without_an_entry_fails():
    assert kinds() == kinds([]) == [findings.NOTHING_READ]


def test_an_empty_report_is_not_ok():
    assert not Report().ok
    assert not Report({"out": SinkCounts()}).ok


def test_each_sink_may_have_a_truth_of_its_own():
    counts = running_counts(ROWS, 3, KEYS)
    bucket = np.char.partition(np.asarray(counts.ids_at(np.arange(21))), ":")[:, 0]
    view = Rows(counts.ids_at(np.arange(21)), numbers(bucket.astype(int)), np.arange(21), bucket)
    truths = {"out": TRUTH, "counts": counts}
    assert check_quiet(truths, {"out": topic(through(3)), "counts": view}, range(3)).ok
    lost = Rows(view.ids[:-1], view.lanes[:-1], view.positions[:-1], view.keys[:-1])
    assert (
        check_quiet(truths, {"out": topic(through(3)), "counts": lost}, range(3))
        .sinks["counts"]
        .lost
        == 1
    )


def test_a_running_count_is_what_a_plain_count_gives():
    counts, lasts = {}, {}
    expected = []
    for batch in range(5):
        touched = []
        for value in range(batch * 4, batch * 4 + 4):
            bucket = value % KEYS
            counts[bucket] = counts.get(bucket, 0) + 1
            lasts[bucket] = value
            touched.append(bucket)
        expected += [(f"{b}:{counts[b]}:{lasts[b]}", batch) for b in sorted(set(touched))]
    truth = running_counts(4, 5, KEYS)
    ordinals = np.arange(len(expected))
    assert (
        list(zip(truth.ids_at(ordinals).tolist(), truth.batches_at(ordinals).tolist(), strict=True))
        == expected
    )
    assert last_counts(4, 5, KEYS) == {str(b): (counts[b], lasts[b]) for b in counts}


def test_a_count_of_a_batch_that_was_counted_twice_is_alien():
    truth = running_counts(ROWS, 2, KEYS)
    ids = truth.ids_at(np.arange(14)).tolist()
    ids[-1] = "6:7:34"
    report = check_quiet(truth, {"out": Rows(np.asarray(ids))}, range(2))
    assert {findings.ALIEN, findings.LOST} <= report.kinds()


def test_listed_ids_may_be_any_texts_in_any_batches():
    truth = TableTruth(["b", "a", "c"], [7, 5, 7], keys=["x", "y", "x"])
    view = Rows(np.asarray(["a", "c", "b"]), keys=np.asarray(["y", "x", "x"]))
    assert check_quiet(truth, {"out": view}, {5, 7}).ok
    assert check_quiet(truth, {"out": view}, {5}).kinds() == {findings.UNDECIDED}
    assert check_quiet(truth, {"out": view}, {5, 6, 7}).ok  # a batch without rows
    assert check_quiet(
        truth, {"out": Rows(np.asarray(["a", "zz"]), keys=np.asarray(["y", "x"]))}, {5}
    ).kinds() == {findings.ALIEN}
    with pytest.raises(ValueError, match="twice"):
        TableTruth(["a", "a"], [0, 1])
    with pytest.raises(ValueError, match="same length"):
        TableTruth(["a"], [0, 1])


def test_rows_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="same length"):
        Rows(numbers([1, 2]), keys=numbers([1]))
    with pytest.raises(ValueError, match="both or neither"):
        Rows(numbers([1]), lanes=numbers([1]))


def test_state_that_differs_from_input_or_output_is_reported():
    right = last_counts(ROWS, 3, KEYS)
    assert check_state(right, right, right) == ()
    wrong = {**right, "3": (99, 1)}
    (violation, other) = check_state(wrong, right, right)
    assert violation.kind == other.kind == findings.STATE
    assert "first 3" in violation.text
    (violation,) = check_state(right, right, wrong)
    assert "the output says" in violation.text
    (violation,) = check_state({}, right, right)
    assert violation.kind == findings.NOTHING_READ


def test_a_hundred_thousand_rows_take_well_below_a_second():
    ids = np.arange(100_000)
    rows = topic(ids)
    truth = UniformTruth(1000, keys=KEYS, tasks=TASKS)
    began = time.process_time()
    assert check_quiet(truth, {"out": rows}, range(100)).ok
    assert time.process_time() - began < 0.8


# --- any corruption is found ----------------------------------------------------------------------


@st.composite
def histories(draw):
    """The rows of a correct topic: batches in order, within a batch the tasks' rows interleaved."""
    batches = draw(st.integers(1, 5))
    ids = []
    for batch in range(batches):
        tasks = [
            list(range(batch * ROWS + task, (batch + 1) * ROWS, TASKS)) for task in range(TASKS)
        ]
        turns = [task for task, rows in enumerate(tasks) for _ in rows]
        ids += [tasks[task].pop(0) for task in draw(st.permutations(turns))]
    return batches, ids


@given(histories())
@settings(max_examples=60)
def test_a_correct_history_is_never_blamed(history):
    batches, ids = history
    report = quiet(topic(ids), batches)
    assert report.ok, report.violations


@given(histories(), st.data())
@settings(max_examples=150)
def test_any_corruption_of_a_correct_history_is_found_under_its_name(history, data):
    batches, ids = history
    kind = data.draw(
        st.sampled_from(
            ["drop", "duplicate", "alien", "undecided", "partial", "swap", "key", "late"]
        )
    )
    at = data.draw(st.integers(0, len(ids) - 1))
    keys = None
    if kind == "drop":
        ids.pop(at)
        expected = findings.LOST
    elif kind == "duplicate":
        ids.insert(data.draw(st.integers(0, len(ids))), ids[at])
        expected = findings.DUPLICATED
    elif kind == "alien":
        ids.insert(at, -data.draw(st.integers(1, 2**40)))
        expected = findings.ALIEN
    elif kind == "undecided":
        ids.insert(at, batches * ROWS + data.draw(st.integers(0, 2**40)))
        expected = findings.UNDECIDED
    elif kind == "partial":
        batch = ids[at] // ROWS
        keep = data.draw(st.integers(1, ROWS - 1))
        ids = [row for row in ids if row // ROWS != batch or row % ROWS < keep]
        expected = findings.TORN
    elif kind == "swap":
        # Two rows of one key and one task change places.
        others = [
            i
            for i, row in enumerate(ids)
            if row % KEYS == ids[at] % KEYS and row // ROWS != ids[at] // ROWS
        ]
        if not others:
            return
        other = data.draw(st.sampled_from(others))
        ids[at], ids[other] = ids[other], ids[at]
        expected = findings.MISORDERED
    elif kind == "key":
        keys = numbers(ids) % KEYS
        keys[at] = (keys[at] + 1) % KEYS
        expected = findings.WRONG_KEY
    else:
        # A row that comes behind those of a later batch of its key.
        later = [
            i
            for i, row in enumerate(ids)
            if row % KEYS == ids[at] % KEYS and row // ROWS > ids[at] // ROWS
        ]
        if not later:
            return
        ids.insert(later[-1], ids.pop(at))
        expected = findings.MISORDERED
    report = quiet(topic(ids, keys=keys), batches)
    assert expected in report.kinds()
    assert not report.ok


# --- while drivers run ----------------------------------------------------------------------------


def watch(*looks, whole=("files",), **more):
    """Feed looks, each of (ids in the topic, ids in files, number of decided batches), a second
    apart."""
    check = RunningCheck(TRUTH, whole=whole, **more)
    for second, (out, files, decided) in enumerate(looks):
        views = {"out": table(out), "files": table(files)}
        check.observe(
            {sink: rows for sink, rows in views.items() if rows is not None},
            range(decided),
            at_s=second,
        )
    return check.report()


def test_a_run_in_which_sinks_are_one_decided_batch_apart_is_not_blamed():
    report = watch(
        (through(0), through(0), 0),
        (through(0), through(0), 1),
        (range(7), through(1), 1),
        (through(1), through(1), 2),
        (through(1), through(2), 2),
        (through(2), through(2), 3),
    )
    assert report.ok, report.violations
    assert report.sinks["out"].records == 2 * ROWS


def test_a_decision_between_reading_sinks_and_log_is_no_reason_for_blame():
    # Both the end of one batch and the decision of the next came behind the reading of the sinks.
    assert watch(
        (through(1), through(1), 1), (through(1), through(1), 4), (through(3), through(3), 4)
    ).ok


def test_a_visible_batch_that_is_not_decided_yet_is_reported():
    report = watch((through(2), through(1), 1), (through(2), through(2), 2))
    assert only(report) == findings.UNDECIDED


def test_a_part_of_a_batch_is_reported_where_batches_are_whole():
    report = watch(
        (through(1), through(1), 2), (through(1), range(27), 2), (through(2), through(2), 2)
    )
    assert only(report) == findings.TORN
    assert report.sinks["files"].torn == 1


def test_a_sink_that_is_two_decided_batches_behind_is_reported():
    report = watch(
        (through(1), through(1), 2), (through(2), through(2), 3), (range(27), through(3), 4)
    )
    assert findings.BEHIND in report.kinds()
    report = watch(
        (through(1), through(1), 1), (through(1), through(1), 3), (through(1), through(3), 3)
    )
    assert only(report) == findings.BEHIND


def test_a_sink_may_take_a_while_to_show_what_is_complete_but_not_for_ever():
    looks = [(through(1), through(1), 3)] + [(through(1), through(3), 3)] * 3
    assert watch(*looks, settle_s={"out": 10}).ok
    assert only(watch(*looks, settle_s={"out": 2})) == findings.BEHIND


def test_reads_that_go_back_are_reported():
    report = watch(
        (through(2), through(2), 2), (range(39), through(2), 2), (through(2), through(2), 2)
    )
    assert only(report) == findings.WENT_BACK
    report = watch((through(2), through(2), 2), (through(2), through(1), 2))
    assert only(report) == findings.WENT_BACK


def test_a_duplicate_and_a_stranger_are_reported_while_running():
    assert only(watch((through(1), [*through(1), 5], 1))) == findings.DUPLICATED
    assert only(watch((through(1), [*through(1), -1], 1))) == findings.ALIEN


def test_a_decision_that_is_gone_is_reported():
    assert only(watch((through(1), through(1), 2), (through(1), through(1), 1))) == findings.LOG


def test_a_sink_that_is_away_for_a_look_is_not_blamed():
    check = RunningCheck(TRUTH)
    check.observe({"out": table(through(1)), "files": table(through(1))}, range(1), at_s=0)
    check.observe({"out": table(through(2))}, range(2), at_s=1)
    check.observe({"out": table(through(3)), "files": table(through(3))}, range(3), at_s=2)
    assert check.report().ok
    assert check.looks == 3


def test_looks_that_never_showed_a_row_fail():
    assert only(RunningCheck(TRUTH).report()) == findings.NOTHING_READ
    assert (
        only(watch((through(0), through(0), 0), (through(1), through(0), 1)))
        == findings.NOTHING_READ
    )


def test_the_same_is_said_once():
    report = watch(*[(through(1), [*through(1), 5], 1)] * 50)
    assert len(report.violations) == 1


@st.composite
def runs(draw):
    """Looks at a correct run: for each, how far each sink and the log had come by then."""
    looks, decided, done, out, files = [], 0, 0, 0, 0
    for _ in range(draw(st.integers(2, 12))):
        out = draw(st.integers(max(out, done * ROWS), decided * ROWS))
        files = draw(st.integers(max(files, done), decided))
        for _ in range(draw(st.integers(0, 3))):
            # The newest batch becomes complete everywhere, and then the next one is decided.
            done, decided = decided, decided + 1
        looks.append((range(out), through(files), decided))
    looks.append((through(decided), through(decided), decided))
    return looks


@given(runs())
@settings(max_examples=80)
def test_a_correct_run_is_never_blamed(looks):
    report = watch(*looks)
    assert report.violations == () or (
        report.kinds() == {findings.NOTHING_READ} and looks[-1][2] == 0
    )


# --- the commit log -------------------------------------------------------------------------------

QUERY = "7f000001-0000-4000-8000-000000000001"


def name(batch, generation=0, slot=0):
    return str(TransactionName(QUERY, "files-abc", generation, batch, 0, 0, 0, slot))


def commit(batch, generation=0, *, digest=7, slots=(0,)):
    committables = {"files": tuple({"name": name(batch, generation, slot)} for slot in slots)}
    return Commit(batch, (str(batch),), committables, {"files": (Digest(ROWS, digest),)})


def staying(**changes):
    """A second decision of batch 0, in which a transaction of the first one stays."""
    return replace(commit(0, 1, **changes), committables=commit(0).committables)


def claim():
    return Claim(QUERY, "run", "/checkpoint")


def chain(*entries):
    return list(enumerate(entries))


def kinds(*chains, **more):
    return [each.kind for each in check_log(LogView(dict(enumerate(chains))), **more)]


RIGHT = (
    chain(claim(), commit(0), Done(0), commit(1), Seal(0, 3, done=False)),
    chain(claim(), Done(1), commit(2, 1), Done(2), commit(3, 1), Seal(1, 4, done=False)),
    chain(claim(), commit(3, 2), Done(3)),
)
SEEN = {"files": {0: [name(0)], 1: [name(1)], 2: [name(2, 1)], 3: [name(3, 2)]}}


def test_a_log_with_one_effective_decision_per_batch_is_not_blamed():
    log = LogView(dict(enumerate(RIGHT)))
    assert (
        check_log(log, spark_committed=3, attempts=SEEN, unanswered=[(0, 1), (1, 4), (0, 2)]) == ()
    )
    assert check_log(log, spark_committed=2) == ()
    assert log.decided() == range(4)
    assert log.newest_done == 3
    assert log.effective[3][0] == 2
    assert LogView({}).decided() == range(0)


@pytest.mark.parametrize(
    "redo",
    [
        pytest.param(lambda: commit(0, 1, digest=8), id="of all, with other rows"),
        pytest.param(lambda: staying(), id="of a part"),
        pytest.param(
            lambda: replace(staying(), digests={"files": (Digest(ROWS - 1, 3), Digest(1, 4))}),
            id="of a part, divided otherwise",
        ),
        pytest.param(
            lambda: replace(staying(digest=8), losses=({"choice": "giveUp"},)),
            id="that a person has paid for",
        ),
    ],
)
def test_a_batch_that_was_lost_may_be_decided_again(redo):
    assert (
        kinds(chain(claim(), commit(0), Seal(0, 1, done=False)), chain(claim(), redo(), Done(0)))
        == []
    )


def test_a_log_from_which_old_entries_were_cleaned_is_not_blamed():
    cleaned = [(0, claim()), (4, Seal(0, 3, done=False))]
    assert kinds(cleaned, *RIGHT[1:], spark_committed=3) == []
    assert LogView({0: cleaned}).is_cleaned


GHOST = {"files": {10: [name(10)], 11: [name(11)], 12: [name(12)]}}


@pytest.mark.parametrize("is_cleaned", [False, True], ids=["whole", "cleaned"])
@pytest.mark.parametrize(
    ("entries", "more", "expected"),
    [
        ([commit(10), Done(10), commit(12)], {"attempts": GHOST},
         {findings.LOG, findings.UNDECIDED}),
        ([commit(10), commit(11), commit(12)], {}, {findings.LOG}),
        ([commit(10), Done(10), Done(99)], {}, {findings.LOG}),
        ([commit(10), Done(10), Seal(0, 9, done=False)], {}, {findings.LOG}),
        ([commit(10), Done(10)], {"unanswered": [(0, 11)]}, {findings.UNRESOLVED}),
        ([commit(10), Done(10), commit(11), Done(11), Seal(0, 5, done=True)],
         {"attempts": {"files": {10: [name(10)], 11: [name(11)], 12: [name(12)]}},
          "unanswered": [(0, 12)]},
         {findings.UNDECIDED, findings.UNRESOLVED}),
    ],
    ids=["gap", "before DONE", "strange DONE", "wrong SEAL", "may appear", "ghost"],
)  # fmt: skip
def test_what_was_cleaned_away_excuses_nothing_behind_it(entries, more, expected, is_cleaned):
    head = [(0, claim()), *([] if is_cleaned else enumerate([commit(9), Done(9)], 1))]
    seen = dict(more)
    if "attempts" in seen and not is_cleaned:
        seen["attempts"] = {"files": {9: [name(9)], **seen["attempts"]["files"]}}
    log = LogView({0: [*head, *enumerate(entries, 3)]})
    assert log.is_cleaned == is_cleaned
    assert {each.kind for each in check_log(log, **seen)} == expected


def test_around_a_gap_nothing_is_said_of_decisions_that_may_have_been_there():
    seen = {"files": {3: ["a"], 4: ["b"], 6: ["c"], 7: [name(7)]}}
    undone = [(0, claim()), (4, commit(4)), (9, commit(7)), (10, Done(7))]
    assert check_log(LogView({0: undone}), attempts=seen) == ()
    complete = [(0, claim()), (4, commit(4)), (5, Done(4)), *undone[2:]]
    assert [each.kind for each in check_log(LogView({0: complete}), attempts=seen)] == [
        findings.UNDECIDED, findings.LOST
    ]  # fmt: skip
    # Chains that went as a whole are a gap, too.
    dropped = LogView({0: chain(claim(), commit(0)), 7: chain(claim(), commit(7, 7))})
    assert {each.kind for each in check_log(dropped, unanswered=[(3, 5)])} == {findings.LOG}
    assert LogView({7: chain(claim())}, is_dropped=True).is_cleaned


@pytest.mark.parametrize("keep_ends", [False, True])
@pytest.mark.parametrize("retain", [1, 2, 5])
def test_a_real_log_is_not_blamed_however_much_of_it_is_cleaned(tmp_path, retain, keep_ends):
    """Each run leaves its last batch undone, and every other one decides the batch anew."""
    store = LocalStore(tmp_path / "onceforall")
    log = CommitLog(store, retain_commits=retain, keep_ends=keep_ends)
    observer, seen, batch = CommitLogObserver(tmp_path), {}, -1
    for run in range(12):
        generation = log.claim(claim()).generation
        log.seal_below(generation)
        for number in range(run % 4):
            if number == 0 and run % 2 and batch >= 0:
                redo = ({"name": name(batch, generation)},)
                log.append(generation, replace(commit(batch), committables={"files": redo}))
            else:
                if batch >= 0:
                    log.append(generation, Done(batch))
                batch += 1
                log.append(generation, commit(batch, generation))
            seen[batch] = [name(batch, generation)]
        log.clean(generation)
        assert check_log(observer.view(), attempts={"files": seen}) == ()
    assert observer.view().is_cleaned
    seen[batch] = [*seen[batch], name(batch, 99)]
    assert [each.kind for each in check_log(observer.view(), attempts={"files": seen})] == [
        findings.UNDECIDED
    ]


@pytest.mark.parametrize(
    "chains",
    [
        (chain(claim(), commit(0), commit(0)),),
        (chain(claim(), commit(0), Done(0), commit(0)),),
        (chain(claim(), commit(0), Done(0), Seal(0, 1, done=True)), chain(claim(), commit(0, 1))),
        (chain(claim(), commit(0), Seal(0, 1, done=False)), chain(claim(), staying(digest=8))),
        (chain(claim(), commit(0), commit(1)),),
        (chain(claim(), commit(0), Done(0), commit(2)),),
        (chain(claim(), commit(1), Done(1), commit(0)),),
        (chain(claim(), commit(0), Done(1)),),
        (chain(claim(), commit(0), Seal(None, None, done=False)), chain(claim(), Done(0))),
        (chain(claim(), commit(0), Done(0)), chain(claim(), commit(1, 1))),
    ],
    ids=["twice", "twice after DONE", "redone after DONE", "redo with other rows", "before DONE", "gap", "backwards", "strange DONE",
         "wrong SEAL", "no SEAL"],
)  # fmt: skip
def test_a_log_that_contradicts_itself_is_reported(chains):
    assert set(kinds(*chains)) == {findings.LOG}


@pytest.mark.parametrize("committed", [4, 1])
def test_a_log_that_contradicts_sparks_own_is_reported(committed):
    assert kinds(*RIGHT, spark_committed=committed) == [findings.LOG]


def test_a_visible_attempt_that_is_not_the_decided_one_is_reported():
    ghost = {"files": {**SEEN["files"], 3: [name(3, 2), name(3, 1)]}}
    assert kinds(*RIGHT, attempts=ghost) == [findings.UNDECIDED]
    early = {"files": {**SEEN["files"], 4: [name(4, 2)]}}
    assert kinds(*RIGHT, attempts=early) == [findings.UNDECIDED]


def test_a_decided_attempt_that_is_not_visible_is_reported():
    assert kinds(*RIGHT, attempts={"files": {**SEEN["files"], 3: []}}) == [findings.LOST]
    assert kinds(
        *RIGHT, attempts={"files": {b: n for b, n in SEEN["files"].items() if b != 1}}
    ) == [findings.LOST]


def test_an_outcome_that_is_still_unknown_is_reported():
    # Nobody has sealed generation 2: the entry may still appear.
    assert kinds(*RIGHT, unanswered=[(2, 4)]) == [findings.UNRESOLVED]


def test_an_outcome_that_became_both_is_reported():
    sealed = (
        *RIGHT[:2],
        chain(claim(), Seal(1, 4, done=False)),
        chain(claim(), commit(3, 3), Done(3)),
    )
    seen = {"files": {**SEEN["files"], 3: [name(3, 3)]}}
    assert kinds(*sealed, attempts=seen, unanswered=[(2, 3)]) == []
    both = {"files": {**SEEN["files"], 3: [name(3, 3), name(3, 2)]}}
    assert set(kinds(*sealed, attempts=both, unanswered=[(2, 3)])) == {
        findings.UNDECIDED,
        findings.UNRESOLVED,
    }


def test_a_ghost_of_an_older_generation_is_one_of_an_unanswered_decision_too():
    """A redo names what an earlier generation prepared."""
    sealed = (
        *RIGHT[:2],
        chain(claim(), Seal(1, 4, done=False)),
        chain(claim(), commit(3, 3), Done(3)),
    )
    older = {"files": {**SEEN["files"], 3: [name(3, 3), name(3, 1)]}}
    assert findings.UNRESOLVED in kinds(*sealed, attempts=older, unanswered=[(2, 3)])


def test_every_kind_of_violation_is_planted_here_or_in_the_test_of_contents():
    files = [Path(__file__), Path(__file__).with_name("test_contents.py")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    names = {
        constant: value
        for constant, value in vars(findings).items()
        if constant.isupper() and isinstance(value, str)
    }
    assert set(names.values()) == set(findings.KINDS)
    assert [constant for constant in names if f"findings.{constant}" not in text] == []


def test_the_example_of_the_documentation_says_what_the_page_says(capsys):
    page = (Path(__file__).parents[2] / "docs" / "checker.md").read_text(encoding="utf-8")
    example, said = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL).groups()
    exec(compile(example, "checker.md", "exec"), {})
    assert capsys.readouterr().out == said


def test_the_page_and_the_package_name_every_kind_of_violation():
    page = (Path(__file__).parents[2] / "docs" / "checker.md").read_text(encoding="utf-8")
    assert [kind for kind in findings.KINDS if f"`{kind}`" not in page] == []
    assert [kind for kind in findings.KINDS if kind not in checker.__doc__] == []
