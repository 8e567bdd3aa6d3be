"""S3, GCS and Azure by obstore: for where there is no JVM (commands, workers), and for stores at
which Hadoop's client can't create exclusively.

A create is one PUT with ``If-None-Match: *`` (on GCS ``x-goog-if-generation-match: 0``), sent once:
obstore's own retries are off for it, for they would turn an own create whose answer was lost into
"exists" without a word. Reads and deletions may be sent again, and are.

Settings have obstore's names (https://developmentseed.org/obstore/latest/api/store/aws/): the
``AWS_…``, ``GOOGLE_…`` and ``AZURE_…`` variables of the environment count, and what is given
overrides them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from onceforall.commit_log.stores.client import Creation
from onceforall.errors import CommitLogError, MissingExtraError, OptionError

__all__ = ["SCHEMES", "ObjectClient"]

SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "az": "az",
}
"""The schemes of object stores, and what obstore calls each."""

_TIMEOUT_S = 30
_CONNECT_TIMEOUT_S = 5
_NO_CONDITION = """\
The store doesn't know conditional puts (If-None-Match), on which the log rests. Use another one"""
_NOT_ALLOWED = """\
The key may not do that. Grant it GetObject, PutObject, DeleteObject and ListBucket, and let the \
policy allow If-None-Match"""
_REMEDIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    # What to do, and the words by which it is known, in lower case; the first that fits.
    ("There is no such bucket. Create it, or mend the URL", ("nosuchbucket",)),
    (
        "The store doesn't accept the key. Give the right access key and secret",
        ("signaturedoesnotmatch", "invalidaccesskeyid"),
    ),
    ("The session token has expired. Give a new one", ("expiredtoken", "token has expired")),
    (
        "No credentials were found. Give some in the environment or by onceforall.store.*",
        # The address at which a cloud's machines ask for theirs.
        ("169.254.169.254", "credential", "unauthenticated", "401 unauthorized"),
    ),
    (_NOT_ALLOWED, ("accessdenied", "403 forbidden", "permission")),
    (
        "The bucket is in another region. Give its region",
        ("moved permanently", "authorizationheadermalformed", "permanentredirect"),
    ),
    (_NO_CONDITION, ("notimplemented", "not implemented")),
    ("The store is overloaded. Wait, or lower its load", ("slowdown", "503", "429")),
    (
        "The store doesn't answer. Mend the network or the endpoint",
        ("dns", "timed out", "timeout", "error sending request"),
    ),
)


