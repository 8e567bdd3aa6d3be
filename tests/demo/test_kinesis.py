"""``onceforall demo kinesis``: what it refuses, how it compares, and the whole of it."""

import json
from collections import Counter

import pytest

from onceforall.cli import main
from onceforall.demo.kinesis.feed import Feed
from onceforall.demo.kinesis.main import compared

TRUTH = Counter({("a", 0): 3, ("a", 600): 1, ("b", 0): 2})
RIGHT = [(("a", 0), 3), (("a", 600), 1), (("b", 0), 2)]


def bad(read):
    account = compared(TRUTH, read)
    assert (account["expected"], account["read"]) == (3, len(read))
    return {word: account[word] for word in ("lost", "doubled", "wrong") if account[word]}


def test_every_difference_from_the_truth_is_counted():
    assert bad(RIGHT) == {}
    assert bad(RIGHT[1:]) == {"lost": 1}
    assert bad([]) == {"lost": 3}
    assert bad([*RIGHT, RIGHT[0], RIGHT[0]]) == {"doubled": 2}
    assert bad([*RIGHT, (("c", 0), 1)]) == {"doubled": 1}
    assert bad([(("a", 0), 4), *RIGHT[1:]]) == {"wrong": 1}
    assert bad([*RIGHT, (("a", 0), 1)]) == {"doubled": 1, "wrong": 1}


class OneShard:
    """What of a Kinesis client is asked when a stream has one open shard."""

    def __init__(self):
        self.split = []

    def list_shards(self, **_):
        keys = {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)}
        numbers = {"StartingSequenceNumber": "1"}
        return {"Shards": [{"ShardId": "s", "HashKeyRange": keys, "SequenceNumberRange": numbers}]}

    def split_shard(self, ShardToSplit, **_):  # noqa: N803  as boto3 calls it
        self.split.append(ShardToSplit)


def test_a_stream_of_one_shard_is_split_whatever_is_drawn():
    client = OneShard()
    for seed in range(20):
        assert Feed(client, "views", seed, 1).reshard() == "s is split"
    assert client.split == ["s"] * 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kills", "2"], "--kills 2 shows too little: 3 at least"),
        (["--kills", "4", "--events", "3999"], "too few for 4 kills: 4,000 at least"),
        (["--seed", "-1"], "--seed -1 is negative"),
    ],
)
def test_what_can_not_be_run_is_told_before_anything_starts(capsys, tmp_path, options, said):
    assert main(["demo", "kinesis", "--out", str(tmp_path / "out"), *options]) != 0
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_the_whole_demo_ends_with_the_truth_in_both_sinks(tmp_path):
    out = tmp_path / "out"
    assert main(["demo", "kinesis", "--kills", "3", "--events", "3000", "--out", str(out)]) == 0
    report = json.loads((out / "report.json").read_text())
    assert (report["kills"], report["reshardings"], report["events"]) == (3, 2, 3000)
    for sink in report["sinks"].values():
        assert sink["expected"] > 100
        assert sink == {**sink, "read": sink["expected"], "lost": 0, "doubled": 0, "wrong": 0}
