"""Creating one object, and sending one file, request by request."""

from __future__ import annotations

import pytest

from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.places.objects import staging
from onceforall.sinks.files.places.objects.paths import ObjectPath
from onceforall.sinks.files.places.objects.tree import ObjectTree
from onceforall.sinks.files.places.s3.bucket import S3Error
from onceforall.sinks.files.reading.sources import S3Source

pytestmark = pytest.mark.s3


@pytest.fixture
def tree(place, proxy, monkeypatch):
    """A prefix by way of the proxy, without pauses."""
    monkeypatch.setattr("onceforall.sinks.files.places.objects.tree._PAUSES_S", (0, 0, 0))
    return ObjectTree(place.through(proxy.endpoint).sink()._plan.target.bucket())


def test_an_object_is_created_once(tree):
    path = tree.root / "a"
    assert tree.create(path, b"one")
    assert tree.create(path, b"one")  # the same bytes may be our own, whose answer was lost
    assert not tree.create(path, b"two")
    assert tree.read(path) == b"one"


@pytest.mark.parametrize("does", ["lose", "cut", "twice"])
def test_a_create_whose_answer_is_lost_tells_by_what_stands_there(tree, proxy, does):
    getattr(proxy, does)("PUT", kind="create")
    assert tree.create(tree.root / "a", b"one")
    assert tree.read(tree.root / "a") == b"one"


def test_a_create_that_did_nothing_is_tried_again_and_ends_with_the_stores_word(tree, proxy):
    fault = proxy.answer(409, "PUT", kind="create", count=2)
    assert tree.create(tree.root / "a", b"one")
    assert len(fault.requests) == 2
    proxy.answer(409, "PUT", kind="create", count=1000)
    with pytest.raises(PlaceError, match="ConditionalRequestConflict"):
        tree.create(tree.root / "b", b"one")


def test_a_refused_create_is_not_tried_again(tree, proxy):
    fault = proxy.answer(403, "PUT", kind="create", count=1000)
    with pytest.raises(PlaceError, match="s3:PutObject"):
        tree.create(tree.root / "a", b"one")
    assert len(fault.requests) == 1


def test_a_folder_with_an_object_of_its_own_name_is_one_when_something_lies_in_it(tree, place):
    """Some clients put such an object for an empty folder; it is listed first."""
    folder = tree.root / "manifests"
    place.put("manifests/", b"")
    assert not tree.is_folder(folder)
    tree.create(folder / "0.json", b"{}")
    assert tree.is_folder(folder)
    assert tree.names(folder) == ["0.json"]


def test_a_second_name_is_never_put_over_another_object(tree):
    for name in ("a", "b"):
        tree.create(tree.root / name, name.encode())
    tree.link(tree.root / "a", tree.root / "c")
    assert tree.read(tree.root / "c") == b"a"
    with pytest.raises(FileExistsError):
        tree.link(tree.root / "a", tree.root / "b")


@pytest.mark.parametrize(
    ("code", "refused", "words"),
    [
        ("NoSuchBucket", True, "Create it"),
        ("SignatureDoesNotMatch", True, "right access key"),
        ("ExpiredToken", True, "Give a new one"),
        ("403", True, "s3:ListBucket"),
        ("PermanentRedirect", True, "Give its region"),
        ("NoCredentialsError", True, "by storage="),
        ("SlowDown", False, "Wait"),
        ("EndpointConnectionError", False, "Mend the network"),
        ("InternalError", False, "Mend the cause"),
    ],
)
def test_an_error_says_what_to_do_and_whether_asking_again_can_help(code, refused, words):
    error = S3Error("read", ObjectPath("s3a://b", "k"), code)
    assert error.refused == refused
    assert str(error).startswith(f"cannot read s3a://b/k (the answer was {code}). ")
    assert words in str(error)


class Parts:
    """Takes parts, and keeps their sizes."""

    def __init__(self):
        self.sizes = []

    def send_part(self, path, upload, number, content):
        assert number == len(self.sizes) + 1
        self.sizes.append(len(content))
        return f"etag-{number}"


def test_parts_grow_so_that_the_largest_file_fits(monkeypatch):
    monkeypatch.setattr(staging, "PART_BYTES", 8)
    monkeypatch.setattr(staging, "_LARGEST_PART", 1 << 10)
    parts = Parts()
    upload = staging._Upload(parts, ObjectPath("s3a://b", "k"), "id")
    for _ in range(1000):
        assert upload.write(b"x" * 100) == 100
    assert upload.tell() == 100_000
    assert upload.end() == 100_000 == sum(parts.sizes)
    assert parts.sizes[:65] == [8] * 64 + [16]
    assert max(parts.sizes) <= 1 << 10
    assert len(parts.sizes) < 500


def test_a_file_without_content_has_one_part():
    parts = Parts()
    upload = staging._Upload(parts, ObjectPath("s3a://b", "k"), "id")
    assert upload.end() == 0
    assert parts.sizes == [0]
    assert upload.etags == ["etag-1"]


def test_pyarrow_reads_with_all_that_temporary_keys_are(monkeypatch):
    """Without the session's token they are refused."""
    given = {}
    monkeypatch.setattr("pyarrow.fs.S3FileSystem", lambda **options: given.update(options))
    source = object.__new__(S3Source)
    source._files = None
    source._settings = {
        "access_key_id": "key",
        "secret_access_key": "secret",
        "session_token": "token",
        "region": "eu-central-1",
        "endpoint": "http://127.0.0.1:9000",
    }
    source._file_system()
    assert given == {
        "access_key": "key",
        "secret_key": "secret",
        "session_token": "token",
        "region": "eu-central-1",
        "endpoint_override": "127.0.0.1:9000",
        "scheme": "http",
        "force_virtual_addressing": False,
    }
