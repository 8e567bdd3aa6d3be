"""What a start puts back of Spark's files on a store, where a run that was replaced may have written
over them."""

import pytest

from commit_log.test_remote import ScriptedClient
from onceforall.commit_log import binding
from onceforall.errors import CheckpointMismatchError, CommitLogError
from onceforall.protocol.entries import Claim, Commit, Digest, Done
from onceforall.spark import mending, repairs
from onceforall.spark.remote_path import RemotePath, store_at

QUERY = "8e9a4e2c-1111-2222-3333-444455556666"
HEADER = ("v1", '{"batchWatermarkMs":0}')


def offsets(batch):
    return (f'{{"t":{{"0":{10 * batch}}}}}',)


def plan(batch, upto=None):
    return "\n".join([*HEADER, *offsets(batch if upto is None else upto)]).encode()


@pytest.fixture(params=["s3a", "hdfs"])
def checkpoint(request):
    """Batches 0 to 3 are decided and complete; Spark has planned and finished all of them."""
    place = RemotePath(ScriptedClient())
    place.client.url = f"{request.param}://place/checkpoints/ads"
    contents = place.client.contents
    contents["metadata"] = f'{{"id":"{QUERY}"}}'.encode()
    bound = binding.bind(store_at(place / "onceforall"), str(place), None, query_id=QUERY)
    log = bound.log()
    generation = log.claim(Claim(QUERY, "run", str(place), "tests")).generation
    for batch in range(4):
        contents[f"offsets/{batch}"] = plan(batch)
        log.append(
            generation,
            Commit(batch, offsets(batch), {"out": ()}, {"out/0": (Digest(1, 1),)}, header=HEADER),
        )
        log.append(generation, Done(batch))
        contents[f"commits/{batch}"] = b'v1\n{"nextBatchWatermarkMs":0}'
    return place


def test_nothing_is_touched_where_nothing_is_wrong(checkpoint):
    before = dict(checkpoint.client.contents)
    assert mending.put_back(checkpoint).steps == ()
    assert checkpoint.client.contents == before


@pytest.mark.parametrize("finished", [True, False])
def test_a_plan_that_a_replaced_run_has_written_over_is_put_back(checkpoint, finished, caplog):
    contents = checkpoint.client.contents
    if not finished:
        del contents["commits/3"]
    contents["offsets/3"] = plan(3, upto=77)
    contents["offsets/4"] = plan(4, upto=99)
    done = mending.put_back(checkpoint)
    assert contents["offsets/3"] == plan(3)
    assert "offsets/4" not in contents
    assert len(done.steps) == 2
    assert "another run" in caplog.text
    aside = {key: c for key, c in contents.items() if key.startswith(mending.SET_ASIDE)}
    assert sorted(aside.values()) == sorted([plan(3, upto=77), plan(4, upto=99)])
    assert mending.put_back(checkpoint).steps == ()


def test_what_is_planned_and_not_decided_stays(checkpoint):
    checkpoint.client.contents["offsets/4"] = plan(4)
    assert mending.put_back(checkpoint).steps == ()
    assert checkpoint.client.contents["offsets/4"] == plan(4)


def test_a_plan_that_is_missing_or_torn_is_put_back(checkpoint):
    contents = checkpoint.client.contents
    for torn in (None, b"v1\n{"):
        del contents["commits/3"]
        if torn is None:
            del contents["offsets/3"]
        else:
            contents["offsets/3"] = torn
        assert mending.put_back(checkpoint).steps
        assert contents["offsets/3"] == plan(3)
        contents["commits/3"] = b'v1\n{"nextBatchWatermarkMs":0}'


@pytest.mark.parametrize("back", [True, False])
def test_a_plan_that_another_run_has_made_and_decided_meanwhile_stays(
    checkpoint, monkeypatch, back
):
    contents = checkpoint.client.contents
    contents["offsets/4"] = b"v1"
    log = binding.find(store_at(checkpoint / "onceforall")).log()
    client = checkpoint.client
    # Before the file goes: on HDFS by another name, elsewhere by its deletion.
    step = "move" if client.url.startswith("hdfs") else "delete"
    real = getattr(client, step)

    def woken(*names):
        monkeypatch.setattr(client, step, real)
        contents["offsets/4"] = plan(4)
        generation = log.claim(Claim(QUERY, "run", str(checkpoint), "tests")).generation
        log.seal_below(generation)
        log.append(
            generation,
            Commit(4, offsets(4), {"out": ()}, {"out/0": (Digest(1, 1),)}, header=HEADER),
        )
        real(*names)
        if back:
            contents["offsets/4"] = plan(4) + b"\n-"

    monkeypatch.setattr(client, step, woken)
    mending.put_back(checkpoint)
    assert contents["offsets/4"].startswith(plan(4))


