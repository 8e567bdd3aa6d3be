"""What a start looks at in the place of its log, whichever door it comes through."""

import pytest

from commit_log.test_remote import Ignoring, ScriptedClient
from onceforall.commit_log import LocalStore, binding
from onceforall.commit_log.stores.remote import RemoteStore
from onceforall.driver.log_folder import bind_log, check_place, keeps_rows
from onceforall.driver.settings import Settings
from onceforall.errors import UnsupportedQueryError
from onceforall.spark.remote_path import RemotePath
from onceforall.spark.stores import Stores

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


def test_rows_are_kept_where_the_log_is_local(tmp_path):
    stores = bound_elsewhere(tmp_path / "a", ScriptedClient())
    assert not keeps_rows(tmp_path / "a", Settings(), stores)
    assert keeps_rows(tmp_path / "new", Settings(), stores)
    assert not keeps_rows(tmp_path / "new", Settings(commit_log=ELSEWHERE), stores)
    remote = RemotePath(ScriptedClient())
    assert not keeps_rows(remote, Settings(), stores)
    assert keeps_rows(remote, Settings(commit_log=f"file:{tmp_path}/log"), stores)


def test_rows_that_must_be_kept_and_can_not_be_are_refused(tmp_path):
    stores = bound_elsewhere(tmp_path, ScriptedClient())
    for place in (tmp_path, RemotePath(ScriptedClient())):
        with pytest.raises(UnsupportedQueryError, match="redo=durable"):
            check_place(place, Settings(redo="durable"), stores, "")
        check_place(place, Settings(), stores, "")


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
