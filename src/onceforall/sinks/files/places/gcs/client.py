"""Requests to a bucket by google-cloud-storage, which is imported here only; the package's
docstring has the argument.

Requests are repeated by the client, also those whose answer was lost. Each is one that may be done
twice; who creates (``ifGenerationMatch=0``) must look at what stands there afterwards.

A 404 may mean the bucket, or a gateway: that something isn't there counts only where a listing of
its name, which the store has answered, has none.

Errors are ``GcsError``: with the store's status and a remedy, and without the client's text, which
may show parts of a request.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlsplit

from onceforall.errors import MissingExtraError
from onceforall.sinks.files.folders import PlaceError
from onceforall.sinks.files.paths import PARTS
from onceforall.sinks.files.places.objects.clients import Clients, Made
from onceforall.sinks.files.places.objects.paths import ObjectPath
from onceforall.sinks.files.places.objects.records import MARK
from onceforall.sinks.files.places.objects.store import THREADS, Remedies, StoreError

_TIMEOUT_S = (5.0, 60.0)
"""To connect, and between two bytes of an answer."""
_RETRY_FOR_S = 20.0
_READERS_RETRY_FOR_S = 60.0
_RENEWED_BEFORE = timedelta(minutes=3)
"""Google's client renews a token earlier than this before its end."""
_AT_ONCE = 32
"""How many objects a compose takes."""
_BEGUN = "begun"
_LEVEL = "level-"
"""With this begin the names of what parts are composed to on the way."""
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"

_ROLE = "Grant it the role Storage Object Admin on the bucket"
_REMEDIES: Remedies = (
    (frozenset({"NoSuchBucket"}), "There is no such bucket. Create it, or mend the path", True),
    (
        frozenset({"401", "DefaultCredentialsError", "RefreshError", "MalformedError"}),
        (
            "No credentials were found, or Google doesn't accept them. Give a file by "
            "storage={'credentials_file': …}, in Spark's settings "
            "(fs.gs.auth.service.account.json.keyfile), or in GOOGLE_APPLICATION_CREDENTIALS, on "
            "driver and executors"
        ),
        True,
    ),
    (
        frozenset({"403"}),
        (
            f"The account may not do that. {_ROLE}; if it has that, look whether a hold or a "
            "retention policy of the bucket keeps objects from being deleted"
        ),
        True,
    ),
    (
        frozenset({"ValueError", "400"}),
        "Look whether the bucket's name is one: 3 to 63 small letters, digits, - and _",
        True,
    ),
    (frozenset({"FileNotFoundError"}), "There is no such file of credentials. Mend its path", True),
    (
        frozenset({"429", "503"}),
        "The store is overloaded. Wait, or lower its load",
        False,
    ),
    (
        frozenset(
            {"ConnectionError", "ConnectTimeout", "ReadTimeout", "TransportError", "RetryError"}
        ),
        "The store doesn't answer. Mend the network or the endpoint",
        False,
    ),
)


class GcsError(StoreError):
    """A request to Google Cloud Storage that failed."""

    remedies = _REMEDIES


