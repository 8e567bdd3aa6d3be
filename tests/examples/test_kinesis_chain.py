"""The example with two Kinesis streams: a kill -9 puts views twice into the second stream, and the
files have each once."""

import json
from collections import Counter
from pathlib import Path

import pytest

import onceforall as ofa
from support.chains import run_program
from support.kinesis import Stream

pytestmark = [pytest.mark.spark]

EXAMPLE = Path(__file__).parents[2] / "examples" / "kinesis_chain"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_view_is_in_the_files_once_though_it_is_twice_in_the_stream_between(
    kinesis_server, tmp_path
):
    raw, clean = Stream(kinesis_server, shards=2), Stream(kinesis_server, shards=2)
    environment = {
        "AWS_ENDPOINT_URL": kinesis_server.endpoint,
        "AWS_ACCESS_KEY_ID": kinesis_server.access_key,
        "AWS_SECRET_ACCESS_KEY": kinesis_server.secret_key,
        "AWS_DEFAULT_REGION": kinesis_server.region,
    }

    def run(program, *arguments, **more):
        run_program(EXAMPLE / program, arguments, tmp_path, **environment, **more)

    def put(numbers):
        for n in numbers:
            view = {"page": f"/{n}", "user": f"u{n % 5}"} if n % 4 else {"user": f"u{n}"}
            raw.client.put_record(
                StreamName=raw.name, PartitionKey=f"{n}", Data=json.dumps(view).encode()
            )

    put(range(40))
    cleaning = clean.name, str(tmp_path / "clean")
    loading = clean.name, str(tmp_path / "lake"), str(tmp_path / "load")
    run("clean.py", raw.name, *cleaning, armed="append_commit.before=kill@1", ends=-9)
    run("load.py", *loading)
    raw.split()
    put(range(40, 60))
    run("clean.py", raw.name, *cleaning)
    run("load.py", *loading)
    expected = Counter(f"/{n}" for n in range(60) if n % 4)
    between = Counter(json.loads(record["Data"])["page"] for record in clean.records())
    assert between.keys() == expected.keys()
    assert max(between.values()) == 2
    found = ofa.read_files(str(tmp_path / "lake")).to_arrow()["page"].to_pylist()
    assert Counter(found) == expected
