"""``onceforall detach`` of a checkpoint on a store: what was decided is in the sink, the checkpoint is
a plain one in the end, and nothing between is taken for one."""

import contextlib
import itertools
import json
import uuid

import pytest

import onceforall as ofa
from cli.test_detach_sinks import METADATA, OFFSETS, decided
from onceforall.commit_log import CommitLog, binding
from onceforall.commit_log.stores.objects import ObjectClient
from onceforall.driver.log_folder import bind_log
from onceforall.driver.settings import Settings
from onceforall.driver.targets import last_decision
from onceforall.errors import CheckpointMismatchError, FencedError
from onceforall.operate.detaching import detach
from onceforall.protocol.entries import Claim, Done
from onceforall.spark import checkpoint as spark_checkpoint
from onceforall.spark.remote_path import files_below
from onceforall.spark.stores import Stores

pytestmark = pytest.mark.s3


class OnStore:
    """A checkpoint on a bucket whose query crashed right behind its decision of batch 0."""

    def __init__(self, server, bucket, folder):
        self.settings = {
            "endpoint": server.endpoint,
            "region": server.region,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
        }
        self.out, self.url = folder / "out", f"s3a://{bucket}/{uuid.uuid4().hex}/cp"
        self.stores = Stores(None, self.settings)
        self.path = self.stores.checkpoint(self.url)
        local = decided(folder, self.sink)
        self.query_id = json.loads((local / "metadata").read_text())["id"]
        # As a query on the store would have it: under the store's name for the checkpoint.
        for file in local.rglob("*"):
            name = str(file.relative_to(local))
            if file.is_file() and not name.startswith("onceforall/"):
                self.put(name, file.read_bytes())
        bound = self.bind()
        self.log = bound.log()
        generation = self.log.claim(Claim(self.query_id, "run", self.url)).generation
        self.log.seal_below(generation)
        commit = CommitLog(binding.LocalStore(local / "onceforall")).look().decided.commit
        self.log.append(generation, commit)

    def sink(self):
        return ofa.FileSink(self.out)

    def put(self, name, content):
        self.path.client.replace(name, content)

    def bind(self):
        return bind_log(self.path, Settings(), self.stores, tested=True)

    def detach(self, **more):
        return detach(self.url, {"out": self.sink()}, settings=self.settings, **more)

    def rows(self):
        return sorted(row["n"] for row in ofa.read_files(self.out).to_arrow().to_pylist())

    def names(self):
        root = f"{self.path}/"
        return {str(file).removeprefix(root) for file in files_below(self.path)}

    def assert_plain(self):
        """Spark's part is whole, and nothing of a log is in its place."""
        assert self.rows() == [0, 1]
        assert self.path.client.read("commits/0") is not None
        assert not spark_checkpoint.is_ours(self.path)
        spark_checkpoint.check_take_over(self.path, None)
        self.put("offsets/1", f"v1\n{METADATA}\n{OFFSETS}".encode())
        with pytest.raises(
            CheckpointMismatchError, match="Batch 1 .* was begun without onceforall"
        ):
            spark_checkpoint.check_take_over(self.path, None)
        self.path.client.delete("offsets/1")


@pytest.fixture
def on_store(s3_server, s3_bucket, tmp_path):
    return OnStore(s3_server, s3_bucket, tmp_path)


