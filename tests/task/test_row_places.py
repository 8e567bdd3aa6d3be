"""Rows that are kept on a store: they come back, nothing is written twice, and nothing stays; on an
S3 server and on HDFS.
"""

import pickle
import sys

import pyarrow as pa
import pytest

from onceforall.errors import AttemptFailedError, OptionError
from onceforall.sink import TaskAttempt
from onceforall.task.kept_rows import KeptFile, RowKeeper, forget, forget_attempt, read_kept
from onceforall.task.row_places.hdfs import HdfsRows
from onceforall.task.row_places.objects import ObjectRows

ROWS = pa.RecordBatch.from_pydict({"n": pa.array(range(1000), pa.int64())})
KINDS = ["s3", pytest.param("hdfs", marks=pytest.mark.long)]


def place_of(request, kind):
    if kind == "hdfs":
        return HdfsRows(f"{request.getfixturevalue('hdfs_folder')}/rows")
    server, bucket = request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket")
    return ObjectRows(
        f"s3a://{bucket}/logs/ads/rows",
        {
            "endpoint": server.endpoint,
            "region": server.region,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
            "virtual_hosted_style_request": "false",
        },
    )


@pytest.fixture(params=KINDS)
def place(request):
    return place_of(request, request.param)


def in_a_task(place):
    """The place as a task has it."""
    return pickle.loads(pickle.dumps(place)).with_secrets(place.secrets)


def keep(place, batch=0, generation=0, slot=2, rows=ROWS):
    place.make(f"{generation}.{batch}")
    kept = KeptFile(in_a_task(place), TaskAttempt("query", "out", generation, batch, 0, 1, slot))
    kept.add(rows)
    return kept.finish()


def numbers(place, kept):
    return [n for rows in read_kept(in_a_task(place), kept) for n in rows.column(0).to_pylist()]


def test_kept_rows_come_back(place):
    kept = keep(place)
    assert numbers(place, kept) == list(range(1000))
    assert place.exists(kept["file"])
    assert place.folders() == ["0.0"]


def test_many_rows_come_back(place):
    """More than what is held in memory."""
    many = pa.RecordBatch.from_pydict({"text": [f"{n * 7919:0200d}{n}" for n in range(90_000)]})
    kept = KeptFile(in_a_task(place), TaskAttempt("query", "out", 0, 0, 0, 0, 0))
    place.make("0.0")
    for _ in range(20):
        kept.add(many)
    found = list(read_kept(place, kept.finish()))
    assert len(found) == 20
    assert all(each == many for each in found)


def test_a_file_that_is_larger_than_one_request_comes_back(request, monkeypatch):
    monkeypatch.setattr("onceforall.task.row_places.objects._ONE_PUT_BYTES", 100)
    place = place_of(request, "s3")
    assert numbers(place, keep(place)) == list(range(1000))


def test_kept_rows_that_are_damaged_are_refused(place):
    kept = keep(place)
    with pytest.raises(AttemptFailedError, match="are damaged"):
        numbers(place, {**kept, "sha256": "0" * 64})


def test_kept_rows_that_are_gone_are_refused(place):
    with pytest.raises(AttemptFailedError, match=r"rows/0\.0/0-1-2\.arrow can't be read: "):
        numbers(place, {"file": "0.0/0-1-2.arrow", "sha256": "", "rows": 1})


def test_rows_of_a_complete_batch_and_of_lower_ones_are_forgotten_and_no_others(place):
    old, complete, next_one = (
        keep(place, batch, generation) for batch, generation in ((3, 0), (4, 1), (15, 1))
    )
    forget(place, 4)
    assert not place.exists(old["file"])
    assert not place.exists(complete["file"])
    assert place.folders() == ["1.15"]
    assert numbers(place, next_one) == list(range(1000))


def test_rows_of_an_aborted_attempt_are_forgotten_and_no_others(place):
    decided, aborted, other = (
        keep(place, batch, generation) for batch, generation in ((5, 0), (5, 1), (5, 11))
    )
    forget_attempt(place, 1, 5)
    assert not place.exists(aborted["file"])
    assert place.exists(decided["file"])
    assert place.exists(other["file"])


def test_what_is_not_there_is_forgotten_without_an_error(place):
    forget(place, 9)
    forget_attempt(place, 1, 5)


@pytest.mark.long
def test_a_file_is_never_written_over_on_a_file_system(request):
    place = place_of(request, "hdfs")
    kept = keep(place)
    with pytest.raises(AttemptFailedError, match="already exists"):
        keep(place, rows=ROWS.slice(0, 1))
    assert numbers(place, kept) == list(range(1000))


@pytest.mark.long
def test_a_task_makes_no_folder_on_a_file_system(request):
    place = place_of(request, "hdfs")
    kept = KeptFile(place, TaskAttempt("query", "out", 0, 0, 0, 1, 2))
    with pytest.raises(AttemptFailedError, match="Parent directory"):
        kept.add(ROWS)
    assert place.folders() == []


