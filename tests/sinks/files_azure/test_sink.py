"""What the file sink does in a container: as on any store of objects; placeholders, late blocks,
keys, and what a start refuses."""

from __future__ import annotations

import logging
import pickle

import pytest

from onceforall.commit_log.stores.objects import ObjectClient
from onceforall.errors import AttemptFailedError, SinkUnavailableError
from onceforall.sink import StartInfo, Sweep
from onceforall.sinks.files.places.azure.container import Container
from onceforall.sinks.files.places.objects import staging
from sinks.files.building import QUERY, attempt, commit, numbers, permit, prepared
from sinks.files_azure.place import Folder
from sinks.files_objects.sink import *  # noqa: F403
from sinks.files_objects.sink import refused
from support.azurite import ACCOUNT
from support.odd_names import ODD_NAMES

pytestmark = [pytest.mark.azure, pytest.mark.long]


def test_a_log_and_files_lie_where_the_url_says(place):
    """obstore's client, and Azure's: as on S3 (tests/commit_log/test_store_names.py)."""
    folders = [place.elsewhere(f"{name}/x") for name in ODD_NAMES]
    for folder in folders:
        given = {**folder.storage, "account_name": ACCOUNT}
        assert ObjectClient(folder.url, given).create("log", b"1") == "created"
        store = folder.store()
        store.put_new(store.root / "file", b"2")
        assert ObjectClient(folder.url, given).list("") == ["file", "log"]
    with place.client() as client:
        assert sorted(client.list_blob_names()) == sorted(
            f"{folder.key}/{name}" for folder in folders for name in ("file", "log")
        )


def test_blocks_are_never_committed_over_a_blob_of_somebody_else(place, monkeypatch):
    """Where it comes behind the look for it."""
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    (name,) = place.begun()
    complete = Container.complete

    def overtaken(container, path, upload, parts):
        with place.client() as client:
            blob = client.get_blob_client(f"{place.key}/{name}")
            if not blob.exists():
                blob.upload_blob(b"", overwrite=True)
                # Azure itself has discarded the blocks by that; a late one may still come.
                blob.stage_block(f"{upload}-00001", b"x" * kept["files"][0][3])
        complete(container, path, upload, parts)

    monkeypatch.setattr(Container, "complete", overtaken)
    report = sink.commit(permit(), [kept])
    assert [each.committable["name"] for each in report.in_doubt] == [kept["name"]]
    assert place.get(name) == b""


def test_blocks_of_another_upload_to_the_same_name_are_neither_counted_nor_discarded(place):
    container = place.checked()._given.container()
    path = container.root / "part-x"
    container.send_part(path, "1" * 32, 1, b"theirs")
    assert container.parts(path, "0" * 32) is None
    container.abort(path, "0" * 32)
    assert container.parts(path, "1" * 32) == [("1-6", 6)]


def test_what_a_late_task_sends_behind_a_sweep_is_never_seen_and_never_confirmed(
    place, monkeypatch
):
    monkeypatch.setattr(staging, "PART_BYTES", 1 << 10)
    sink = place.checked(format="csv")
    transaction = sink.begin_transaction(attempt())
    send, sent = Container.send_part, []

    def send_late(container, path, upload, number, content):
        if len(sent) == 1:
            assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
        sent.append(number)
        return send(container, path, upload, number, content)

    monkeypatch.setattr(Container, "send_part", send_late)
    sink.invoke(transaction, numbers(100, t=["x" * 50] * 100))
    committable = sink.pre_commit(transaction)
    assert len(sent) > 2
    with pytest.raises(AttemptFailedError, match="Nothing of this batch is decided"):
        sink.confirm([committable])
    assert place.data() == []
    assert len(place.begun()) == 1, "Azure deletes these after a week"
    assert place.files().rows == 0


