"""What a start looks at in the place of its log, whichever door it comes through."""

import sys

import pytest

from commit_log.test_remote import Ignoring, ScriptedClient
from onceforall.commit_log import LocalStore, binding, repointing
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.driver.log_folder import (
    bind_log,
    check_identity,
    check_log,
    check_place,
    contains,
    lies_in,
    put_back,
    rows_place,
)
from onceforall.driver.settings import Settings
from onceforall.errors import (
    CheckpointMismatchError,
    MissingExtraError,
    OptionError,
    UnsupportedQueryError,
)
from onceforall.protocol.entries import Claim
from onceforall.spark.remote_path import RemotePath
from onceforall.spark.stores import Stores
from support.syncing import Recorder

ELSEWHERE = "s3a://bucket/logs/ads"


class Opening(Stores):
    """Opens one remote store, whatever it is called."""

    def __init__(self, client):
        super().__init__()
        self.only = client

    def open(self, location):
        return RemoteStore(self.only)


def bound_elsewhere(folder, client):
    home = LocalStore(folder / "onceforall")
    stores = Opening(client)
    binding.bind(home, str(folder), ELSEWHERE, query_id=None, open_store=stores.open)
    return stores


def test_a_store_is_tested_also_where_only_the_pointer_names_it(tmp_path):
    stores = bound_elsewhere(tmp_path, ScriptedClient())
    bind_log(tmp_path, Settings(), stores)
    stores.only = Ignoring()
    stores.only.contents = bound_elsewhere(tmp_path / "b", ScriptedClient()).only.contents
    with pytest.raises(UnsupportedQueryError, match="If-None-Match"):
        bind_log(tmp_path / "b", Settings(), stores)


def test_a_store_is_tested_once_by_a_start(tmp_path):
    stores = bound_elsewhere(tmp_path, ScriptedClient())
    before = stores.only.creates
    bind_log(tmp_path, Settings(), stores, tested=True)
    # What binds log and checkpoint is made durable.
    assert stores.only.creates == before + 1


def test_another_name_of_the_checkpoints_own_folder_is_no_other_place(tmp_path):
    """The log that begins there would have entries in the place that is the checkpoint's own."""
    client = ScriptedClient()
    here = RemotePath(client)
    (inner := ScriptedClient()).contents = Below(client.contents, "onceforall/")
    with pytest.raises(OptionError, match="commitLog=s3://.* under another name. Leave"):
        bind_log(here, Settings(commit_log="s3://bucket/log"), Opening(inner))
    assert client.contents == {}
    stores = Opening(ScriptedClient())
    assert bind_log(here, Settings(commit_log="s3://bucket/log"), stores).location


class Below(dict):
    """The part of a store's contents that is below a folder."""

    def __init__(self, contents, prefix):
        super().__init__()
        self.whole, self.prefix = contents, prefix

    def get(self, key):
        return self.whole.get(self.prefix + key)

    def __contains__(self, key):
        return self.prefix + key in self.whole

    def setdefault(self, key, value):
        return self.whole.setdefault(self.prefix + key, value)

    def pop(self, key, default=None):
        return self.whole.pop(self.prefix + key, default)


def test_a_place_in_which_the_checkpoint_lies_is_none_for_its_log(tmp_path):
    path = tmp_path / "data" / "cp"
    path.mkdir(parents=True)
    for above in (tmp_path, tmp_path / "data", path):
        with pytest.raises(OptionError, match="lies"):
            bind_log(path, Settings(commit_log=str(above)), Stores())
    beside = tmp_path / "data" / "cp-log"
    assert bind_log(path, Settings(commit_log=str(beside)), Stores()).location == beside.as_uri()
    remote = RemotePath(ScriptedClient())
    for above, refused in (("s3a://bucket/checkpoints", True), ("s3a://bucket/check", False)):
        assert contains(above, remote) == refused
        assert not lies_in(above, remote)
    assert lies_in(f"{remote}/logs", remote)
    assert not lies_in(f"{remote}-logs", remote)
    assert not contains(f"{remote}-logs", remote)


def test_what_an_earlier_release_has_set_aside_is_known_by_its_folder(tmp_path):
    (tmp_path / "onceforall-detached-4").mkdir()
    (tmp_path / "onceforall-detached-9.tar.gz").write_text("an archive of it")
    assert bind_log(tmp_path, Settings(), Stores()).first_generation == 5


