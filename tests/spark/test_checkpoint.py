"""What is read of Spark's own files."""

import os

import pytest

from onceforall.errors import CheckpointMismatchError, CommitLogError
from onceforall.spark import checkpoint as spark_checkpoint


def test_the_offsets_of_all_sources_are_a_batchs_offsets(tmp_path):
    """Those of the first alone would let a replay with other input of the second pass for the
    decided batch."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(
        'v1\n{"batchWatermarkMs":0}\n{"a":{"0":1}}\n{"b":{"0":2}}\n-'
    )
    assert spark_checkpoint.offsets_of(tmp_path, 3) == ('{"a":{"0":1}}', '{"b":{"0":2}}', "-")
    assert spark_checkpoint.header_of(tmp_path, 3) == ("v1", '{"batchWatermarkMs":0}')
    assert spark_checkpoint.known_plan_of(tmp_path, 4) == ()


def test_the_folder_that_a_killed_start_has_left_makes_no_batch_one_of_ours(tmp_path):
    """The plain query goes on behind it, and its next batch may be visible in part."""
    for name in ("offsets/0", "commits/0", "offsets/1"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('v1\n{}\n{"a":{"0":1}}')
    (tmp_path / "onceforall").mkdir()
    with pytest.raises(CheckpointMismatchError, match="Batch 1 .*begun without onceforall"):
        spark_checkpoint.check_take_over(tmp_path, None)


def test_a_plan_that_is_no_text_is_refused_as_damaged(tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "4").write_bytes(b"v1\n\xff\n{}")
    with pytest.raises(CheckpointMismatchError, match=r"offsets/4 is no text: .* It is damaged\."):
        spark_checkpoint.plan_of(tmp_path, 4)
    assert spark_checkpoint.known_plan_of(tmp_path, 4) == ()


READ = [
    spark_checkpoint.keeps_state,
    spark_checkpoint.last_planned,
    spark_checkpoint.last_committed,
]


@pytest.mark.parametrize("read", READ)
def test_a_checkpoint_that_is_no_folder_is_refused_by_its_name(tmp_path, read):
    (tmp_path / "cp").write_text("")
    with pytest.raises(CommitLogError, match=r"cannot list .*/cp/.* \(ENOTDIR\)\. .*correct check"):
        read(tmp_path / "cp")
    assert not read(tmp_path) or read(tmp_path) == -1


@pytest.mark.parametrize("read", READ)
def test_a_checkpoint_of_somebody_else_is_refused_by_its_name(tmp_path, read, monkeypatch):
    def refusing(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refusing)
    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(CommitLogError, match=r"cannot list .* \(EACCES\)\. .*may read and write"):
        read(tmp_path)
