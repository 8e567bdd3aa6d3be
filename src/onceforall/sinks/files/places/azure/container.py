"""Requests to a container by azure-storage-blob, which is imported here only; the package's
docstring has the argument.

Requests are repeated by the client, also those whose answer was lost. Each is one that may be done
twice; who creates (``If-None-Match``) must look at what stands there afterwards.

That something isn't there counts only in Azure's own words (``BlobNotFound``), which are in the
header of an answer to a HEAD, too: a bare 404 may be a gateway's.

Errors are ``AzureError``: with Azure's own code and a remedy, and without the client's text, which
may have a SAS token in it.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onceforall.errors import MissingExtraError
from onceforall.sinks.files.places.azure import SECRET, credential_of_environment
from onceforall.sinks.files.places.objects.clients import Clients, Made
from onceforall.sinks.files.places.objects.paths import ObjectPath
from onceforall.sinks.files.places.objects.records import MARK
from onceforall.sinks.files.places.objects.store import THREADS, Remedies, StoreError

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 60
_RETRIES = 4
_PAUSE_S = 0.5
_BASE_S = 2
"""Before the first repetition the client waits for ``_PAUSE_S``, and then for 2, 4 and 8 seconds
more."""
_GIVEN_UP = "given up"
_BLOCK = re.compile(r"([0-9a-f]{32})-([0-9]{5})")

_ABSENT = frozenset({"BlobNotFound"})
_STANDS = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"})
_ROLE = (
    "Grant it reading, writing, deleting and listing: the role Storage Blob Data Contributor, or "
    "racwdl in a SAS token"
)
_REMEDIES: Remedies = (
    (
        frozenset({"ContainerNotFound", "ContainerBeingDeleted"}),
        "There is no such container. Create it, or mend the path",
        True,
    ),
    (
        frozenset({"InvalidResourceName", "InvalidUri", "ResourceNotFound", "400"}),
        (
            "Look whether path names a container as Azure has them (3 to 63 small letters, digits "
            "and single hyphens), and endpoint the account"
        ),
        True,
    ),
    (
        frozenset({"AuthenticationFailed", "InvalidAuthenticationInfo", "AzureSigningError"}),
        (
            "Azure doesn't accept the key or the SAS token, or this has expired. Give the right "
            "account_key, or a new sas_token"
        ),
        True,
    ),
    (
        frozenset(
            {
                "AuthorizationFailure",
                "AuthorizationPermissionMismatch",
                "AuthorizationProtocolMismatch",
                "AuthorizationResourceTypeMismatch",
                "AuthorizationServiceMismatch",
                "AuthorizationSourceIPMismatch",
                "InsufficientAccountPermissions",
                "KeyBasedAuthenticationNotPermitted",
                "PublicAccessNotPermitted",
                "403",
            }
        ),
        (
            "The key, the token or the network's address may not do that (some stores answer so to "
            f"a wrong key, too). {_ROLE}"
        ),
        True,
    ),
    (
        frozenset(
            {
                "ClientAuthenticationError",
                "CredentialUnavailableError",
                "NoAuthenticationInformation",
                "401",
            }
        ),
        (
            "No credential was found, or it isn't accepted. Give one in Spark's settings "
            "(fs.azure.account.key.<account>.dfs.core.windows.net), by storage=, or in the "
            "environment of driver and executors, for azure-identity"
        ),
        True,
    ),
    (
        frozenset(
            {"AccountIsDisabled", "BlobImmutableDueToPolicy", "SnapshotsPresent", "LeaseIdMissing"}
        ),
        "Somebody has forbidden that to this account or blob. Undo it, or use another container",
        True,
    ),
    (
        frozenset(
            {"501", "405", "FeatureVersionMismatch", "UnsupportedHeader", "InvalidHeaderValue"}
        ),
        "The store doesn't know this request. Use another one",
        True,
    ),
    (
        frozenset({"ServerBusy", "OperationTimedOut", "503", "429"}),
        "The store is overloaded. Wait, or lower its load",
        False,
    ),
    (
        frozenset(
            {
                "ServiceRequestError",
                "ServiceRequestTimeoutError",
                "ServiceResponseError",
                "ServiceResponseTimeoutError",
                "IncompleteReadError",
                "HttpResponseError",
            }
        ),
        "The store doesn't answer. Mend the network, the account's name or the endpoint",
        False,
    ),
)


class AzureError(StoreError):
    """A request to Azure that failed."""

    remedies = _REMEDIES


class Container:
    """Requests about what lies below a folder. Safe for several threads.

    Args:
        root: the folder.
        settings: ``account_name``, ``endpoint``, a credential, as ``FileSink(storage=…)`` has them.

    Raises:
        MissingExtraError: azure-storage-blob isn't installed.
    """

    def __init__(self, root: ObjectPath, settings: Mapping[str, str]) -> None:
        self.root = root
        self._settings = dict(settings)
        self._name = root.bucket_name.partition("@")[0]
        try:
            import azure.storage.blob  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("azure-storage-blob", "azure") from error

    def __repr__(self) -> str:
        return f"Container({str(self.root)!r})"

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings, with the credential."""
        return self._settings

    @property
    def takers(self) -> str:
        """Who discards blocks."""
        return "somebody discarded its blocks, or Azure did, a week after the last one was sent"

    @property
    def _client(self) -> Any:
        given = {} if SECRET & self._settings.keys() else credential_of_environment()
        return _clients.of(self._settings, **given).get_container_client(self._name)

    def _blob(self, path: ObjectPath) -> Any:
        return self._client.get_blob_client(path.key)

    # --- blobs ------------------------------------------------------------------------------------

    def put(self, path: ObjectPath, content: bytes) -> None:
        """Write a blob, whatever stands there."""
        with self._explained("write", path):
            self._blob(path).upload_blob(content, overwrite=True, validate_content=True)

    def put_new(self, path: ObjectPath, content: bytes) -> None:
        """Write a blob if there is none; whatever it raises, it may have been written."""
        with self._explained("create", path):
            # If-None-Match: *
            self._blob(path).upload_blob(content, overwrite=False, validate_content=True)

    def get(self, path: ObjectPath) -> bytes:
        """Return a blob's content.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._explained("read", path, missing=_ABSENT):
            content: bytes = self._blob(path).download_blob().readall()
            return content

    def head(self, path: ObjectPath) -> tuple[int, Mapping[str, str]] | None:
        """Return a blob's size and metadata; None where there is none, or a placeholder."""
        found = self._looked_at(path)
        if found is None or _is_placeholder(found):
            return None
        return int(found.size), dict(found.metadata)

    def is_absent(self, path: ObjectPath) -> bool:
        """Tell, behind a ``head`` that found no blob, whether there still is none."""
        return self.head(path) is None

    def _looked_at(self, path: ObjectPath) -> Any:
        try:
            with self._explained("look for", path, missing=_ABSENT):
                return self._blob(path).get_blob_properties()
        except FileNotFoundError:
            return None

    def delete(self, path: ObjectPath) -> None:
        """Delete a blob; it need not be there."""
        with (
            contextlib.suppress(FileNotFoundError),
            self._explained("delete", path, missing=_ABSENT),
        ):
            self._blob(path).delete_blob()

    def names(self, folder: ObjectPath, most: int | None = None) -> list[str]:
        """Return the names of what lies in a folder.

        Args:
            folder: the folder.
            most: how many are enough; None: all.
        """
        prefix = f"{folder.key}/" if folder.key else ""
        found: list[str] = []
        with self._explained("list", folder):
            for each in self._client.walk_blobs(prefix, delimiter="/", results_per_page=most):
                # A blob of the folder's own name marks an empty one, for some clients.
                if name := str(each.name)[len(prefix) :].rstrip("/"):
                    found.append(name)
                if most is not None and len(found) >= most:
                    break
        # With a hierarchical namespace a folder is there beside its prefix.
        return sorted(set(found))

    def keys_below(self, folder: ObjectPath) -> list[str]:
        """Return the names of all blobs below a prefix, relative to it."""
        return [name for name, _ in self._below(folder, "metadata")]

    def _below(self, folder: ObjectPath, *include: str) -> list[tuple[str, Any]]:
        prefix = f"{folder.key}/" if folder.key else ""
        with self._explained("list", folder):
            return [
                (name, each)
                for each in self._client.list_blobs(prefix, include=list(include))
                if (name := str(each.name)[len(prefix) :])
                # With a hierarchical namespace folders are listed, too.
                and (each.metadata or {}).get("hdi_isfolder") != "true"
            ]

    def has_hierarchy(self) -> bool:
        """Tell whether the account has a hierarchical namespace; False where it doesn't tell."""
        here = ObjectPath(self.root.bucket)
        try:
            with self._explained("ask for the kind of", here, missing=_ABSENT):
                return bool(self._client.get_account_information().get("is_hns_enabled"))
        except (AzureError, FileNotFoundError):
            return False

    # --- uploads ----------------------------------------------------------------------------------

    def begin_upload(self, path: ObjectPath, metadata: Mapping[str, str]) -> str:  # noqa: ARG002  asks nothing
        """Return the upload's id, which is the mark; nothing is sent."""
        return metadata.get(MARK) or secrets.token_hex(16)

    def send_part(self, path: ObjectPath, upload: str, number: int, content: bytes) -> str:
        """Send a block, and return its number and size."""
        with self._explained("send a block of", path):
            self._blob(path).stage_block(
                _block(upload, number), content, len(content), validate_content=True
            )
        return _part(number, len(content))

    def parts(self, path: ObjectPath, upload: str) -> list[tuple[str, int]] | None:
        """Return the uncommitted blocks of an upload, as ``send_part`` does, with their sizes;
        None where there are none.
        """
        found = sorted(
            (number, size) for its, number, size in self._uncommitted(path) if its == upload
        )
        return [(_part(number, size), size) for number, size in found] or None

    def _uncommitted(self, path: ObjectPath) -> list[tuple[str, int, int]]:
        """Return upload, number and size of a blob's uncommitted blocks, as far as they are of
        FileSink.
        """
        try:
            with self._explained("list the blocks of", path, missing=_ABSENT):
                _, blocks = self._blob(path).get_block_list("uncommitted")
        except FileNotFoundError:
            return []
        return [
            (parts[1], int(parts[2]), int(block.size))
            for block in blocks
            if (parts := _BLOCK.fullmatch(str(block.id)))
        ]

    def complete(self, path: ObjectPath, upload: str, etags: Sequence[str]) -> None:
        """Make the blocks of an upload a blob, never over another.

        Raises:
            FileNotFoundError: there is a blob, perhaps this one; or blocks are missing.
        """
        missing = _STANDS | _ABSENT | {"InvalidBlockList"}
        with self._explained("complete the upload to", path, missing=missing):
            self._commit(path, upload, [_block(upload, at + 1) for at in range(len(etags))])

    def _commit(self, path: ObjectPath, mark: str, blocks: list[str]) -> None:
        from azure.core import MatchConditions
        from azure.storage.blob import BlobBlock

        self._blob(path).commit_block_list(
            [BlobBlock(each) for each in blocks],
            metadata={MARK: mark},
            match_condition=MatchConditions.IfMissing,  # If-None-Match: *
        )

    def abort(self, path: ObjectPath, upload: str) -> None:
        """Discard all blocks of a blob that isn't committed, if some are of this upload."""
        if self.parts(path, upload) is not None:
            with (
                contextlib.suppress(FileNotFoundError),
                # It is committed, or was given up before.
                self._explained("give up the upload to", path, missing=_STANDS),
            ):
                self._commit(path, _GIVEN_UP, [])
        self._delete_placeholder(path)

    def _delete_placeholder(self, path: ObjectPath) -> None:
        from azure.core import MatchConditions

        found = self._looked_at(path)
        if found is None or not _is_placeholder(found):
            return
        with (
            contextlib.suppress(FileNotFoundError),
            self._explained("delete", path, missing=_STANDS | _ABSENT),
        ):
            self._blob(path).delete_blob(
                etag=found.etag, match_condition=MatchConditions.IfNotModified
            )

    def uploads(self, path: ObjectPath) -> list[str]:
        """Return the ids of the uploads with blocks, and "given up" for a placeholder."""
        ids = {upload for upload, _, _ in self._uncommitted(path)}
        found = self._looked_at(path)
        if found is not None:
            # What late answers left on a blob that stands can't become anything any more.
            ids = {_GIVEN_UP} if _is_placeholder(found) else set()
        return sorted(ids)

    def unrecorded(self) -> list[ObjectPath]:
        """Return none: records say what is to be aborted."""
        return []

    def uploads_below(self, folder: ObjectPath) -> list[str]:
        """Return the names below a prefix, relative to it, of blobs that have only blocks, or
        are placeholders.
        """
        every = {name for name, _ in self._below(folder, "uncommittedblobs")}
        standing = {name: each for name, each in self._below(folder, "metadata") if name in every}
        given_up = {name for name, each in standing.items() if _is_placeholder(each)}
        return sorted((every - set(standing)) | given_up)

    @contextlib.contextmanager
    def _explained(
        self, what: str, path: ObjectPath, missing: frozenset[str] = frozenset()
    ) -> Iterator[None]:
        from azure.core import exceptions

        try:
            yield
        except exceptions.AzureError as error:
            code = _code_of(error)
            if code in missing:
                raise FileNotFoundError(2, f"not there ({code})", str(path)) from None
            raise AzureError(what, path, code) from None
        except (ValueError, TypeError, OSError) as error:
            if isinstance(error, StoreError):
                raise
            # Its text may show settings.
            raise AzureError(what, path, type(error).__name__) from None


