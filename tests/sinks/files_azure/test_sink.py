"""What the file sink does in a container: data that nobody sees before the commit, blocks that were
lost, sweeps, placeholders, and what a start refuses."""

from __future__ import annotations

import logging
import pickle

import pytest

from onceforall.errors import (
    AttemptFailedError,
    ConfigurationError,
    RefusedRecordError,
    SinkCheckError,
    SinkUnavailableError,
)
from onceforall.sink import StartInfo, Sweep
from onceforall.sinks.files.driver import manifest_writing
from onceforall.sinks.files.places.azure.container import Container
from onceforall.sinks.files.places.objects import staging
from sinks.files.building import QUERY, attempt, commit, numbers, permit, prepared
from sinks.files_azure.place import Folder

pytestmark = [pytest.mark.azure, pytest.mark.long]


def test_rows_are_seen_behind_the_commit_only_and_nothing_is_left(place):
    sink = place.checked(partition_by=["p"])
    assert place.keys("_onceforall/probes/") == []
    kept = sink.confirm([prepared(sink, numbers(4, p=["a", "b", "a/..", None]))])
    assert place.data() == []
    assert place.files().rows == 0
    assert len(place.uploads()) == 4
    report = sink.commit(permit(), kept)
    assert len(report.completed) == 1
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


def test_what_was_committed_is_a_success_when_it_is_committed_again_also_behind_later_batches(
    place,
):
    sink = place.checked()
    first = commit(sink, 0, numbers(2))
    commit(sink, 1, numbers(2, 2))
    before = place.keys()
    report = place.checked().commit(permit(0), first)
    assert report.completed == tuple(first)
    assert place.keys() == before
    assert place.numbers() == [0, 1, 2, 3]


def test_completing_again_is_told_by_the_mark(place):
    """The manifest isn't there yet: nothing but the blob says that it was done."""
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    container = place.sink()._given.container()
    ((mark, parts),) = kept["uploads"]
    (name,) = place.uploads()
    path = container.root / name.removeprefix(f"{place.key}/")
    container.complete(path, mark, parts)
    with pytest.raises(FileNotFoundError):
        container.complete(path, mark, parts)
    assert sink.commit(permit(), [kept]).completed == (kept,)
    assert place.numbers() == [0, 1]
    assert place.left() == []


def test_a_file_of_many_blocks_is_read_as_it_was_written(place, monkeypatch):
    monkeypatch.setattr(staging, "PART_BYTES", 1 << 20)
    sink = place.checked(format="csv")
    rows = numbers(100_000, t=[f"{number:0150d}" for number in range(100_000)])
    (committable,) = commit(sink, 0, rows)
    ((_, parts),) = committable["uploads"]
    assert len(parts) == 16
    assert place.files().to_arrow().column("t").to_pylist() == rows.column("t").to_pylist()


def test_blocks_that_azure_deleted_are_lost_and_only_their_rows_are_written_again(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(2)), prepared(sink, numbers(2, 2), partition=1)])
    assert place.lose(kept[0]) == 1
    report = sink.commit(permit(), kept)
    assert [each.committable for each in report.lost] == [kept[0]]
    assert "a week after" in report.lost[0].reason
    assert place.data() == [], "a batch that lost a file leaves no other one in the open"
    sink.retire([kept[0]])
    again = sink.confirm([prepared(sink, numbers(2), generation=1)])
    report = sink.commit(permit(), [*again, kept[1]])
    assert not report.lost
    assert place.numbers() == [0, 1, 2, 3]
    assert place.left() == []


def test_of_a_lost_transaction_that_was_completed_in_part_the_rest_is_deleted(place):
    sink = place.checked(partition_by=["p"])
    (kept,) = sink.confirm([prepared(sink, numbers(2, p=["a", "b"]))])
    container = place.sink()._given.container()
    first, second = place.uploads()
    mark, parts = kept["uploads"][0]
    container.complete(container.root / first.removeprefix(f"{place.key}/"), mark, parts)
    place.lose_blocks(second)
    (lost,) = sink.commit(permit(), [kept]).lost
    assert len(place.data()) == 1
    sink.retire([lost.committable])
    assert place.data() == []
    assert place.left() == []


def test_blocks_that_wait_for_their_commit_outlive_the_sink_that_made_them(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(2))])
    sink.close()
    del sink
    assert len(place.uploads()) == 1
    assert place.checked().commit(permit(), kept).completed == tuple(kept)
    assert place.numbers() == [0, 1]
    assert place.left() == []


