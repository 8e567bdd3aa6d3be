"""Clients of AWS's services by boto3: who asks is named, never told, so that nothing secret is in
a plan, a pickle or a log.
"""

from __future__ import annotations

import importlib
import random
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from onceforall.common import arguments
from onceforall.errors import MissingExtraError, OptionError

_REQUEST_DEADLINE_S = 30
_CONNECTIONS = 32
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0

_AGAIN = frozenset(
    {
        # Too many requests, by each of AWS's services in its own words.
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "KMSThrottlingException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
        # It came too slowly, or the service has failed.
        "IDPCommunicationError",
        "InternalFailure",
        "InternalFailureException",
        "InternalServerError",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
    }
)
# Bare, these are a gateway's or a load balancer's and not the service's, which has a code for each.
_BARE_AGAIN = frozenset({404, 408, 425, 429})
_CODE = re.compile(r"[\w.:-]{1,80}", re.ASCII)
_ENDPOINT = re.compile(r"https?://[\w.:\[\]-]+(/[\w.~-]+)*/?")
_HOST = re.compile(r"(?=.{1,255}\Z)(?!-)[a-z\d-]{1,63}(?<!-)(\.(?!-)[a-z\d-]{1,63}(?<!-))*\.?")
_STREAM = re.compile(r"(arn:[\w-]+:kinesis:[\w-]+:\d{12}:stream/)?[a-zA-Z0-9_.-]{1,128}", re.ASCII)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

_OVER = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
)
_WRONG_KEYS = "Give the right credentials, and see that this machine's clock is right."
_OLD_KEYS = "Renew the credentials, and see that this machine's clock is right."
_REMEDIES = {
    **dict.fromkeys(
        (
            "IncompleteSignature",
            "IncompleteSignatureException",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
            "SignatureDoesNotMatch",
            "UnrecognizedClientException",
        ),
        _WRONG_KEYS,
    ),
    **dict.fromkeys(_OVER, _OLD_KEYS),
    "NoCredentialsError": "Give credentials to each Python of the query.",
    "NoRegionError": "Give a region.",
    "PartialCredentialsError": "Give the whole of the credentials, key and secret.",
    "ProfileNotFound": "Name a profile that the AWS configuration files of this machine have.",
    "SSLError": "Check the server's certificate, and the authorities that this machine knows.",
    "ProxyConnectionError": "Check the proxy.",
}


def request_errors() -> tuple[type[Exception], ...]:
    """Return what boto3 raises for a request: what the service says, and all that keeps it from
    being asked.

    Raises:
        MissingExtraError: boto3 isn't installed.
    """
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise MissingExtraError("boto3", "kinesis") from error
    return (BotoCoreError, ClientError)


def is_said(error: BaseException) -> bool:
    """Tell whether it is the service that has answered with an error."""
    from botocore.exceptions import ClientError

    return isinstance(error, ClientError)


def code_of(error: BaseException) -> str:
    """Return the service's code for an error; empty where it has none."""
    return _code(error) if is_said(error) else ""


def may_succeed(error: BaseException) -> bool:
    """Tell whether the same request may succeed later: the service was busy, was away, or nobody
    can be connected to; or credentials couldn't be fetched. There is no other judge of that.

    Args:
        error: what boto3 raised for a request.
    """
    from botocore.exceptions import (
        ConnectionError,  # noqa: A004  botocore's
        CredentialRetrievalError,
        HTTPClientError,
        IncompleteReadError,
        MetadataRetrievalError,
    )

    if is_said(error):
        code, status = _code(error), _status(error)
        if code in _AGAIN or status >= 500 or status == 429:
            return True
        # Kinesis says ResourceNotFoundException where something isn't there.
        return status in _BARE_AGAIN and code == str(status)
    return isinstance(
        error,
        # Two families: who can't be connected to isn't a client error of HTTP.
        ConnectionError
        | HTTPClientError
        | IncompleteReadError
        | CredentialRetrievalError
        | MetadataRetrievalError,
    )