class ObjectClient:
    """A prefix in a bucket.

    Args:
        url: of the prefix, such as ``s3a://bucket/checkpoints/ads``.
        settings: obstore's, such as ``endpoint``, ``region`` or ``access_key_id``; values are never
            shown.

    Raises:
        MissingExtraError: obstore isn't installed.
        OptionError: the URL or a setting is wrong.
    """

    is_far = True

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        try:
            import obstore
            import obstore.store
        except ImportError as error:
            raise MissingExtraError("obstore", "stores") from error
        self._obstore: Any = obstore
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in SCHEMES:
            raise OptionError(
                f"{url} has the scheme {parts.scheme!r}; the object stores are "
                f"{', '.join(sorted(SCHEMES))}."
            )
        given = dict(settings or {})
        for name in ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url"):
            endpoint = given.get(name)
            # Without a scheme obstore panics, with an error that is none.
            if endpoint is not None and urlsplit(endpoint).scheme not in {"http", "https"}:
                raise OptionError(
                    f"The endpoint of {url} must begin with http:// or https://. Write it in full."
                )
        self._where = f"{SCHEMES[parts.scheme]}://{parts.netloc}{parts.path}"
        self._once = self._open(given, retries=0)
        self._again = self._open(given, retries=5)

    def __repr__(self) -> str:
        return f"ObjectClient({self.url!r})"

    def _open(self, settings: Mapping[str, str], *, retries: int) -> Any:
        # The environment's too, which obstore reads by itself.
        given = {**os.environ, **settings}
        plain = any(
            value.startswith("http://")
            for name, value in given.items()
            if "endpoint" in name.lower() or "EMULATOR" in name
        )
        try:
            return self._obstore.store.from_url(
                self._where,
                config=dict(settings) or None,
                client_options={
                    "timeout": f"{_TIMEOUT_S}s",
                    "connect_timeout": f"{_CONNECT_TIMEOUT_S}s",
                    **({"allow_http": True} if plain else {}),
                },
                retry_config={
                    "max_retries": retries,
                    "retry_timeout": timedelta(seconds=3 * _TIMEOUT_S),
                },
            )
        except self._obstore.exceptions.UnknownConfigurationKeyError as error:
            raise OptionError(
                f"A setting of the store of {self.url} is unknown to obstore: "
                f"{', '.join(sorted(settings))}. See its documentation for the names."
            ) from error
        except Exception as error:  # noqa: BLE001  its own errors may show a setting's value
            raise OptionError(
                f"The store of {self.url} can't be opened with these settings "
                f"({', '.join(sorted(settings)) or 'none'}): {type(error).__name__}. "
                "Mend the URL or the settings."
            ) from None

    def read(self, key: str) -> bytes | None:
        """Return an object's content; None where there is none."""
        with self._explained("read", key):
            try:
                return bytes(self._obstore.get(self._again, key).bytes())
            except (FileNotFoundError, self._obstore.exceptions.NotFoundError) as error:
                if _names_the_bucket(error):
                    raise
                return None

    def create(
        self, key: str, content: bytes, in_time: Callable[[], bool] | None = None
    ) -> Creation:
        """PUT with ``If-None-Match: *``, once."""
        with self._explained("create", key):
            if in_time is not None and not in_time():
                return "too late"
            try:
                # Not as a multipart upload: only of a single PUT it is known what it excludes.
                self._obstore.put(self._once, key, content, mode="create", use_multipart=False)
            except (
                self._obstore.exceptions.AlreadyExistsError,
                self._obstore.exceptions.PreconditionError,
                FileExistsError,
            ):
                return "exists"
            return "created"

    def replace(self, key: str, content: bytes) -> None:
        """PUT, whatever stands there."""
        with self._explained("write", key):
            self._obstore.put(self._again, key, content, use_multipart=False)

    def delete(self, key: str) -> None:
        """DELETE."""
        with self._explained("delete", key):
            try:
                self._obstore.delete(self._again, key)
            except (FileNotFoundError, self._obstore.exceptions.NotFoundError):
                return

    def exists(self, key: str) -> bool:
        """HEAD."""
        with self._explained("look for", key):
            try:
                self._obstore.head(self._again, key)
            except (FileNotFoundError, self._obstore.exceptions.NotFoundError):
                return False
            return True

    def list(self, folder: str) -> list[str]:
        """LIST with a delimiter, all pages."""
        with self._explained("list", folder):
            found = self._obstore.list_with_delimiter(self._again, folder or None)
            prefix = f"{folder}/" if folder else ""
            # An object of the folder's own name, but for a slash that isn't shown, marks a folder,
            # as S3A does it.
            files = (
                path.removeprefix(prefix)
                for each in found["objects"]
                if (path := str(each["path"])) != folder
            )
            folders = (
                f"{str(each).rstrip('/').removeprefix(prefix)}/"
                for each in found["common_prefixes"]
            )
            return sorted(name for name in (*files, *folders) if name.strip("/"))

    def move(self, key: str, to: str) -> None:
        """Copy, then delete: a crash between the two leaves both."""
        with self._explained("move", key):
            self._obstore.copy(self._again, key, to)
            self._obstore.delete(self._again, key)

    @contextmanager
    def _explained(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, self._obstore.exceptions.BaseError) as error:
            raise CommitLogError(
                f"cannot {action} {self.url}/{key}: {_sentence(str(error))}"
            ) from None


def _names_the_bucket(error: BaseException) -> bool:
    return "nosuchbucket" in str(error).lower()


def _sentence(said: str) -> str:
    """Return what a person can do about an error, with the store's own code for it.

    What obstore says in full has its own insides behind, and at times the headers of a request.
    """
    said = said.partition("\n\nDebug source")[0]
    low = said.lower()
    found = next((remedy for remedy, words in _REMEDIES if any(w in low for w in words)), None)
    return f"{found or 'Mend the cause'} ({_code(said)}), then restart the query."


def _code(said: str) -> str:
    code = re.search(r"<Code>(\w+)</Code>", said)
    if code is not None:
        return f"the store said {code[1]}"
    status = re.search(r"status code: (\d{3}[ A-Za-z]*)", said)
    if status is not None:
        return f"the store said {status[1].strip()}"
    return said.rpartition(" - ")[2].partition("\n")[0][:120]