class GcsBucket:
    """Requests about what lies below a folder. Safe for several threads.

    Args:
        root: the folder.
        settings: as ``FileSink(storage=…)`` has them.

    Raises:
        MissingExtraError: google-cloud-storage isn't installed.
    """

    def __init__(self, root: ObjectPath, settings: Mapping[str, str]) -> None:
        self.root = root
        self._settings = dict(settings)
        self._files: tuple[Any, datetime | None] | None = None
        try:
            import google.cloud.storage  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("google-cloud-storage", "gcs") from error

    def __repr__(self) -> str:
        return f"GcsBucket({str(self.root)!r})"

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings."""
        return self._settings

    @property
    def takers(self) -> str:
        """Who deletes parts."""
        return "somebody deleted its parts, or a rule of the bucket's lifecycle did"

    @property
    def bucket(self) -> Any:
        """Google's client of the bucket; nothing is asked."""
        return _clients.of(self._settings).bucket(self.root.bucket_name)

    def _blob(self, path: ObjectPath) -> Any:
        return self.bucket.blob(path.key)

    # --- objects ----------------------------------------------------------------------------------

    def put(self, path: ObjectPath, content: bytes) -> None:
        """Write an object, whatever stands there."""
        with self._explained("write", path):
            self._blob(path).upload_from_string(
                content, "application/octet-stream", checksum="crc32c", **_patiently()
            )

    def put_new(self, path: ObjectPath, content: bytes) -> None:
        """Write an object if there is none; whatever it raises, it may have been written."""
        with self._explained("create", path):
            self._blob(path).upload_from_string(
                content,
                "application/octet-stream",
                checksum="crc32c",
                if_generation_match=0,
                **_patiently(),
            )

    def get(self, path: ObjectPath) -> bytes:
        """Return an object's content.

        Raises:
            FileNotFoundError: there is none.
        """
        try:
            with self._explained("read", path, missing=True):
                content: bytes = self._blob(path).download_as_bytes(**_patiently())
                return content
        except FileNotFoundError:
            if self.is_absent(path):
                raise
            raise GcsError("read", path, "404") from None

    def head(self, path: ObjectPath) -> tuple[int, Mapping[str, str]] | None:
        """Return an object's size and metadata; None where there is none."""
        with self._explained("look for", path):
            found = self.bucket.get_blob(path.key, **_patiently())
        return None if found is None else (int(found.size), dict(found.metadata or {}))

    def is_absent(self, path: ObjectPath) -> bool:
        """Tell, behind a ``head`` that found no object, whether a listing has none either."""
        with self._explained("look for", path):
            found = self.bucket.list_blobs(prefix=path.key, max_results=1, **_patiently())
            return all(each.name != path.key for each in found)

    def delete(self, path: ObjectPath) -> None:
        """Delete an object; it need not be there."""
        try:
            with self._explained("delete", path, missing=True):
                self._blob(path).delete(**_patiently())
        except FileNotFoundError:
            if not self.is_absent(path):
                raise GcsError("delete", path, "404") from None

    def names(self, folder: ObjectPath, most: int | None = None) -> list[str]:
        """Return the names of what lies in a folder.

        Args:
            folder: the folder.
            most: how many are enough; None: all.
        """
        prefix = f"{folder.key}/" if folder.key else ""
        with self._explained("list", folder):
            listed = self.bucket.list_blobs(
                prefix=prefix, delimiter="/", max_results=most, **_patiently()
            )
            found = {str(each.name)[len(prefix) :] for each in listed}
            found |= {str(each)[len(prefix) :].rstrip("/") for each in listed.prefixes}
        # An object of the folder's own name marks an empty one, for some clients.
        return sorted(found - {""})

    def keys_below(self, folder: ObjectPath) -> list[str]:
        """Return the keys of everything below a prefix, relative to it."""
        prefix = f"{folder.key}/" if folder.key else ""
        return [name for each in self._below(folder) if (name := str(each.name)[len(prefix) :])]

    def _below(self, folder: ObjectPath) -> list[Any]:
        prefix = f"{folder.key}/" if folder.key else ""
        with self._explained("list", folder):
            return list(self.bucket.list_blobs(prefix=prefix, **_patiently()))

    def rules(self) -> tuple[list[Mapping[str, Any]], str]:
        """Return the rules of the bucket's lifecycle, and the storage class of new objects."""
        here = ObjectPath(self.root.bucket)
        with self._explained("read the lifecycle of", here):
            bucket = self.bucket
            bucket.reload(**_patiently())
            return [dict(each) for each in bucket.lifecycle_rules], str(bucket.storage_class or "")

    def file_system(self) -> Any:
        """Return pyarrow's own client, for reading; it is kept, because each has connections of
        its own. With a file of credentials it has a token of an hour, or of what is left of it, and
        there is another one when that has ended.
        """
        if self._files is not None:
            files, until = self._files
            if until is None or datetime.now(timezone.utc) < until - _RENEWED_BEFORE:
                return files
        files, until = self._new_files()
        self._files = files, until
        return files

    def _new_files(self) -> tuple[Any, datetime | None]:
        """Return a client, and when its token ends."""
        from pyarrow.fs import GcsFileSystem

        endpoint = urlsplit(self._settings.get("endpoint", ""))
        given: dict[str, Any] = {"retry_time_limit": timedelta(seconds=_READERS_RETRY_FOR_S)}
        until = None
        if endpoint.netloc:
            given |= {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme}
        if endpoint.scheme == "http":
            given["anonymous"] = True
        elif "credentials_file" in self._settings:
            with self._explained("read", self.root):
                token, until = _token_of(_clients.of(self._settings))
            given |= {"access_token": token, "credential_token_expiration": until}
            until = until and until.replace(tzinfo=timezone.utc)
        return GcsFileSystem(**given), until

    # --- uploads ----------------------------------------------------------------------------------

    def _uploads_of(self, path: ObjectPath) -> ObjectPath:
        # The name has the attempt's in it: no other file has it, in whatever folder.
        return self.root / PARTS / path.name

    def begin_upload(self, path: ObjectPath, metadata: Mapping[str, str]) -> str:
        """Begin an upload, whose id is the mark."""
        upload = metadata.get(MARK) or secrets.token_hex(16)
        self.put(self._uploads_of(path) / upload / _BEGUN, b"")
        return upload

    def send_part(self, path: ObjectPath, upload: str, number: int, content: bytes) -> str:
        """Send a part, and return its checksum.

        Raises:
            GcsError: the store refused, or the upload was given up.
        """
        folder = self._uploads_of(path) / upload
        part = folder / f"{number:05d}"
        with self._explained("send a part of", path):
            blob = self._blob(part)
            blob.upload_from_string(
                content, "application/octet-stream", checksum="crc32c", **_patiently()
            )
        if self._is_given_up(folder):
            self.delete(part)
            raise PlaceError(
                f"{path} is not written any more: this attempt was given up, and what it had sent "
                "was swept away. A later attempt writes its rows",
                refused=False,
            )
        return str(blob.crc32c)

    def parts(self, path: ObjectPath, upload: str) -> list[tuple[str, int]] | None:
        """Return checksum and size of an upload's parts, in order; None where there are none."""
        found = self._parts(path, upload)
        return [(str(each.crc32c), int(each.size)) for each in found] or None

    def _parts(self, path: ObjectPath, upload: str) -> list[Any]:
        """Return the parts, in order, without what a compose has made of some of them."""
        found = self._below(self._uploads_of(path) / upload)
        return [each for each in found if each.name.rpartition("/")[2].isdigit()]

    def complete(self, path: ObjectPath, upload: str, etags: Sequence[str]) -> None:
        """Compose the parts to the object, never over another, and delete them.

        Raises:
            FileNotFoundError: there is an object, perhaps this one; or parts are missing.
        """
        parts = self._parts(path, upload)
        if [str(each.crc32c) for each in parts] != list(etags):
            self._delete_if_ours(path, upload)
            raise FileNotFoundError(2, "parts are missing", str(path))
        folder, level = self._uploads_of(path) / upload, 0
        is_large = len(parts) > _AT_ONCE
        while len(parts) > _AT_ONCE:
            groups = [parts[at : at + _AT_ONCE] for at in range(0, len(parts), _AT_ONCE)]
            parts = [
                self._composed(folder / f"{_LEVEL}{level}-{at}", group, {})
                for at, group in enumerate(groups)
            ]
            level += 1
        if is_large and self._is_given_up(folder):
            # Meanwhile, or completed, and the sweep's listing was perhaps before these. The parts
            # are its to delete, not those of who has only looked.
            self._delete_below(folder, _LEVEL)
            raise FileNotFoundError(2, "the parts are gone", str(path))
        try:
            self._composed(path, parts, {MARK: upload}, if_generation_match=0)
        except FileNotFoundError:
            self._delete_if_ours(path, upload)
            raise
        self.abort(path, upload)

    def _composed(
        self, path: ObjectPath, parts: Sequence[Any], metadata: Mapping[str, str], **condition: int
    ) -> Any:
        with self._explained("complete the upload to", path, missing=True):
            made = self._blob(path)
            made.metadata = dict(metadata)
            made.content_type = "application/octet-stream"
            made.compose(list(parts), **condition, **_patiently())
            return made

    def _delete_if_ours(self, path: ObjectPath, upload: str) -> None:
        found = self.head(path)
        if found is not None and found[1].get(MARK) == upload:
            self.abort(path, upload)

    def abort(self, path: ObjectPath, upload: str) -> None:
        """Delete an upload's parts; they need not be there. ``begun`` goes first: who sends a part
        behind that finds it gone.
        """
        folder = self._uploads_of(path) / upload
        self.delete(folder / _BEGUN)
        self._delete_below(folder)

    def _is_given_up(self, folder: ObjectPath) -> bool:
        """Tell whether an upload was given up, or completed.

        Raises:
            GcsError: its ``begun`` was not found, and is listed.
        """
        begun = folder / _BEGUN
        if self.head(begun) is not None:
            return False
        if self.is_absent(begun):
            return True
        raise GcsError("look for", begun, "404")

    def _delete_below(self, folder: ObjectPath, begin: str = "") -> None:
        """Delete what lies in a folder, and what comes meanwhile: that whose name begins so."""
        while found := [
            each for each in self._below(folder) if each.name.rpartition("/")[2].startswith(begin)
        ]:
            for each in found:
                self.delete(ObjectPath(folder.bucket, each.name))

    def uploads(self, path: ObjectPath) -> list[str]:
        """Return the ids of the uploads to exactly this key."""
        return self.names(self._uploads_of(path))

    def unrecorded(self) -> list[ObjectPath]:
        """Return the files of which there are parts, by their names: parts that arrive when their
        record is gone are found so.
        """
        return [self.root / name for name in self.uploads_below(self.root)]

    def uploads_below(self, folder: ObjectPath) -> list[str]:
        """Return the names of the files of which there are parts; ``folder`` is the sink's."""
        return self.names(folder / PARTS)

    @contextlib.contextmanager
    def _explained(self, what: str, path: ObjectPath, *, missing: bool = False) -> Iterator[None]:
        """Turn the client's errors into ``GcsError``, and, where ``missing`` says so, a 404 or a
        412 into FileNotFoundError.
        """
        from google.api_core.exceptions import GoogleAPIError, NotFound, PreconditionFailed
        from google.auth.exceptions import GoogleAuthError

        try:
            yield
        except (NotFound, PreconditionFailed) as error:
            if missing:
                raise FileNotFoundError(2, f"not there ({error.code})", str(path)) from None
            word = "NoSuchBucket" if isinstance(error, NotFound) else str(error.code)
            raise GcsError(what, path, word) from None
        except (GoogleAPIError, GoogleAuthError, ValueError, OSError) as error:
            if isinstance(error, PlaceError):
                raise
            # Its text may show a request. What was tried in vain has a cause.
            cause: Any = getattr(error, "cause", None) or error
            # What an upload was answered has its status in the answer alone.
            answer = getattr(cause, "response", None)
            status = getattr(cause, "code", None) or getattr(answer, "status_code", None)
            known = str(int(status)) if isinstance(status, int) else None
            raise GcsError(what, path, known or type(cause).__name__) from None