def told(error: BaseException) -> str:
    """Return what failed, by the service's code and the status of HTTP.

    Never the message: AWS's for a wrong signature has the request's headers in it, with the session
    token; botocore's may have an address with a password, or what a program printed.
    """
    if not is_said(error):
        return type(error).__name__
    code, status = _code(error), _status(error)
    said = "an error without a code" if code in {"", str(status)} else code
    # A role is assumed in the midst of another request.
    whose = f" of {_operation(error)}"
    return f"{said} (HTTP {status}{whose})" if status else f"{said}{whose}"


def remedy(error: BaseException, otherwise: str) -> str:
    """Return what a person can do about an error, as a sentence.

    Args:
        error: what boto3 raised.
        otherwise: the sentence where the error has none of its own.
    """
    name = code_of(error) if is_said(error) else type(error).__name__
    return _REMEDIES.get(name, otherwise)


def _code(error: Any) -> str:
    found = str(error.response.get("Error", {}).get("Code") or "")
    return found if _CODE.fullmatch(found) else ""


def _operation(error: Any) -> str:
    return str(error.operation_name)


def _status(error: Any) -> int:
    found = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return found if isinstance(found, int) else 0


def is_stream(text: str) -> bool:
    """Tell whether a text may be the name or the ARN of a stream."""
    return _STREAM.fullmatch(text) is not None


def checked_endpoint(name: str, value: object) -> str | None:
    """Return another address of a service, or None.

    Args:
        name: the argument's or option's.
        value: what was given.

    Raises:
        OptionError: it is no address, or one with a user and a password, which would be shown.
    """
    if value is None:
        return None
    if not (isinstance(value, str) and _ENDPOINT.fullmatch(value) and _is_possible(value)):
        raise arguments.wrong(name, value, "an address, as https://host:port")
    return value


def _is_possible(endpoint: str) -> bool:
    """Tell whether an address has a host that botocore takes, which has no ``_``, and a port."""
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return False
    return ":" in host or _HOST.fullmatch(host) is not None


def checked_function(name: str, value: object) -> str | None:
    """Return the name of a function for credentials, or None.

    Args:
        name: the argument's or option's.
        value: what was given.

    Raises:
        OptionError: it is no such name.
    """
    if value is not None and not (isinstance(value, str) and _FUNCTION.fullmatch(value)):
        raise arguments.wrong(
            name,
            value,
            "module:function, a function without arguments that every Python of the query can "
            "import, and that returns a boto3.Session",
        )
    return value


@dataclass(frozen=True)
class Access:
    """How to reach Kinesis: names only, no secret; what driver and tasks both use.

    Attributes:
        region: the region; None: the usual chain's.
        endpoint_url: another address of Kinesis.
        profile: a profile of the AWS configuration files.
        role_arn: a role to assume.
        role_session_name: the name of its session.
        role_external_id: what the role's owner may ask for.
        sts_endpoint_url: another address of STS.
        credentials_function: ``module:function``, which returns a ``boto3.Session``.
        retry_s: for how long a request is repeated.
    """

    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    role_session_name: str = "onceforall"
    role_external_id: str | None = None
    sts_endpoint_url: str | None = None
    credentials_function: str | None = None
    retry_s: float = 120.0


def make_client(access: Access, service: str = "kinesis") -> Any:
    """Return a client of boto3's.

    Raises:
        MissingExtraError: boto3 isn't installed.
        OptionError: the function for credentials can't be used, or no region is known.
        BotoCoreError: credentials can't be fetched at the moment (`may_succeed`).
    """
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise MissingExtraError("boto3", "kinesis") from error
    # Requests are repeated here: botocore's own count of attempts would end within seconds.
    config = Config(
        retries={"total_max_attempts": 1},
        connect_timeout=_REQUEST_DEADLINE_S,
        read_timeout=_REQUEST_DEADLINE_S,
        max_pool_connections=_CONNECTIONS,
    )
    try:
        session = _session(boto3, access)
        if access.role_arn is not None:
            session = _assumed(session, access)
        return session.client(
            service, region_name=access.region, endpoint_url=access.endpoint_url, config=config
        )
    except BotoCoreError as error:
        if may_succeed(error):
            raise
        advice = remedy(error, "Mend the AWS configuration.")
        raise OptionError(
            f"boto3 can't make a client for Kinesis: {told(error)}. {advice} Give the options "
            "region and profile, or set them where each Python of the query runs."
        ) from None