class TestAnAbortThatIsKilled:
    """Between the placeholder and its deletion."""

    @pytest.fixture
    def given_up(self, place, monkeypatch):
        sink = place.checked()
        (kept,) = sink.confirm([prepared(sink, numbers(2))])

        def killed(container, path):
            raise OSError("killed")

        with monkeypatch.context() as here, pytest.raises(SinkUnavailableError):  # noqa: PT012
            here.setattr(Container, "_delete_placeholder", killed)
            sink.abort([kept])
        assert place.begun() == []
        assert len(place.data()) == 1, "the placeholder"
        return sink, kept

    def test_is_ended_by_the_next_sweep(self, place, given_up):
        sink, _ = given_up
        assert sink.recover(Sweep(QUERY, "out", 1)) == 1
        assert place.keys() == ["_onceforall/folder.json"]

    def test_leaves_nothing_that_is_taken_for_rows(self, place, given_up):
        sink, kept = given_up
        with pytest.raises(AttemptFailedError, match="Nothing of this batch is decided"):
            sink.confirm([kept])
        report = sink.commit(permit(), [kept])
        assert [each.committable for each in report.lost] == [kept]
        assert not report.in_doubt
        assert place.files().rows == 0

    def test_and_a_commit_at_that_moment_changes_nothing(self, place, given_up):
        """Its look was before."""
        _, kept = given_up
        container = place.sink()._given.container()
        ((mark, parts),) = kept["uploads"]
        path = container.root / place.data()[0]
        with pytest.raises(FileNotFoundError):
            container.complete(path, mark, parts)
        assert container.head(path) is None
        assert container.uploads(path) == ["given up"]
        assert container.uploads_below(container.root) == [place.data()[0]]

    def test_leaves_what_somebody_else_has_put_there_since(self, place, given_up):
        sink, _ = given_up
        (name,) = place.data()
        place.put(name, b"")
        assert sink.recover(Sweep(QUERY, "out", 1)) == 1
        assert place.data() == [name]