def test_a_blob_of_somebody_else_under_a_files_name_is_in_doubt_and_stays(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    (name,) = place.uploads()
    place.lose(kept)
    with place.client() as client:
        client.upload_blob(name, b"x" * kept["files"][0][3])
    report = sink.commit(permit(), [kept])
    assert [each.committable for each in report.in_doubt] == [kept]
    assert "isn't ours" in report.in_doubt[0].reason
    sink.retire([kept])
    assert len(place.data()) == 1


def test_blocks_are_never_committed_over_a_blob_of_somebody_else(place, monkeypatch):
    """Where it comes behind the look for it."""
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    (name,) = place.uploads()
    complete = Container.complete

    def overtaken(container, path, upload, parts):
        with place.client() as client:
            blob = client.get_blob_client(name)
            if not blob.exists():
                blob.upload_blob(b"", overwrite=True)
                # Azure itself has discarded the blocks by that; a late one may still come.
                blob.stage_block(f"{upload}-00001", b"x" * kept["files"][0][3])
        complete(container, path, upload, parts)

    monkeypatch.setattr(Container, "complete", overtaken)
    report = sink.commit(permit(), [kept])
    assert [each.committable for each in report.in_doubt] == [kept]
    with place.client() as client:
        assert client.download_blob(name).readall() == b""


def test_a_blob_of_another_size_under_our_mark_is_in_doubt(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    (name,) = place.uploads()
    place.lose(kept)
    with place.client() as client:
        client.upload_blob(name, b"tampered", metadata={"onceforall": kept["mark"]})
    assert len(sink.commit(permit(), [kept]).in_doubt) == 1


@pytest.mark.parametrize("what", ["lost", "taken", "grown", "replaced"])
def test_confirm_refuses_blocks_that_could_not_be_committed(place, what):
    sink = place.checked()
    committable = prepared(sink, numbers(2))
    (name,) = place.uploads()
    ((mark, _),) = committable["uploads"]
    with place.client() as client:
        blob = client.get_blob_client(name)
        if what == "lost":
            place.lose_blocks(name)
        elif what == "taken":
            place.lose_blocks(name)
            blob.upload_blob(b"theirs")
            blob.stage_block(f"{mark}-00001", b"x" * committable["files"][0][3])
        elif what == "grown":
            blob.stage_block(f"{mark}-00002", b"more")
        else:
            blob.stage_block(f"{mark}-00001", b"x")
            blob.stage_block(f"{mark}-00002", b"x" * (committable["files"][0][3] - 1))
    with pytest.raises(AttemptFailedError, match="Nothing of this batch is decided"):
        sink.confirm([committable])


def test_a_sweep_discards_the_blocks_that_it_covers_and_nobody_elses(place):
    sink = place.checked()
    with place.client() as client:
        client.get_blob_client(f"{place.key}/part-theirs").stage_block("x", b"theirs")
    theirs = place.uploads()
    spared = prepared(sink, numbers(1))
    prepared(sink, numbers(1, 1))
    prepared(sink, numbers(1, 2), query="6f1c2d3e-0000-4000-8000-000000000002")
    prepared(sink, numbers(1, 3), generation=2)
    assert len(place.uploads()) == 5
    assert sink.recover(Sweep(QUERY, "out", 1, spared={spared["name"]})) == 1
    assert len(place.uploads()) == 4
    assert sink.recover(Sweep(QUERY, "out", 1, spared={spared["name"]})) == 0
    assert sink.recover(Sweep(QUERY, "out", 3, spared={spared["name"]})) == 1
    assert set(theirs) < set(place.uploads())
    assert place.data() == []
    (kept,) = sink.confirm([spared])
    assert len(sink.commit(permit(), [kept]).completed) == 1


def test_abort_and_discard_leave_nothing_and_may_come_again(place):
    sink = place.checked(partition_by=["p"])
    committable = prepared(sink, numbers(2, p=["a", "b"]))
    sink.abort([committable])
    sink.abort([committable])
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2, p=["a", "b"]))
    sink.discard(transaction)
    sink.discard(transaction)
    assert place.left() == []


def test_a_late_task_whose_record_was_swept_sends_nothing(place, monkeypatch):
    sink = place.checked()
    transaction = sink.begin_transaction(attempt())
    sink.invoke(transaction, numbers(2))
    begin = Container.begin_upload

    def begin_late(container, path, metadata):
        assert place.sink().recover(Sweep(QUERY, "out", 1)) == 1
        return begin(container, path, metadata)

    monkeypatch.setattr(Container, "begin_upload", begin_late)
    with pytest.raises(AttemptFailedError, match="swept"):
        sink.pre_commit(transaction)
    sink.discard(transaction)
    assert place.left() == []


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
    assert len(place.uploads()) == 1, "Azure deletes these after a week"
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
        assert place.uploads() == []
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
        with place.client() as client:
            client.upload_blob(f"{place.key}/{name}", b"", overwrite=True)
        assert sink.recover(Sweep(QUERY, "out", 1)) == 1
        assert place.data() == [name]


def test_a_commit_before_an_abort_wins(place):
    sink = place.checked()
    (kept,) = sink.confirm([prepared(sink, numbers(2))])
    container = place.sink()._given.container()
    ((mark, parts),) = kept["uploads"]
    path = container.root / place.uploads()[0].removeprefix(f"{place.key}/")
    container.complete(path, mark, parts)
    container.abort(path, mark)
    # Also where a late answer has left a block on it.
    container.send_part(path, mark, 1, b"late")
    container.abort(path, mark)
    assert container.uploads(path) == []
    assert len(sink.commit(permit(), [kept]).completed) == 1
    assert place.numbers() == [0, 1]


