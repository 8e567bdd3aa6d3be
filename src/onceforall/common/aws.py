"""Clients of AWS's services by boto3: who asks is named, never told, so that nothing secret is in
a plan, a pickle or a log.
"""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass
from typing import Any

from onceforall.errors import MissingExtraError, OptionError

_REQUEST_DEADLINE_S = 30
_CONNECTIONS = 32
AGAIN = {
    "ProvisionedThroughputExceededException",
    "LimitExceededException",
    "KMSThrottlingException",
    "InternalFailure",
    "InternalFailureException",
    "InternalServerError",
    "ServiceUnavailable",
    "ServiceUnavailableException",
    "ThrottlingException",
    "RequestTimeout",
    "500",
    "502",
    "503",
}
"""The codes of errors after which the same request may succeed."""


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
        raise OptionError(
            f"boto3 can't make a client for Kinesis: {error} Give the options region and profile, "
            "or set them where each Python of the query runs."
        ) from error


def _session(boto3: Any, access: Access) -> Any:
    if access.credentials_function is None:
        return boto3.Session(profile_name=access.profile, region_name=access.region)
    module, _, name = access.credentials_function.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"credentialsFunction names {access.credentials_function}, which can't be imported "
            f"here: {error}. Give a function that the Pythons of the driver and of the executors "
            "can import."
        ) from error
    if not isinstance(made, boto3.Session):
        raise OptionError(
            f"credentialsFunction names {access.credentials_function}, which returned a "
            f"{type(made).__name__}. Let it return a boto3.Session."
        )
    return made


def _assumed(session: Any, access: Access) -> Any:
    """Return a session in an assumed role, which is renewed by itself."""
    import boto3
    from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
    from botocore.session import get_session

    extra = {"RoleSessionName": access.role_session_name}
    if access.role_external_id is not None:
        extra["ExternalId"] = access.role_external_id

    def create(service: str, **more: Any) -> Any:
        return session.client(
            service, endpoint_url=access.sts_endpoint_url, region_name=access.region, **_keys(more)
        )

    fetcher = AssumeRoleCredentialFetcher(
        client_creator=create,
        source_credentials=session.get_credentials(),
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


_made: dict[Access, Any] = {}
_making = threading.Lock()


def shared_client(access: Access) -> Any:
    """Return this process's client for some access: to make one takes half a second.

    Raises:
        MissingExtraError, OptionError: as `make_client`.
    """
    with _making:
        if access not in _made:
            _made[access] = make_client(access)
        return _made[access]