@pytest.mark.parametrize("detached", [False, True])
def test_what_a_plain_query_has_finished_is_durable_before_the_checkpoint_is_marked(
    tmp_path, monkeypatch, detached
):
    """A loss of power behind the mark would else take a finished batch for an unfinished one of
    ours, which is written again."""
    path, wanted = tmp_path / "cp", Settings(commit_log=str(tmp_path / "log"))
    for name in ("offsets/0", "commits/0", "offsets/1", "commits/1", "state/0/0/2.delta"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("x")
    home = LocalStore(path / "onceforall")
    if detached:
        bound = bind_log(path, wanted, Stores())
        repointing.point_nowhere(home, bound, bound.first_generation)
    recorder = Recorder(monkeypatch)
    bind_log(path, wanted, Stores())
    pointer = recorder.linked(path / "onceforall/pointer" / f"{2 * detached:08d}.json")
    before = {path for call, path in recorder.calls[:pointer] if call == "sync"}
    needed = ("commits/1", "commits", "offsets/1", "offsets", "state/0/0/2.delta", "state/0/0", ".")
    assert {path / name for name in needed} <= before
    recorder.calls.clear()
    bind_log(path, wanted, Stores())
    assert ("sync", path / "commits/1") not in recorder.calls


def test_rows_are_kept_beside_the_log(tmp_path):
    stores = bound_elsewhere(tmp_path / "a", ScriptedClient())

    def place(checkpoint, **settings):
        return str(rows_place(checkpoint, Settings(**settings), stores))

    there = f"{ELSEWHERE}/rows"
    assert place(tmp_path / "a") == there
    assert place(tmp_path / "new") == f"{tmp_path}/new/onceforall/rows"
    assert place(tmp_path / "new", commit_log=ELSEWHERE) == there
    assert place(tmp_path / "new", commit_log="hdfs://name:1/l") == "hdfs://name:1/l/rows"
    remote = RemotePath(ScriptedClient())
    assert place(remote) == f"{remote}/onceforall/rows"
    assert place(remote, commit_log=f"file:{tmp_path}/log") == f"{tmp_path}/log/rows"


@pytest.mark.parametrize(
    ("module", "location", "extra"),
    [("obstore", ELSEWHERE, "stores"), ("hdfs_native", "hdfs://name:1/logs", "hdfs")],
)
def test_where_a_package_is_missing_rows_are_not_kept_and_refused_if_they_must_be(
    tmp_path, monkeypatch, caplog, module, location, extra
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"onceforall\[{extra}\]"):
        check_place(tmp_path, Settings(redo="durable", commit_log=location), Stores(), "")
    assert rows_place(tmp_path, Settings(redo="replay", commit_log=location), Stores()) is None
    assert not caplog.records
    assert rows_place(tmp_path, Settings(commit_log=location), Stores()) is None
    assert f"onceforall[{extra}]" in caplog.text


def test_a_file_manager_that_swallows_errors_is_refused_on_a_store_alone(tmp_path):
    manager = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    with pytest.raises(UnsupportedQueryError, match="refused it"):
        check_place(RemotePath(ScriptedClient()), Settings(), Stores(), manager)
    check_place(tmp_path, Settings(), Stores(), manager)


@pytest.mark.parametrize("manager", ["FileSystemBased", "FileContextBased"])
def test_a_file_manager_that_leaves_state_of_nothing_is_refused_where_state_is_kept_on_a_store(
    tmp_path, manager
):
    """crash/test_late_state.py shows what it does."""
    name = f"org.apache.spark.sql.execution.streaming.checkpointing.{manager}CheckpointFileManager"
    stateless, stateful = ScriptedClient(), ScriptedClient()
    stateful.contents["state/0/0/1.changelog"] = b""
    check_place(RemotePath(stateless), Settings(), Stores(), name, 1)
    check_place(RemotePath(stateful), Settings(), Stores(), name, 2)
    (tmp_path / "state" / "0").mkdir(parents=True)
    check_place(tmp_path, Settings(), Stores(), name, 1)
    if manager == "FileContextBased":
        check_place(RemotePath(stateful), Settings(), Stores(), name, 1)
    else:
        with pytest.raises(UnsupportedQueryError, match="checkpointFormatVersion=2"):
            check_place(RemotePath(stateful), Settings(), Stores(), name, 1)


def test_a_torn_id_is_no_obstacle_and_a_missing_one_is_named_before_any_sink_is_asked(tmp_path):
    """Sinks that are asked about a query without an id are behind the log, and the error would
    tell to adopt them."""
    checkpoint, stores = tmp_path / "cp", Stores()
    checkpoint.mkdir()
    check_identity(checkpoint, stores)
    log = bind_log(checkpoint, Settings(), stores).log()
    check_identity(checkpoint, stores)
    log.claim(Claim("the-query", "run", str(checkpoint), "tests"))
    (checkpoint / "metadata").write_text("")
    check_log(checkpoint, stores, adopt=False)
    put_back(checkpoint, Settings(), stores)
    check_identity(checkpoint, stores)
    (checkpoint / "metadata").unlink()
    with pytest.raises(CheckpointMismatchError, match="metadata is missing.*the query the-query"):
        check_identity(checkpoint, stores)
