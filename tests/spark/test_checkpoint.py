"""What is read of Spark's own files."""

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