def _patiently() -> dict[str, Any]:
    """Return how each request is repeated: all may be made twice."""
    from google.cloud.storage.retry import DEFAULT_RETRY

    return {"timeout": _TIMEOUT_S, "retry": DEFAULT_RETRY.with_timeout(_RETRY_FOR_S)}


_lock = threading.Lock()


def _new_client(settings: Mapping[str, str]) -> Made:
    from google.api_core.client_options import ClientOptions
    from google.auth.transport.requests import AuthorizedSession
    from google.cloud.storage import Client
    from requests.adapters import HTTPAdapter

    credentials = _credentials(settings)
    authorized: Any = AuthorizedSession
    session = authorized(credentials)
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=THREADS))
    endpoint = settings.get("endpoint")
    options = None if endpoint is None else ClientOptions(api_endpoint=endpoint)
    # The project counts only for requests that aren't made here.
    project = settings.get("project") or "none"
    client: Any = Client
    made = client(project, credentials, _http=session, client_options=options)
    return made, session.close


_clients = Clients(_new_client)


def _token_of(client: Any) -> tuple[str, Any]:
    from google.auth.transport.requests import Request

    credentials = client._credentials  # noqa: SLF001  which it was given
    with _lock:
        if not credentials.valid:
            credentials.refresh(Request())
        return str(credentials.token), credentials.expiry


def _credentials(settings: Mapping[str, str]) -> Any:
    """Return the credentials of the file that was given, else what Google's chain finds."""
    import google.auth
    from google.auth.credentials import AnonymousCredentials
    from google.oauth2 import service_account

    if "credentials_file" in settings:
        keys: Any = service_account.Credentials
        return keys.from_service_account_file(settings["credentials_file"], scopes=[_SCOPE])
    if settings.get("endpoint", "").startswith("http://"):
        # Nobody sends a credential over plain HTTP: it is an emulator.
        nobody: Any = AnonymousCredentials
        return nobody()
    found, _ = google.auth.default([_SCOPE])
    return found