def test_an_attempt_that_is_discarded_leaves_no_open_file(place):
    place.make("0.0")
    kept = KeptFile(place, TaskAttempt("query", "out", 0, 0, 0, 1, 2))
    kept.add(ROWS)
    kept.discard()
    forget(place, 0)
    assert place.folders() == []


def keeper(place, *, required=False):
    return RowKeeper(place, required=required, why_not=lambda batch, frames: "uuid()")


def result_of(kept):
    return {"write": 0, "committable": {"name": "t", "rows": kept}}


def test_a_run_makes_a_folder_and_forgets_it_and_what_earlier_runs_have_left(place):
    keep(place, batch=1, generation=0)
    of_run = keeper(place)
    for batch in range(2, 6):
        assert of_run.keeping(None, [], 3, batch).required is False
        keep(place, batch, 3)
        of_run.forget(batch)
        assert place.folders() == []


def test_rows_that_could_not_be_deleted_go_with_a_later_batch(place, monkeypatch):
    of_run = keeper(place)

    def run(batch):
        assert of_run.keeping(None, [], 3, batch).required is False
        keep(place, batch, 3)
        of_run.forget(batch)

    run(1)
    with monkeypatch.context() as away:
        away.setattr(type(place), "remove", lambda *_: (_ for _ in ()).throw(OSError("away")))
        with pytest.raises(OSError, match="away"):
            run(2)
    assert place.folders() == ["3.2"]
    run(3)
    assert place.folders() == []


def test_what_a_task_has_not_kept_does_not_count(place):
    unseen = result_of({"file": "0.0/0-9-9.arrow", "sha256": "", "rows": 100})
    assert keeper(place).seen([unseen])[0]["committable"] == {"name": "t"}
    with pytest.raises(AttemptFailedError, match="doesn't see them"):
        keeper(place, required=True).seen([unseen])


def test_the_driver_looks_for_a_file_of_a_task_that_kept_rows(place):
    """Also where others had none; and for each, until one is seen."""
    empty, here = result_of({}), result_of(keep(place))
    elsewhere = result_of({"file": "0.0/0-9-9.arrow", "sha256": "", "rows": 100})
    assert [
        "rows" in each["committable"]
        for each in keeper(place).seen([empty, elsewhere, elsewhere, here])
    ] == [True, False, False, True]
    with pytest.raises(AttemptFailedError, match="doesn't see them"):
        keeper(place, required=True).seen([empty, elsewhere])


def test_where_a_look_costs_a_request_one_file_that_is_seen_tells_of_all(place):
    elsewhere = result_of({"file": "0.0/0-9-9.arrow", "sha256": "", "rows": 100})
    results = [result_of(keep(place)), elsewhere]
    assert place.lists_at_a_price == (keeper(place).seen(results) == results)


def test_no_secret_is_in_a_pickle_or_a_text():
    secrets = {"access_key_id": "AKIAKNOWN", "secret_access_key": "hush"}
    place = ObjectRows("s3a://bucket/logs", secrets)
    assert place.secrets == secrets
    for shown in (str(place), repr(place), pickle.dumps(place).decode("latin-1")):
        assert not any(secret in shown for secret in secrets.values())


@pytest.mark.parametrize(
    ("module", "extra", "of_the_driver"),
    [
        ("obstore", "stores", ObjectRows("s3a://bucket/logs", {"region": "a"})),
        ("hdfs_native", "hdfs", HdfsRows("hdfs://name:1/logs")),
    ],
)
def test_an_executor_without_the_package_keeps_no_rows_and_says_so(
    monkeypatch, module, extra, of_the_driver
):
    """The driver has it, so it doesn't know."""
    sent = pickle.dumps(of_the_driver)
    monkeypatch.setitem(sys.modules, module, None)
    for required in (True, False):
        error = None
        try:
            place = pickle.loads(sent).with_secrets(of_the_driver.secrets)
            kept = KeptFile(place, TaskAttempt("query", "out", 0, 0, 0, 0, 0), required=required)
            kept.add(ROWS)
        except Exception as raised:
            error = raised
        # An ImportError would fail the task, also where rows need not be kept.
        assert type(error) is AttemptFailedError
        assert f"onceforall[{extra}]" in str(error)
        kept.discard()


def test_a_store_that_refuses_says_why(request):
    place = place_of(request, "s3")
    foreign = ObjectRows(str(place).replace("s3a://", "s3a://no-such-"), place.secrets)
    with pytest.raises(AttemptFailedError, match="There is no such bucket"):
        keep(foreign)
    with pytest.raises(OptionError, match="http://"):
        keep(place.with_secrets({**place.secrets, "endpoint": "127.0.0.1:1"}))


def test_a_name_node_that_is_away_fails_the_attempt_in_seconds():
    place = HdfsRows("hdfs://127.0.0.1:9/rows", (("dfs.client.failover.max.attempts", "1"),))
    of_run = keeper(place, required=True)
    with pytest.raises(AttemptFailedError, match=r"rows/0\.0: .*refused"):
        of_run.keeping(None, [], 0, 0)