def _session(boto3: Any, access: Access) -> Any:
    if access.credentials_function is None:
        return boto3.Session(profile_name=access.profile, region_name=access.region)
    module, _, name = access.credentials_function.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"credentialsFunction names {access.credentials_function}, which can't be imported "
            f"here: {error}. Give a function that the Pythons of the driver and of the executors "
            "can import."
        ) from error
    made = function() if callable(function) else function
    if not isinstance(made, boto3.Session):
        what = "returned" if callable(function) else "is"
        raise OptionError(
            f"credentialsFunction names {access.credentials_function}, which {what} a "
            f"{type(made).__name__}. Name a function that returns a boto3.Session."
        )
    return made


def _assumed(session: Any, access: Access) -> Any:
    """Return a session in an assumed role, which is renewed by itself."""
    import boto3
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.exceptions import NoCredentialsError
    from botocore.session import get_session

    own = session.get_credentials()
    if own is None:
        raise NoCredentialsError

    extra = {"RoleSessionName": access.role_session_name}
    if access.role_external_id is not None:
        extra["ExternalId"] = access.role_external_id

    def create(service: str, **more: Any) -> Any:
        return session.client(
            service, endpoint_url=access.sts_endpoint_url, region_name=access.region, **_keys(more)
        )

    fetcher = AssumeRoleCredentialFetcher(
        client_creator=create,
        source_credentials=own,
        role_arn=access.role_arn,
        extra_args=extra,
    )
    inner = get_session()
    inner._credentials = DeferredRefreshableCredentials(  # noqa: SLF001  boto3's documentation has no other way
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
    return boto3.Session(botocore_session=inner, region_name=access.region)


def _keys(more: dict[str, Any]) -> dict[str, Any]:
    wanted = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}
    return {name: value for name, value in more.items() if name in wanted}


class RenewedClient:
    """Sends requests by this process's client, whose operations it has; and once more by another
    one where the credentials are over: who gives them may have others by now, as a file that was
    written again. boto3 itself asks again only those who have said for how long theirs are good.
    """

    def __init__(self, access: Access) -> None:
        """Nothing is asked yet."""
        self._access = access

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return partial(self._sent, operation)

    def _sent(self, operation: str, **given: Any) -> Any:
        client = shared_client(self._access)
        try:
            return getattr(client, operation)(**given)
        except request_errors() as error:
            if _REMEDIES.get(code_of(error)) not in {_OLD_KEYS, _WRONG_KEYS}:
                raise
            with _making:
                if _made.get(self._access) is client:
                    del _made[self._access]
            if code_of(error) not in _OVER:
                raise
        return getattr(shared_client(self._access), operation)(**given)


_made: dict[Access, Any] = {}
_making = threading.Lock()


def shared_client(access: Access, *, retry_s: float = 0.0) -> Any:
    """Return this process's client for some access: to make one takes half a second.

    Args:
        access: how to reach Kinesis.
        retry_s: for how long credentials are asked for again that can't be fetched.

    Raises:
        MissingExtraError, OptionError, BotoCoreError: as `make_client`.
    """
    deadline, pause = time.monotonic() + retry_s, _FIRST_PAUSE_S
    while True:
        try:
            with _making:
                if access not in _made:
                    _made[access] = make_client(access)
                return _made[access]
        except (MissingExtraError, OptionError):
            raise
        except Exception as error:
            if not may_succeed(error) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  no secret
        pause = min(pause * 2, _LONGEST_PAUSE_S)
