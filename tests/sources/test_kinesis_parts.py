"""Parts of the Kinesis source that need no server: options, aggregated records, pickles."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import boto3
import pytest

from onceforall import sources
from onceforall.common.aws import Access, make_client
from onceforall.errors import MissingExtraError, OptionError, SourceError
from onceforall.sources.kinesis import aggregates
from onceforall.sources.kinesis.aggregates import unpacked
from onceforall.sources.kinesis.client import Shards
from onceforall.sources.kinesis.lineage import Shard, orphans
from onceforall.sources.kinesis.options import parse
from onceforall.sources.kinesis.positions import Position
from onceforall.sources.kinesis.source import KinesisReader
from support.kinesis import Query

# Made by aws-kinesis-agg 1.2.3: four records, two of them with an explicit hash key.
PACKED = bytes.fromhex(
    "f3899ac20a046b6579300a046b657931121f31323637363530363030323238323239343031343936373033323035333737"
    "121f313236373635303630303232383232393430313439363730333230353337391a0908001a0564617461301a0b080110"
    "001a0564617461311a0908001a0564617461321a0b080110011a05646174613372407938f255c9cce539f502a95b84b7"
)
FOUR = [("key0", b"data0"), ("key1", b"data1"), ("key0", b"data2"), ("key1", b"data3")]


def test_an_aggregated_record_is_unpacked():
    assert unpacked(PACKED, "a") == FOUR


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"plain",
        PACKED[:4],
        PACKED[:20],
        PACKED[:-1],
        b"\0" + PACKED[1:],
        PACKED[:-1] + b"\0",
        PACKED[:10] + b"\0" + PACKED[11:],
    ],
    ids=range(8),
)
def test_whatever_is_not_exactly_an_aggregate_is_a_record_as_it_is(data):
    assert unpacked(data, "a") == [("a", data)]


def test_an_aggregate_is_one_record_to_positions_and_its_rows_have_numbers(stream):
    source = stream()
    source.client.put_record(StreamName=source.name, PartitionKey="a", Data=PACKED)
    source.client.put_record(StreamName=source.name, PartitionKey="b", Data=b"plain")
    source.client.put_record(StreamName=source.name, PartitionKey="a", Data=PACKED)
    query = source.query(maxRecordsPerTrigger="2")
    batches = []
    while query.plan():
        batches.append(
            [(row["partitionKey"], row["data"], row["subSequenceNumber"]) for row in query.rows()]
        )
    four = [(key, data, place) for place, (key, data) in enumerate(FOUR)]
    # A position never splits an aggregate, though it has more rows than the limit.
    assert [row for batch in batches for row in batch] == [*four, ("b", b"plain", 0), *four]
    assert [len(batch) for batch in batches] in ([4, 1, 4], [4, 5], [5, 4])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs a stream"),
        ({"streamName": "a b"}, "neither the name nor the ARN"),
        ({"streamName": "a,a"}, "named twice"),
        ({"streamName": "a", "kinesis.streamName": "b"}, "given twice"),
        ({"streamArn": "arn:aws:sqs:us-east-1:123456789012:a"}, "neither the name nor the ARN"),
        ({"streamName": "a", "awsSecretKey": "hunter2"}, "takes no awsSecretKey: Spark shows"),
        ({"streamName": "a", "consumerType": "EFO"}, "has no option 'consumerType'"),
        ({"streamName": "a", "startingPosition": "yesterday"}, "startingPosition is 'yesterday'"),
        ({"streamName": "a", "startingPosition": "AT_TIMESTAMP 2026-01-01"}, "with its zone"),
        (
            {"streamName": "a", "startingPosition": "AT_TIMESTAMP 0001-01-01T00:00+14:00"},
            "its zone",
        ),
        ({"streamName": "a", "startingPosition": '{"shardId-1": 7}'}, "no usable place"),
        ({"streamName": "a", "startingPosition": "{}"}, "startingPosition is"),
        ({"streamName": "a", "maxRecordsPerTrigger": "0"}, "a whole number of at least 1"),
        ({"streamName": "a", "maxPlanningSeconds": "0"}, "a positive number"),
        ({"streamName": "a", "failOnDataLoss": "yes"}, "true or false"),
        ({"streamName": "a", "endpointUrl": "http://u:hunter2@h"}, "endpointUrl is"),
        ({"streamName": "a", "credentialsFunction": "hunter"}, "module:function"),
        (
            {"streamName": "a", "startingPosition": '{"shardId-1": {"iteratorType": ["x"]}}'},
            "no usable place",
        ),
    ],
    ids=range(18),
)
def test_a_wrong_option_says_what_is_expected_and_shows_no_secret(given, words):
    with pytest.raises(OptionError, match=words) as raised:
        parse(given)
    assert "hunter2" not in str(raised.value)


def test_the_names_of_other_connectors_are_understood():
    found = parse(
        {
            "kinesis.streamName": "a, b",
            "kinesis.startingposition": "earliest",
            "KINESIS.stsRoleArn": "arn:aws:iam::1:role/r",
            "kinesis.stsSessionName": "s",
        }
    )
    assert found.streams == ("a", "b")
    assert found.start.kind == "trim_horizon"
    assert (found.access.role_arn, found.access.role_session_name) == ("arn:aws:iam::1:role/r", "s")
    assert (
        parse({"streamName": "a", "initialPosition": "trim_horizon"}).start.kind == "trim_horizon"
    )
    assert parse({"streamName": "a"}).start.kind == "latest"


def test_an_assumed_role_is_used(stream):
    source = stream()
    source.put(2)
    role = {"roleArn": "arn:aws:iam::123456789012:role/r", "stsEndpointUrl": source.server.endpoint}
    query = source.query(**role)
    assert query.plan()
    assert sorted(query.numbers()) == [0, 1]
    credentials = make_client(query.reader._options.access)._request_signer._credentials
    assert credentials.method == "assume-role"
    assert credentials.access_key != source.server.access_key


def test_a_stream_of_another_account_is_read_by_its_arn(kinesis_server):
    """moto tells accounts by the role that was assumed; it checks no permission."""
    role = "arn:aws:iam::210987654321:role/reader"
    sts = boto3.client("sts", **kinesis_server.client_arguments)
    keys = sts.assume_role(RoleArn=role, RoleSessionName="maker")["Credentials"]
    there = boto3.client(
        "kinesis",
        endpoint_url=kinesis_server.endpoint,
        region_name=kinesis_server.region,
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys["SessionToken"],
    )
    there.create_stream(StreamName="theirs", ShardCount=1)
    there.put_record(StreamName="theirs", PartitionKey="k", Data=b"7")
    options = {
        **kinesis_server.source_options,
        "streamArn": "arn:aws:kinesis:us-east-1:210987654321:stream/theirs",
        "startingPosition": "TRIM_HORIZON",
    }
    with pytest.raises(SourceError, match="There is no Kinesis stream"):
        Query(options).plan()
    query = Query({**options, "roleArn": role, "stsEndpointUrl": kinesis_server.endpoint})
    assert query.plan()
    assert query.numbers() == [7]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("nowhere:session", "can't be imported here"),
        ("onceforall.embedded.kinesis:nothing", "can't be imported here"),
        ("os:getcwd", "returned a str"),
        ("os:sep", "is a str"),
    ],
)
def test_a_function_for_credentials_that_cannot_be_used_is_named(function, words):
    with pytest.raises(OptionError, match=words):
        make_client(Access(region="us-east-1", credentials_function=function))


def test_what_fails_within_a_function_for_credentials_is_no_import():
    with pytest.raises(AttributeError, match="thing"):
        make_client(Access(region="us-east-1", credentials_function=f"{__name__}:broken"))


def broken():
    return None.thing


def test_a_role_without_credentials_to_assume_it_with_is_told(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    role = Access(region="us-east-1", role_arn="arn:aws:iam::123456789012:role/reader")
    with pytest.raises(OptionError, match="NoCredentialsError. Give credentials to each Python"):
        Shards(role).describe("s")


def test_no_secret_is_in_a_pickle_or_an_offset(stream):
    source = stream()
    source.put(2)
    query = source.query()
    assert query.plan()
    parts = query.reader.partitions(*query.ends())
    texts = [pickle.dumps(query.reader), *map(pickle.dumps, parts), repr(query.log).encode()]
    texts += [repr(one).encode() for one in (query.reader, parts, query.reader._options)]
    assert len(parts) == 1
    for text in texts:
        assert source.server.secret_key.encode() not in text


def test_without_boto3_or_protobuf_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtraError, match=r"boto3 .*onceforall\[kinesis\]"):
        make_client(Access())
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    aggregates._message.cache_clear()
    with pytest.raises(MissingExtraError, match=r"protobuf .*onceforall\[kinesis\]"):
        unpacked(PACKED, "a")


def test_the_source_needs_nothing_of_the_driver_and_boto3_only_when_it_reads():
    program = "import sys; import onceforall.sources; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    unwanted = {
        "boto3",
        "google.protobuf",
        "onceforall.driver.doors",
        "onceforall.sinks.kafka.sink",
    }
    assert "onceforall.sources.kinesis.source" in loaded
    assert not unwanted & set(loaded)


def test_register_refuses_what_is_no_session():
    with pytest.raises(OptionError, match=r"^spark is 7\. Give a SparkSession"):
        sources.register(7)


def test_a_reader_on_a_pyspark_before_4_2_needs_no_read_limit():
    assert KinesisReader(parse({"streamName": "a"})).initialOffset() == {"version": 1}


def test_heirs_of_shards_that_are_gone_are_those_that_nobody_else_leads_to():
    listed = {
        name: Shard(name, tuple(parents.split()), is_open)
        for name, parents, is_open in [
            ("done", "gone", False),
            ("tracked", "done", True),
            ("heir", "lost", False),
            ("grandchild", "heir", True),
        ]
    }
    assert orphans({"tracked": Position()}, listed) == ["heir"]
