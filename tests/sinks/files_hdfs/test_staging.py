"""What a temp file and a small file are worth on HDFS, with a client that tells its calls and fails
where it is told to."""

from __future__ import annotations

import io

import pytest

from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.places.hdfs import HdfsTarget, hdfs_root
from onceforall.sinks.files.places.hdfs.staging import HdfsStaging
from onceforall.sinks.files.places.hdfs.tree import HdfsTree


class Status:
    def __init__(self, path, content):
        self.path, self.isdir = path, content is None
        self.length = 0 if content is None else len(content)


class File(io.RawIOBase):
    def __init__(self, client, path):
        super().__init__()
        self.client, self.path = client, path

    def writable(self):
        return True

    def write(self, content):
        self.client.call("write", self.path)
        self.client.files[self.path] += bytes(content)
        return len(content)

    def hsync(self):
        self.client.call("hsync", self.path)

    def close(self):
        if not self.closed:
            self.client.call("close", self.path)
        super().close()


class Client:
    """Files in memory; None is a folder."""

    def __init__(self):
        self.files, self.calls, self.failing = {}, [], {}

    def call(self, name, path):
        self.calls.append((name, path.rpartition("/")[2]))
        if name in self.failing:
            raise self.failing[name]

    def get_file_info(self, path):
        if path not in self.files:
            raise FileNotFoundError(path)
        return Status(path, self.files[path])

    def create(self, path, options):
        assert not options.overwrite
        assert not options.create_parent
        if path in self.files:
            raise FileExistsError(path)
        self.files[path] = b""
        return File(self, path)

    def read(self, path):
        return io.BytesIO(self.files[path])

    def mkdirs(self, path, permission, create_parent):
        self.files.setdefault(path, None)

    def rename(self, source, target, overwrite):
        if source not in self.files:
            raise FileNotFoundError(source)
        if target in self.files and not overwrite:
            raise FileExistsError(target)
        if "rename" in self.failing:
            lost, error = self.failing["rename"]
            if not lost:
                self.files[target] = self.files.pop(source)
            raise error
        self.files[target] = self.files.pop(source)

    def delete(self, path, recursive):
        return self.files.pop(path, b"") != b""


@pytest.fixture
def client(monkeypatch):
    made = Client()
    monkeypatch.setattr(HdfsTarget, "client", lambda self: made)
    return made


@pytest.fixture
def tree():
    return HdfsTree(HdfsTarget(hdfs_root("hdfs://cluster/lake")))


def refused(words="DSQuotaExceededException"):
    return RuntimeError(f'RPCError("org.apache.hadoop.hdfs.protocol.{words}", "no\\n\\tat x")')


def test_a_temp_file_is_synced_before_it_counts(client, tree):
    staging = HdfsStaging(tree, "attempt")
    staging.begin()
    file = staging.open("part", "p=a")
    file.write(b"rows")
    assert staging.end(file) == 4
    assert client.calls == [("write", "part"), ("hsync", "part"), ("close", "part")]


@pytest.mark.parametrize("step", ["write", "hsync", "close"])
def test_a_step_that_fails_fails_the_file(client, tree, step):
    staging = HdfsStaging(tree, "attempt")
    staging.begin()
    file = staging.open("part", "")
    client.failing[step] = refused()
    file.write(b"rows" * (1 << 20))
    with pytest.raises(PlaceError, match="Raise the quota of space"):
        staging.end(file)
    client.failing.clear()
    staging.discard()


def test_nothing_raises_into_a_formats_writer(client, tree):
    staging = HdfsStaging(tree, "attempt")
    file = staging.open("part", "")
    client.failing["write"] = refused()
    assert file.write(b"r" * (5 << 20)) == 5 << 20
    assert file.tell() == 5 << 20
    client.failing.clear()
    with pytest.raises(PlaceError):
        staging.end(file)
    staging.discard()


def test_an_attempt_has_its_folder_for_itself(client, tree):
    HdfsStaging(tree, "attempt").begin()
    with pytest.raises(FileExistsError):
        HdfsStaging(tree, "attempt").begin()


def test_a_small_file_is_synced_before_it_has_its_name(client, tree):
    assert tree.create(tree.root / "one", b"content")
    assert [name for name, _ in client.calls] == ["write", "hsync", "close"]
    assert client.files == {"/lake/one": b"content"}
    assert not tree.create(tree.root / "one", b"other")
    assert client.files == {"/lake/one": b"content"}


def test_an_answer_to_a_rename_that_was_lost_is_found_out(client, tree):
    client.failing["rename"] = (False, refused("ConnectException"))
    assert tree.create(tree.root / "one", b"content")
    client.failing["rename"] = (True, refused("ConnectException"))
    with pytest.raises(PlaceError):
        tree.create(tree.root / "two", b"content")
    assert client.files == {"/lake/one": b"content"}, "no temporary file stays"
