"""The plan of kills, and what is read of a checkpoint."""

from __future__ import annotations

import json
from collections import Counter

from onceforall.demo.ads import progress
from onceforall.demo.ads.faults import BROKER, CLOSING, JOB, MINIMUM_KILLS, POSTGRES, WORKERS, plan
from onceforall.demo.ads.jobs import JOBS


def test_every_seed_kills_every_job_workers_and_both_servers():
    for seed in range(50):
        faults = plan(seed)
        assert faults == plan(seed)
        # Even if no worker were found.
        assert sum(fault.kind != WORKERS for fault in faults) >= MINIMUM_KILLS
        assert {
            fault.target for fault in faults if fault.kind == JOB and fault.share < CLOSING
        } == set(JOBS)
        assert {BROKER, POSTGRES, WORKERS} < {fault.kind for fault in faults}
        assert [fault.share for fault in faults] == sorted(fault.share for fault in faults)
        # Cleanse is ended before the others write their last windows.
        assert all(fault.target != "cleanse" for fault in faults if fault.share >= CLOSING)


def test_seeds_differ_in_what_is_killed_first():
    assert len(Counter((plan(seed)[0].kind, plan(seed)[0].target) for seed in range(50))) > 5


def checkpoint_with(folder, *lines):
    for name in ("offsets", "commits"):
        (folder / name).mkdir()
    (folder / "commits" / "4").write_text("v1\n{}")
    (folder / "offsets" / "4").write_text("\n".join(["v1", "{}", *lines]))
    return folder


def test_offsets_of_all_sources_are_read(tmp_path):
    lines = [json.dumps({"views": {"0": 5, "1": 7}}), json.dumps({"clicks": {"0": 3}})]
    checkpoint = checkpoint_with(tmp_path, *lines)
    assert progress.taken(checkpoint) == {("views", 0): 5, ("views", 1): 7, ("clicks", 0): 3}


def test_a_source_that_has_had_nothing_yet_hides_none_of_the_others(tmp_path):
    checkpoint = checkpoint_with(tmp_path, "-", json.dumps({"clicks": {"0": 3}}))
    assert progress.taken(checkpoint) == {("clicks", 0): 3}


def test_a_checkpoint_that_is_not_there_or_half_written_says_nothing(tmp_path):
    assert progress.taken(tmp_path / "none") == {}
    assert progress.taken(checkpoint_with(tmp_path, '{"views": {"0"')) == {}
