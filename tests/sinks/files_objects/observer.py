"""What an observer sees of a prefix in a store of objects, committed rows and what lies beside them;
and what the commands mend there.

These are tests; each store's folder has a module that imports them, with its marks.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from onceforall.cli import main
from onceforall.errors import CorruptEntryError, SinkUnavailableError
from onceforall.protocol.names import sink_code
from onceforall.sink import CommitPermit, Sweep, TaskAttempt
from onceforall.sinks.files.manifests.chain import Manifests
from onceforall.sinks.files.manifests.content import Manifest, encode
from onceforall.sinks.files.places.objects.tree import ObjectTree
from onceforall.sinks.files.reading.mending import mend_files
from onceforall.testing.observers import FileObserver
from sinks.files.building import QUERY

CODE = sink_code("out")


def prepare(sink, numbers, batch, slot=0, generation=0):
    transaction = sink.begin_transaction(TaskAttempt(QUERY, "out", generation, batch, 0, 0, slot))
    columns = {"value": [str(n) for n in numbers], "key": ["0" for _ in numbers]}
    sink.invoke(transaction, pa.RecordBatch.from_pydict(columns))
    return sink.pre_commit(transaction)


def test_committed_files_are_seen_and_what_lies_beside_them_is_left_over(place):
    observer = FileObserver(place.url, storage=place.storage)
    assert len(observer.rows()) == 0
    assert observer.leftovers() == []
    sink = place.checked(format="json", partition_by=["key"])
    decided = prepare(sink, range(10), 0)
    sink.commit(CommitPermit(0, 1, 0), sink.confirm([decided]))
    assert sorted(observer.rows().ids.tolist()) == list(range(10))
    assert observer.attempts() == {0: frozenset({decided["name"]})}
    assert observer.leftovers() == []
    undecided = prepare(sink, range(10, 20), 1, slot=1)
    found = observer.leftovers()
    assert f"object _onceforall/uploads/{undecided['name']}/0" in found
    assert [each for each in found if each.startswith("upload to ")]
    assert all(undecided["name"] in each for each in found)
    assert len(observer.rows()) == 10
    sink.recover(Sweep(QUERY, "out", 1))
    assert observer.leftovers() == []
    place.put("key=0/part-x.json", b"{}")
    assert observer.leftovers() == ["object key=0/part-x.json"]
    (data,) = [key for key in place.data() if not key.endswith("x.json")]
    place.delete(data)
    with pytest.raises(SinkUnavailableError, match="missing or damaged"):
        FileObserver(place.url, storage=place.storage).rows()


@pytest.mark.long  # as on a disk
def test_a_broken_chain_of_manifests_is_found_and_mended(place, capsys, monkeypatch):
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    settings = [f"--set={name}={place.storage[name]}" for name in place.settings]
    sink = place.checked(format="json")
    for batch in range(3):
        sink.commit(CommitPermit(0, 1, batch), sink.confirm([prepare(sink, [batch], batch)]))
    chain = Manifests(ObjectTree(place.store()), QUERY, CODE)
    found = chain.read_link(2)
    skipping = encode(Manifest(0, found.batches), QUERY, CODE)
    chain.tree.store.put(chain.path_of(2), skipping)
    with pytest.raises(CorruptEntryError, match="onceforall files"):
        place.files()
    assert main(["files", "check", place.url, *settings]) == 1
    assert "2.json: it says that it comes after batch 0" in capsys.readouterr().out
    assert main(["files", "mend", place.url, *settings]) == 0
    assert [batch.files.batch for batch in place.files().batches] == [0, 1, 2]
    (kept,) = [key for key in place.keys("") if "before-mending" in key]
    assert chain.tree.read(chain.tree.root / kept) == skipping
    assert not [key for key in place.keys("") if ".mended" in key]
    assert main(["files", "check", place.url, *settings]) == 0
    # The last one was deleted; its second name is there.
    chain.tree.unlink(chain.path_of(2))
    assert [finding.mended for finding in mend_files(place.url, storage=place.storage)] == [
        "is put back"
    ]
    assert [batch.files.batch for batch in place.files().batches] == [0, 1, 2]