def test_a_commit_before_an_abort_wins(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    container = place.sink()._given.container()
    ((mark, parts),) = kept["uploads"]
    path = container.root / place.begun()[0]
    container.complete(path, mark, parts)
    container.abort(path, mark)
    # Also where a late answer has left a block on it.
    container.send_part(path, mark, 1, b"late")
    container.abort(path, mark)
    assert container.uploads(path) == []
    assert len(sink.commit(permit(), [kept]).completed) == 1
    assert place.numbers() == [0, 1]


def test_a_short_url_and_a_sas_token_serve_the_same_folder(place, azurite):
    from onceforall import FileSink, read_files

    storage = {
        "account_name": azurite.account,
        "endpoint": place.storage["endpoint"],
        "sas_token": "?" + azurite.sas_token(),
    }
    url = f"az://{place.container}/{place.key}"
    sink = FileSink(url, storage=storage)
    sink.check(StartInfo(QUERY, "out"))
    commit(sink, 0, numbers(2))
    assert place.numbers() == [0, 1]
    assert read_files(url, storage=storage).to_arrow().num_rows == 2


@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv"])
@pytest.mark.parametrize("how", ["as it is", "with a question mark", "of the environment"])
def test_files_are_read_with_a_sas_token(place, azurite, monkeypatch, form, how):
    token = azurite.sas_token("rl")
    commit(place.checked(format=form), 0, numbers(2))
    storage = {"endpoint": place.storage["endpoint"]}
    if how == "of the environment":
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", token)
    else:
        storage["sas_token"] = token if how == "as it is" else f"?{token}"
    files = Folder(place.container, storage).files()
    assert files.to_arrow().column("n").to_pylist() == [0, 1]
    assert files.dataset().count_rows() == 2


def test_a_reader_whose_file_is_gone_or_refused_shows_no_token(place, azurite, proxy, caplog):
    commit(place.checked(), 0, numbers(2))
    token = azurite.sas_token("rl")
    signature = token.rpartition("sig=")[2].partition("&")[0]
    far = place.through(proxy.endpoint)
    given = Folder(place.container, {"endpoint": far.storage["endpoint"], "sas_token": token})
    dataset = given.files().dataset()
    fault = proxy.answer(403, key="part-", count=1000)
    for read in (dataset.to_table, given.files().to_arrow):
        with pytest.raises(OSError) as told:
            read()
        texts = [str(told.value), repr(told.value), *map(str, told.value.args)]
        texts += [str(each) for each in (told.value.__cause__, told.value.__context__) if each]
        assert "403" in texts[0]
        assert not [text for text in texts if signature in text]
    fault.end()
    place.delete(place.data()[0])
    with pytest.raises(FileNotFoundError) as told:
        dataset.to_table()
    assert signature not in f"{told.value!r}{told.value}"
    assert signature not in caplog.text


def test_a_key_of_the_environment_serves_where_none_is_given(place, azurite, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", azurite.key)
    bare = Folder(place.container, {"endpoint": azurite.endpoint})
    commit(bare.checked(), 0, numbers(2))
    assert bare.numbers() == [0, 1]


class TestSecrets:
    def test_no_pickle_no_text_and_no_log_shows_one(self, place, azurite, caplog):
        tokens = [place.storage["account_key"], (token := azurite.sas_token())]
        given = Folder(place.container, {"endpoint": place.storage["endpoint"], "sas_token": token})
        with caplog.at_level(logging.INFO):
            for batch, each in enumerate((place, given)):
                sink = each.checked()
                assert set(sink.secrets().values()) <= set(tokens)
                texts = [pickle.dumps(sink), repr(sink).encode(), repr(vars(sink)).encode()]
                texts.append(pickle.dumps(sink.begin_transaction(attempt())._plan))
                texts.append(repr(sink._given.container()).encode())
                texts.append(repr(commit(sink, batch, numbers(1))).encode())
                for secret in (*tokens, token.rpartition("sig=")[2]):
                    assert not [text for text in texts if secret.encode() in text]
        for secret in (*tokens, token.rpartition("sig=")[2]):
            assert secret not in caplog.text

    def test_a_task_has_them_from_the_driver(self, place):
        sink = place.checked()
        in_task = pickle.loads(pickle.dumps(sink))
        assert in_task.secrets() == {}
        given = attempt()
        object.__setattr__(given, "secrets", sink.secrets())
        transaction = in_task.begin_transaction(given)
        in_task.invoke(transaction, numbers(2))
        committable = in_task.pre_commit(transaction)
        sink.commit(permit(), sink.confirm([committable]))
        assert place.numbers() == [0, 1]


class TestAStartRefuses:
    def test_a_container_that_is_missing(self, place):
        refused(Folder("no-such-one", place.storage), "no such container. Create it")

    def test_a_wrong_key(self, place):
        wrong = Folder(place.container, {**place.storage, "account_key": "aGFsbG8="})
        refused(wrong, "wrong key")

    def test_a_token_that_has_expired(self, place, azurite):
        storage = {"endpoint": azurite.endpoint, "sas_token": azurite.sas_token(minutes=-5)}
        refused(Folder(place.container, storage), "Authori|Authen")

    def test_a_token_that_may_not_write(self, place, azurite):
        storage = {"endpoint": azurite.endpoint, "sas_token": azurite.sas_token("rl")}
        refused(Folder(place.container, storage), "racwdl in a SAS token")

    @pytest.mark.parametrize(
        ("method", "kind", "words"),
        [
            ("GET", "list", "cannot list"),
            ("PUT", "create", "cannot create"),
            ("PUT", "part", "cannot send a block"),
            ("GET", "list parts", "cannot list the blocks"),
            ("PUT", "complete upload", "cannot give up"),
            ("GET", "get", "cannot read"),
        ],
    )
    def test_a_key_that_may_not_do_what_a_batch_needs(self, place, proxy, method, kind, words):
        proxy.answer(403, method, kind=kind, count=1000, key="" if kind != "get" else "probes")
        found = refused(place.through(proxy.endpoint), words)
        assert "Storage Blob Data Contributor" in str(found)

    def test_a_store_that_ignores_if_none_match(self, place, proxy):
        proxy.without("if-none-match", "PUT", kind="create")
        refused(place.through(proxy.endpoint), "cannot|If-None-Match")

    def test_a_placeholder_that_stays(self, place, proxy):
        proxy.answer(404, "DELETE", key="probes", count=1000)
        refused(place.through(proxy.endpoint), "keeps blocks that were given up")