def _block(upload: str, number: int) -> str:
    """Return a block's id, which the client sends in Base64; those of a blob have one length."""
    return f"{upload}-{number:05d}"


def _part(number: int, size: int) -> str:
    return f"{number}-{size}"


def _is_placeholder(found: Any) -> bool:
    return (found.metadata or {}).get(MARK) == _GIVEN_UP and int(found.size) == 0


def _code_of(error: Any) -> str:
    """Return Azure's word for an error, else its status, else the name of the client's error."""
    code = getattr(error, "error_code", None)
    if code:
        return str(getattr(code, "value", code))
    return str(getattr(error, "status_code", None) or type(error).__name__)


def _new_client(settings: Mapping[str, str]) -> Made:
    import requests
    from azure.core.pipeline.transport import RequestsTransport
    from azure.storage.blob import BlobServiceClient, ExponentialRetry
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=THREADS))
    retries: Any = ExponentialRetry
    client: Any = BlobServiceClient
    made = client(
        settings["endpoint"],
        credential=_credential(settings),
        transport=RequestsTransport(session=session, session_owner=False),
        retry_policy=retries(
            initial_backoff=_PAUSE_S,
            increment_base=_BASE_S,
            retry_total=_RETRIES,
            random_jitter_range=_PAUSE_S,
        ),
        connection_timeout=_CONNECT_TIMEOUT_S,
        read_timeout=_READ_TIMEOUT_S,
    )
    return made, session.close


_clients = Clients(_new_client)


def _credential(settings: Mapping[str, str]) -> Any:
    """Return the key or the token that was given, else that of the environment, by the names that
    obstore knows, else what azure-identity finds.

    Raises:
        MissingExtraError: azure-identity isn't installed.
    """
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

    given = {name: settings[name] for name in SECRET if name in settings}
    for name, value in (given or credential_of_environment()).items():
        if name == "account_key":
            return AzureNamedKeyCredential(settings["account_name"], value)
        return AzureSasCredential(value.lstrip("?"))
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise MissingExtraError("azure-identity", "azure") from error
    return DefaultAzureCredential()