def test_what_is_decided_is_completed_and_the_checkpoint_is_a_plain_one(on_store):
    assert on_store.rows() == []
    before = on_store.names()
    foreseen = on_store.detach(dry_run=True)
    assert on_store.names() == before
    done = on_store.detach()
    assert (foreseen.completed, foreseen.passed) == (done.completed, done.passed) == (0, 0)
    assert str(done.log) == f"{on_store.url}/onceforall"
    assert before < on_store.names()
    on_store.assert_plain()
    again = on_store.detach()
    assert "was detached before" in again.steps[-1]
    assert again.log is None


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("passed", [False, True])
def test_the_end_of_the_log_follows_its_last_entry_whatever_the_crash_left_undone(
    on_store, done, passed
):
    """Behind a free place a run could still decide."""
    if done:
        decision = on_store.log.look().decided
        on_store.sink().commit(decision.permit, decision.commit.committables["out"])
        on_store.log.append(0, Done(0))
    if passed:
        on_store.put("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    detached = on_store.detach()
    assert (detached.completed, detached.passed) == (None if done else 0, None if passed else 0)
    chains = sorted(name for name in on_store.names() if "/chains/" in name)
    newest = max(name.split("/")[2] for name in chains)
    entries = [name for name in chains if name.split("/")[2] == newest]
    kinds = [json.loads(on_store.path.client.read(name))["kind"] for name in entries]
    assert [name.split("/")[3] for name in entries] == [
        f"{index:08d}.json" for index in range(len(entries))
    ]
    assert kinds == ["CLAIM", *([] if done else ["DONE"]), "DETACHED"]
    assert "was detached before" in on_store.detach().steps[-1]
    on_store.assert_plain()


def test_a_run_that_is_alive_is_fenced_for_ever(on_store):
    """Also one that has bound the log, and claims when the checkpoint is a plain query's."""
    late = on_store.bind().log()
    on_store.detach()
    with pytest.raises(FencedError):
        on_store.log.append(0, Done(0))
    generation = late.claim(Claim(on_store.query_id, "late", on_store.url)).generation
    with pytest.raises(CheckpointMismatchError, match="made a plain query's"):
        late.seal_below(generation)


def test_a_return_to_onceforall_uses_no_name_again_and_leaves_the_old_log_alone(on_store):
    on_store.detach()
    bound = on_store.bind()
    assert (bound.first_generation, bound.location) == (2, f"{on_store.url}/onceforall/again-2")
    assert spark_checkpoint.is_ours(on_store.path)
    log = bound.log()
    assert log.claim(Claim(on_store.query_id, "again", on_store.url)).generation == 2
    log.seal_below(2)
    assert log.look().decided is None
    assert on_store.bind().log().newest_generation() == 2
    on_store.detach()
    assert spark_checkpoint.detached_generation(on_store.path) == 3
    assert on_store.bind().first_generation == 4


def test_a_late_claim_in_the_log_that_was_left_holds_up_no_return(on_store):
    """Whoever was started before the detachment claims there the numbers of the new log."""
    late = on_store.bind().log()
    on_store.detach()
    for claims in range(3):
        bound = on_store.bind()
        assert bound.location == f"{on_store.url}/onceforall/again-2"
        assert bound.log().newest_generation() == (None if claims == 0 else 2)
        if claims == 0:
            log = bound.log()
            log.seal_below(log.claim(Claim(on_store.query_id, "again", on_store.url)).generation)
        assert late.claim(Claim(on_store.query_id, "late", on_store.url)).generation == 2 + claims
    assert "next pointer" in str(on_store.detach(dry_run=True).steps)


def test_a_run_that_starts_meanwhile_wins_and_the_log_stays_in_force(on_store, monkeypatch):
    create = ObjectClient.create

    def overtaken(self, key, content, in_time=None):
        if b'"DETACHED"' in content:
            monkeypatch.setattr(ObjectClient, "create", create)
            log = on_store.bind().log()
            log.seal_below(log.claim(Claim(on_store.query_id, "run", on_store.url)).generation)
        return create(self, key, content, in_time)

    monkeypatch.setattr(ObjectClient, "create", overtaken)
    with pytest.raises(FencedError, match="has started while it was being detached"):
        on_store.detach()
    assert on_store.bind().log().look().decided.commit.batch == 0
    on_store.detach()
    on_store.assert_plain()


class KilledError(BaseException):
    """Nobody catches it."""


def killing(patch, left):
    """End it at the n-th change of the store, before or behind it."""
    counts = itertools.count(1)

    def around(change):
        def changed(*args, **kwargs):
            if next(counts) == left:
                raise KilledError
            done = change(*args, **kwargs)
            if next(counts) == left:
                raise KilledError
            return done

        return changed

    for name in ("create", "replace", "delete", "move"):
        patch.setattr(ObjectClient, name, around(getattr(ObjectClient, name)))


@pytest.mark.long
def test_a_detachment_that_was_killed_anywhere_is_finished_by_the_same_command(
    s3_server, s3_bucket, tmp_path, monkeypatch
):
    """And a start meanwhile either goes on with the log, or is refused with that command, or takes
    over a plain checkpoint."""
    refused = went_on = plain = 0
    for kill_at in itertools.count(1):
        (tmp_path / str(kill_at)).mkdir()
        query = OnStore(s3_server, s3_bucket, tmp_path / str(kill_at))
        with monkeypatch.context() as patched:
            killing(patched, kill_at)
            try:
                query.detach()
            except KilledError:
                finished = False
            else:
                finished = True
        if not spark_checkpoint.is_ours(query.path):
            plain += 1
        else:
            decided_before = None
            with contextlib.suppress(CheckpointMismatchError):
                decided_before = last_decision(query.path, query.stores)
            if decided_before is None:
                with pytest.raises(CheckpointMismatchError, match="'onceforall detach' once more"):
                    last_decision(query.path, query.stores)
                refused += 1
            else:
                assert decided_before.commit.batch == 0
                went_on += 1
        query.detach()
        query.assert_plain()
        assert spark_checkpoint.detached_generation(query.path) > 0
        if finished:
            break
    assert kill_at > 10
    assert refused
    assert plain
    assert went_on > 5