def test_on_an_object_store_neither_state_nor_what_sources_have_noted_is_taken_away(checkpoint):
    """There no file is torn, and whoever stands still would delete another one."""
    contents = checkpoint.client.contents
    for key in [key for key in contents if key.startswith("onceforall/chains")]:
        del contents[key]
    log = binding.find(store_at(checkpoint / "onceforall")).log()
    log.claim(Claim(QUERY, "run", str(checkpoint), "tests"))
    for key in [key for key in contents if key.startswith(("offsets/", "commits/"))]:
        del contents[key]
    contents["sources/0/1"] = contents["state/0/0/1.delta"] = b""
    steps = mending.put_back(checkpoint).steps
    taken = checkpoint.client.url.startswith("hdfs")
    assert len(steps) == 2 * taken
    assert ("sources/0/1" in contents) == ("state/0/0/1.delta" in contents) == (not taken)


@pytest.mark.parametrize("torn", ["metadata", "offsets/3"])
def test_a_store_that_fails_between_two_steps_is_gone_on_with(checkpoint, monkeypatch, torn):
    client, contents = checkpoint.client, checkpoint.client.contents
    before = contents[torn]
    del contents["commits/3"]
    contents[torn] = b"{"
    if torn != "metadata":
        # A missing plan is put back only where this is there.
        del contents["offsets/2"]

    def refused(*_):
        raise CommitLogError("cannot create: The store is overloaded")

    with monkeypatch.context() as patched:
        patched.setattr(repairs, "_create", refused)
        patched.setattr(client, "replace", refused)
        with pytest.raises(CommitLogError, match="overloaded"):
            mending.put_back(checkpoint)
    assert mending.put_back(checkpoint).steps
    assert contents[torn] == before


@pytest.mark.parametrize("ending", ["", ".taken"])
def test_what_lies_under_its_last_name_is_not_renamed_to_itself(checkpoint, monkeypatch, ending):
    """HDFS refuses that, and on an object store it would be deleted."""
    client, moved = checkpoint.client, []
    name = f"{mending.SET_ASIDE}/state.0-0a0b0c0d{ending}"
    client.contents[f"{name}/0/0/1.delta"] = b"a copy that stays"
    move = client.move
    monkeypatch.setattr(client, "move", lambda *keys: moved.append(keys) or move(*keys))
    repairs._settle(checkpoint / name)
    assert len(moved) == bool(ending)
    assert client.contents[f"{name.removesuffix('.taken')}/0/0/1.delta"]


def test_what_another_mender_has_moved_is_judged_again(checkpoint, monkeypatch):
    contents, client = checkpoint.client.contents, checkpoint.client
    contents["offsets/4"] = b"v1"
    client.url = "hdfs://place/checkpoints/ads"
    move = client.move

    def slower(key, to):
        monkeypatch.setattr(client, "move", move)
        del contents["offsets/4"]
        raise CommitLogError("cannot move: FileNotFoundException")

    monkeypatch.setattr(client, "move", slower)
    assert mending.put_back(checkpoint).steps == ()


def test_a_log_that_can_not_be_read_for_a_moment_ends_the_start(checkpoint, monkeypatch):
    """Spark would go on from a plan that nobody has compared."""
    checkpoint.client.contents["offsets/3"] = plan(3, upto=77)
    read = checkpoint.client.read

    def failing(key):
        if key.startswith("onceforall/chains"):
            raise CommitLogError(f"cannot read {key}: The store is overloaded")
        return read(key)

    monkeypatch.setattr(checkpoint.client, "read", failing)
    with pytest.raises(CommitLogError, match="overloaded"):
        mending.put_back(checkpoint)


def test_a_checkpoint_that_is_further_than_its_log_is_no_other_runs_work(checkpoint):
    contents = checkpoint.client.contents
    contents["offsets/3"] = plan(3, upto=77)
    contents["offsets/4"] = plan(4)
    contents["commits/4"] = b'v1\n{"nextBatchWatermarkMs":0}'
    with pytest.raises(CheckpointMismatchError):
        mending.put_back(checkpoint)
