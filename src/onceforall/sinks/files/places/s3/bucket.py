"""Requests to a bucket by boto3, which is imported here only. It is boto3 and not obstore, for that
one doesn't tell the ids of multipart uploads.

Requests are repeated by boto3, also those whose answer was lost. Each is one that may be done
twice; who creates (``If-None-Match``) must compare what stands there afterwards, and who begins an
upload must look for a second one (``begin_upload`` does).

That something isn't there counts only in S3's own words (``NoSuchKey``, ``NoSuchUpload``): a bare
404 may be a gateway's. The answer to a HEAD has no words, so ``is_absent`` asks once more.

Errors are ``S3Error``: with the store's own code and a remedy, and without its message, which may
show parts of a request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onceforall.errors import MissingExtraError
from onceforall.sinks.files.places.objects.clients import Clients, Made
from onceforall.sinks.files.places.objects.paths import ObjectPath
from onceforall.sinks.files.places.objects.store import THREADS, Remedies, StoreError

_ATTEMPTS = 5
_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 60

_RIGHTS = (
    "Grant it s3:PutObject, s3:GetObject, s3:DeleteObject, s3:AbortMultipartUpload, "
    "s3:ListMultipartUploadParts, s3:ListBucket and s3:ListBucketMultipartUploads"
)
_REGION = (
    "The bucket is in another region. Give its region: fs.s3a.endpoint.region, or "
    "storage={'region': …}"
)
_NO_KEYS = (
    "No keys were found. Give them in Spark's settings (fs.s3a.access.key), by storage=, or in the "
    "environment of driver and executors (keys that are Spark's settings aren't seen through Spark "
    "Connect from Spark 4.3 on)"
)
_REMEDIES: Remedies = (
    (frozenset({"NoSuchBucket"}), "There is no such bucket. Create it, or mend the path", True),
    (
        frozenset(
            {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "XAdminUserNotFound"}
        ),
        "The store doesn't accept the key. Give the right access key and secret",
        True,
    ),
    (
        frozenset({"ExpiredToken", "TokenRefreshRequired", "RequestExpired"}),
        "The session token has expired. Give a new one",
        True,
    ),
    (
        frozenset({"AccessDenied", "403", "Forbidden", "AllAccessDisabled"}),
        f"The key may not do that. {_RIGHTS}",
        True,
    ),
    (
        frozenset(
            {
                "PermanentRedirect",
                "301",
                "AuthorizationHeaderMalformed",
                "IllegalLocationConstraintException",
                "TemporaryRedirect",
            }
        ),
        _REGION,
        True,
    ),
    (
        frozenset({"NotImplemented", "MethodNotAllowed", "501", "405"}),
        "The store doesn't know this request. Use another store",
        True,
    ),
    (
        # https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-lock-managing.html
        frozenset({"InvalidRequest"}),
        (
            "A bucket whose Object Lock gives each object a retention wants checksums, which are "
            "not sent here, and keeps all that should be deleted. Use another bucket"
        ),
        True,
    ),
    (
        frozenset({"NoCredentialsError", "PartialCredentialsError"}),
        _NO_KEYS,
        True,
    ),
    (
        frozenset({"SlowDown", "ServiceUnavailable", "503", "429", "RequestLimitExceeded"}),
        "The store is overloaded. Wait, or lower its load",
        False,
    ),
    (
        frozenset(
            {
                "EndpointConnectionError",
                "ConnectTimeoutError",
                "ReadTimeoutError",
                "ConnectionClosedError",
                "ConnectionError",
                "HTTPClientError",
                "ProxyConnectionError",
                "SSLError",
            }
        ),
        "The store doesn't answer. Mend the network or the endpoint",
        False,
    ),
)


class S3Error(StoreError):
    """A request to S3 that failed."""

    remedies = _REMEDIES


class Bucket:
    """Requests about what lies below a prefix. Safe for several threads.

    Args:
        root: the prefix.
        settings: ``endpoint``, ``region``, keys, as ``FileSink(storage=…)`` has them.

    Raises:
        MissingExtraError: boto3 isn't installed.
    """

    def __init__(self, root: ObjectPath, settings: Mapping[str, str]) -> None:
        self.root = root
        self._settings = dict(settings)
        self._name = root.bucket_name
        try:
            import boto3  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("boto3", "s3") from error

    def __repr__(self) -> str:
        return f"Bucket({str(self.root)!r})"

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings, with the keys."""
        return self._settings

    @property
    def takers(self) -> str:
        """Who aborts uploads."""
        return "somebody aborted it, or a rule of the bucket's lifecycle did"

    @property
    def _client(self) -> Any:
        return _clients.of(self._settings)

    # --- objects ----------------------------------------------------------------------------------

    def put(self, path: ObjectPath, content: bytes) -> None:
        """Write an object, whatever stands there."""
        with self._explained("write", path):
            self._client.put_object(Bucket=self._name, Key=path.key, Body=content)

    def put_new(self, path: ObjectPath, content: bytes) -> None:
        """Write an object if there is none; whatever it raises, it may have been written."""
        with self._explained("create", path):
            self._client.put_object(Bucket=self._name, Key=path.key, Body=content, IfNoneMatch="*")

    def get(self, path: ObjectPath) -> bytes:
        """Return an object's content.

        Raises:
            FileNotFoundError: there is none.
        """
        return self._got(path)

    def _got(self, path: ObjectPath, part: str | None = None) -> bytes:
        with self._explained("read", path, missing={"NoSuchKey"}):
            only = {} if part is None else {"Range": part}
            answer = self._client.get_object(Bucket=self._name, Key=path.key, **only)
            with contextlib.closing(answer["Body"]) as body:
                content: bytes = body.read()
            return content

    def head(self, path: ObjectPath) -> tuple[int, Mapping[str, str]] | None:
        """Return an object's size and metadata; None where there is none."""
        try:
            with self._explained("look for", path, missing={"NoSuchKey", "404"}):
                answer = self._client.head_object(Bucket=self._name, Key=path.key)
                return int(answer["ContentLength"]), dict(answer["Metadata"])
        except FileNotFoundError:
            return None

    def is_absent(self, path: ObjectPath) -> bool:
        """Tell, behind a HEAD that found no object, whether the store itself says so.

        Raises:
            S3Error: somebody else says it, or nobody.
        """
        try:
            self._got(path, "bytes=0-0")
        except FileNotFoundError:
            return True
        return False

    def delete(self, path: ObjectPath) -> None:
        """Delete an object; it need not be there."""
        with (
            self._explained("delete", path, missing={"NoSuchKey"}),
            contextlib.suppress(FileNotFoundError),
        ):
            self._client.delete_object(Bucket=self._name, Key=path.key)

    def names(self, folder: ObjectPath, most: int | None = None) -> list[str]:
        """Return the names of what lies in a folder.

        Args:
            folder: the folder.
            most: how many are enough; None: all.
        """
        prefix = f"{folder.key}/" if folder.key else ""
        found: list[str] = []
        more: dict[str, Any] = {} if most is None else {"MaxKeys": most}
        while True:
            with self._explained("list", folder):
                answer = self._client.list_objects_v2(
                    Bucket=self._name, Prefix=prefix, Delimiter="/", **more
                )
            found += [each["Key"][len(prefix) :] for each in answer.get("Contents", ())]
            found += [
                each["Prefix"][len(prefix) :].rstrip("/")
                for each in answer.get("CommonPrefixes", ())
            ]
            token = answer.get("NextContinuationToken")
            if not token or (most is not None and len(found) >= most):
                # An object of the folder's own name marks an empty one, for some clients.
                return [name for name in found if name]
            more["ContinuationToken"] = token

    def keys_below(self, folder: ObjectPath) -> list[str]:
        """Return the keys of everything below a prefix, relative to it."""
        prefix = f"{folder.key}/" if folder.key else ""
        found: list[str] = []
        more: dict[str, Any] = {}
        while True:
            with self._explained("list", folder):
                answer = self._client.list_objects_v2(Bucket=self._name, Prefix=prefix, **more)
            found += [each["Key"][len(prefix) :] for each in answer.get("Contents", ())]
            token = answer.get("NextContinuationToken")
            if not token:
                return [name for name in found if name]
            more["ContinuationToken"] = token

    # --- uploads ----------------------------------------------------------------------------------

    def begin_upload(self, path: ObjectPath, metadata: Mapping[str, str]) -> str:
        """Begin an upload, and return its id.

        An answer that was lost leaves an upload that nobody knows: where the request was repeated,
        all others of this key are aborted.
        """
        with self._explained("begin an upload to", path):
            answer = self._client.create_multipart_upload(
                Bucket=self._name, Key=path.key, Metadata=dict(metadata)
            )
        upload = str(answer["UploadId"])
        if answer["ResponseMetadata"].get("RetryAttempts"):
            for other in self.uploads(path):
                if other != upload:
                    self.abort(path, other)
        return upload

    def send_part(self, path: ObjectPath, upload: str, number: int, content: bytes) -> str:
        """Send a part, and return its ETag."""
        with self._explained("send a part of", path):
            answer = self._client.upload_part(
                Bucket=self._name, Key=path.key, UploadId=upload, PartNumber=number, Body=content
            )
        return str(answer["ETag"]).strip('"')

    def parts(self, path: ObjectPath, upload: str) -> list[tuple[str, int]] | None:
        """Return ETag and size of an upload's parts, in order; None where there is no such
        upload.
        """
        found: list[tuple[str, int]] = []
        marker: dict[str, int] = {}
        while True:
            try:
                with self._explained("list the parts of", path, missing={"NoSuchUpload"}):
                    answer = self._client.list_parts(
                        Bucket=self._name, Key=path.key, UploadId=upload, **marker
                    )
            except FileNotFoundError:
                return None
            found += [
                (str(each["ETag"]).strip('"'), int(each["Size"]))
                for each in answer.get("Parts", ())
            ]
            if not answer.get("IsTruncated"):
                return found
            marker = {"PartNumberMarker": int(answer["NextPartNumberMarker"])}

    def complete(self, path: ObjectPath, upload: str, etags: Sequence[str]) -> None:
        """Complete an upload.

        Raises:
            FileNotFoundError: there is no such upload: completed before, or aborted.
        """
        parts = [{"PartNumber": at, "ETag": etag} for at, etag in enumerate(etags, start=1)]
        with self._explained("complete the upload to", path, missing={"NoSuchUpload"}):
            self._client.complete_multipart_upload(
                Bucket=self._name, Key=path.key, UploadId=upload, MultipartUpload={"Parts": parts}
            )

    def abort(self, path: ObjectPath, upload: str) -> None:
        """Abort an upload; it need not be there."""
        with (
            contextlib.suppress(FileNotFoundError),
            self._explained("abort the upload to", path, missing={"NoSuchUpload"}),
        ):
            self._client.abort_multipart_upload(Bucket=self._name, Key=path.key, UploadId=upload)

    def uploads(self, path: ObjectPath) -> list[str]:
        """Return the ids of the uploads to exactly this key."""
        return [upload for key, upload in self._uploads(path, path.key) if key == path.key]

    def unrecorded(self) -> list[ObjectPath]:
        """Return none: records say what is to be aborted."""
        return []

    def uploads_below(self, folder: ObjectPath) -> list[str]:
        """Return the keys below a prefix, relative to it, of incomplete uploads."""
        prefix = f"{folder.key}/" if folder.key else ""
        return [key[len(prefix) :] for key, _ in self._uploads(folder, prefix)]

    def _uploads(self, path: ObjectPath, prefix: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        marker: dict[str, str] = {}
        while True:
            with self._explained("list the uploads to", path):
                answer = self._client.list_multipart_uploads(
                    Bucket=self._name, Prefix=prefix, **marker
                )
            found += [
                (str(each["Key"]), str(each["UploadId"])) for each in answer.get("Uploads", ())
            ]
            if not answer.get("IsTruncated"):
                return found
            marker = {
                "KeyMarker": answer["NextKeyMarker"],
                "UploadIdMarker": answer["NextUploadIdMarker"],
            }

    def region(self) -> str | None:
        """Return the bucket's region, as the store tells it also where it refuses; else that in
        which requests are signed; None: there is none.
        """
        from botocore.exceptions import ClientError

        with self._explained("ask for the region of", ObjectPath(self.root.bucket)):
            try:
                answer = self._client.head_bucket(Bucket=self._name)
            except ClientError as error:
                answer = error.response
        headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        found: str | None = headers.get("x-amz-bucket-region") or self._client.meta.region_name
        return found

    def lifecycle(self) -> list[Mapping[str, Any]]:
        """Return the rules of the bucket's lifecycle."""
        here = ObjectPath(self.root.bucket)
        try:
            with self._explained(
                "read the lifecycle of", here, missing={"NoSuchLifecycleConfiguration"}
            ):
                answer = self._client.get_bucket_lifecycle_configuration(Bucket=self._name)
        except FileNotFoundError:
            return []
        return list(answer.get("Rules", ()))

    @contextlib.contextmanager
    def _explained(
        self, what: str, path: ObjectPath, missing: frozenset[str] | set[str] = frozenset()
    ) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            told = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", "nothing known")
            code = str(error.response.get("Error", {}).get("Code") or told)
            if code in missing:
                raise FileNotFoundError(2, f"not there ({code})", str(path)) from None
            raise S3Error(what, path, code) from None
        except (BotoCoreError, ValueError, OSError) as error:
            if isinstance(error, S3Error):
                raise
            # Its text may show settings.
            raise S3Error(what, path, type(error).__name__) from None


def _new_client(settings: Mapping[str, str]) -> Made:
    import boto3
    from botocore.config import Config

    style = settings.get("virtual_hosted_style_request")
    addressing = "auto" if style is None else "virtual" if style == "true" else "path"
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=settings.get("endpoint"),
        region_name=settings.get("region"),
        aws_access_key_id=settings.get("access_key_id"),
        aws_secret_access_key=settings.get("secret_access_key"),
        aws_session_token=settings.get("session_token"),
        config=Config(
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            max_pool_connections=THREADS,
            s3={"addressing_style": addressing},
            # Not all stores know the checksums that newer releases of boto3 add by themselves.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )
    return client, client.close


_clients = Clients(_new_client)
