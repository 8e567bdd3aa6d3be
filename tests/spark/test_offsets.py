"""What a person is told about a batch's input, for each kind of source, as Spark 4 writes its
offset log."""

import json

import pytest

from commit_log.test_remote import ScriptedClient
from onceforall.errors import CommitLogError
from onceforall.spark.offsets import describe_batch
from onceforall.spark.remote_path import RemotePath

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795264652177,"conf":{}}'


@pytest.fixture
def checkpoint(tmp_path):
    class Checkpoint:
        path = tmp_path

        def plan(self, batch, *lines, version="v1"):
            file = tmp_path / "offsets" / str(batch)
            file.parent.mkdir(exist_ok=True)
            file.write_text(
                "\n".join(
                    [
                        version,
                        METADATA,
                        *(x if isinstance(x, str) else json.dumps(x) for x in lines),
                    ]
                )
            )

        def source(self, source, number, content):
            file = tmp_path / "sources" / str(source) / str(number)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

        def described(self, batch):
            return describe_batch(tmp_path, batch)

    return Checkpoint()


def test_kafka_offsets_are_told_by_partition_and_those_that_do_not_move_are_left_out(checkpoint):
    checkpoint.plan(6, {"clicks": {"0": 120, "1": 7, "10": 0}, "orders": {"0": 5}})
    checkpoint.plan(7, {"clicks": {"10": 3, "0": 240, "1": 7, "2": 9}, "orders": {"0": 6}})
    assert (
        checkpoint.described(7)
        == "source 0: clicks[0]: 120..240, clicks[2]: ?..9, clicks[10]: 0..3, orders[0]: 5..6 "
        "(each range without its end)"
    )


def test_the_first_batch_of_a_kafka_source_begins_where_its_own_log_says(checkpoint):
    checkpoint.source(0, 0, b'\x00v1\n{"clicks":{"0":100}}')
    checkpoint.plan(0, {"clicks": {"0": 120}})
    assert checkpoint.described(0) == "source 0: clicks[0]: 100..120 (each range without its end)"


def test_a_source_without_news_says_so(checkpoint):
    checkpoint.plan(1, {"clicks": {"0": 120}})
    checkpoint.plan(2, {"clicks": {"0": 120}})
    assert checkpoint.described(2) == "source 0: nothing new"


def test_many_partitions_are_cut(checkpoint):
    checkpoint.plan(0, {"clicks": {str(n): 0 for n in range(100)}})
    checkpoint.plan(1, {"clicks": {str(n): 1 for n in range(100)}})
    described = checkpoint.described(1)
    assert described.endswith("clicks[11]: 0..1 and 88 more (each range without its end)")


def test_files_are_named(checkpoint):
    for number in range(3):
        entry = {"path": f"file:///in/part%20{number}.json", "timestamp": 1, "batchId": number}
        checkpoint.source(0, number, f"v1\n{json.dumps(entry)}".encode())
    checkpoint.plan(4, {"logOffset": 0})
    checkpoint.plan(5, {"logOffset": 2})
    assert (
        checkpoint.described(5)
        == "source 0: the files file:///in/part 1.json, file:///in/part 2.json"
    )
    (checkpoint.path / "sources" / "0" / "2").unlink()
    assert (
        checkpoint.described(5)
        == f"source 0: the files of its log from 1 to 2 ({checkpoint.path / 'sources' / '0'})"
    )


def test_numbers_unknown_sources_and_sources_without_data(checkpoint):
    checkpoint.plan(0, 100, "-", {"shard": "a", "at": [1]}, "not json")
    checkpoint.plan(1, 200, "-", {"shard": "a", "at": [2]}, "not json either")
    assert checkpoint.described(1) == (
        'source 0: 100..200; source 2: from {"shard": "a", "at": [1]} to {"shard": "a", "at": '
        "[2]}; "
        "source 3: from not json to not json either"
    )
    checkpoint.plan(1, {"long": "x" * 1000})
    assert len(checkpoint.described(1)) < 400


def test_named_sources_of_the_second_version_are_told_by_name(checkpoint):
    checkpoint.plan(0, 'orders:{"t":{"0":1}}', "clicks:-", version="v2")
    checkpoint.plan(1, "clicks:5", 'orders:{"t":{"0":2}}', version="v2")
    assert (
        checkpoint.described(1)
        == "source clicks: ?..5; source orders: t[0]: 1..2 (each range without its end)"
    )


@pytest.mark.parametrize("content", ["", "v1", "v1\n"])
def test_a_damaged_file_is_said_to_be_unreadable(checkpoint, content):
    checkpoint.plan(3, 1)
    (checkpoint.path / "offsets" / "3").write_text(content)
    assert "can't be read" in checkpoint.described(3)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[]",
        "null",
        "true",
        '{"t":{}}',
        '{"t":{"0":null}}',
        '{"logOffset":"x"}',
        '{"t":{"a":1}}',
    ],
)
def test_no_line_of_any_source_is_an_error(checkpoint, line):
    for before in (line, "-", '{"t":{"0":1}}'):
        checkpoint.plan(0, before)
        checkpoint.plan(1, line)
        assert checkpoint.described(1).startswith("source 0: ")


class AwayClient(ScriptedClient):
    def read(self, key):
        raise CommitLogError(f"cannot read {key}: time-out")


def test_a_store_that_does_not_answer_leaves_the_input_unknown():
    assert "unknown, for s3a://bucket" in describe_batch(RemotePath(AwayClient()), 3)


@pytest.mark.parametrize(
    ("offset", "said"), [({"t": {"0": 5}}, "t[0]: ?..5"), ({"logOffset": 3}, "from 0 to 3")]
)
def test_a_store_that_answers_no_more_leaves_where_a_source_began_unknown(offset, said):
    client = ScriptedClient()

    def read(key):
        if key.startswith("sources"):
            raise CommitLogError(f"cannot read {key}: time-out")
        return client.contents.get(key)

    client.contents["offsets/0"] = f"v1\n{METADATA}\n{json.dumps(offset)}".encode()
    client.read = read
    assert said in describe_batch(RemotePath(client), 0)