def test_a_record_that_names_another_blob_discards_nothing(place):
    sink = place.checked()
    committable = prepared(sink, numbers(1))
    (record,) = place.keys("_onceforall/uploads/")
    with place.client() as client:
        client.get_blob_client("theirs").stage_block(f"{'0' * 32}-00001", b"theirs")
        client.upload_blob(f"{place.key}/{record}", b'{"key": "theirs"}', overwrite=True)
    with pytest.raises(SinkUnavailableError, match="not written by FileSink"):
        sink.abort([committable])
    assert "theirs" in place.uploads()


def test_manifests_are_merged_and_read_whole(place, monkeypatch):
    monkeypatch.setattr(manifest_writing, "MERGE_AFTER", 3)
    sink = place.checked()
    for batch in range(7):
        commit(sink, batch, numbers(1, batch))
    assert place.numbers() == list(range(7))
    assert any("-" in key.rpartition("/")[2] for key in place.keys("_onceforall/manifests/"))


@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_each_format_is_read_back(place, form, compression):
    sink = place.checked(format=form, compression=compression, partition_by=["p"])
    values = ["a", "ü +%/?", None, "Inc.", "..."]
    commit(sink, 0, numbers(5, p=values))
    table = place.files().to_arrow().sort_by("n")
    assert table.column("n").to_pylist() == [0, 1, 2, 3, 4]
    assert table.column("p").to_pylist() == values
    assert sum(batch.num_rows for batch in place.files().dataset().to_batches()) == 5
    assert not [key for key in place.data() if "./" in key]


def test_a_partition_that_no_listing_could_show_is_refused_with_its_row(place):
    sink = place.checked(partition_by=["p"])
    with pytest.raises(RefusedRecordError, match=r"U\+FFFE, which can't be listed"):
        prepared(sink, numbers(1, p=["a\ufffeb"]))
    assert sink.recover(Sweep(QUERY, "out", 1)) == 0


def test_another_id_means_another_target(place):
    sink = place.checked()
    kept = sink.confirm([prepared(sink, numbers(1))])
    other = Folder(place.container, place.storage, "lake/other")
    assert other.sink().identity(StartInfo(QUERY, "out")) is None
    assert sink.identity(StartInfo(QUERY, "out")) != other.checked().identity(
        StartInfo(QUERY, "out")
    )
    (doubt,) = other.sink().commit(permit(), kept).in_doubt
    assert "was decided for the folder with the id" in doubt.reason
    assert other.data() == []


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
    def refused(self, place, match):
        sink = place.sink()
        with pytest.raises(SinkCheckError, match=match) as caught:  # noqa: PT012  either raises
            sink.identity(StartInfo(QUERY, "out"))
            sink.check(StartInfo(QUERY, "out"))
        for secret in sink.secrets().values():
            assert secret not in str(caught.value)
        return caught.value

    def test_a_container_that_is_missing(self, place):
        self.refused(Folder("no-such-one", place.storage), "no such container. Create it")

    def test_a_wrong_key(self, place):
        wrong = Folder(place.container, {**place.storage, "account_key": "aGFsbG8="})
        self.refused(wrong, "wrong key")

    def test_a_token_that_has_expired(self, place, azurite):
        storage = {"endpoint": azurite.endpoint, "sas_token": azurite.sas_token(minutes=-5)}
        self.refused(Folder(place.container, storage), "Authori|Authen")

    def test_a_token_that_may_not_write(self, place, azurite):
        storage = {"endpoint": azurite.endpoint, "sas_token": azurite.sas_token("rl")}
        self.refused(Folder(place.container, storage), "racwdl in a SAS token")

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
        found = self.refused(place.through(proxy.endpoint), words)
        assert "Storage Blob Data Contributor" in str(found)

    def test_a_store_that_ignores_if_none_match(self, place, proxy):
        proxy.without("if-none-match", "PUT", kind="create")
        self.refused(place.through(proxy.endpoint), "cannot|If-None-Match")

    def test_a_placeholder_that_stays(self, place, proxy):
        proxy.answer(404, "DELETE", key="probes", count=1000)
        self.refused(place.through(proxy.endpoint), "keeps blocks that were given up")

    def test_a_log_of_sparks_own_sink(self, place):
        with place.client() as client:
            client.upload_blob(f"{place.key}/_spark_metadata/0", b"v1\n")
        self.refused(place, "_spark_metadata")

    def test_something_foreign_under_our_name(self, place):
        with place.client() as client:
            client.upload_blob(f"{place.key}/_onceforall/x", b"")
        self.refused(place, "was not written by FileSink")


def test_what_is_not_there_says_so(place):
    place.checked()
    with pytest.raises(ConfigurationError, match="holds no folder _onceforall|does not exist"):
        Folder(place.container, place.storage, "nothing").files()
