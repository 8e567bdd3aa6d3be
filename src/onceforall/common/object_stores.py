"""Opening a bucket of S3, GCS or Azure by obstore, and what its errors mean; for the commit log
and for rows that are kept beside it.

Settings have obstore's names (https://developmentseed.org/obstore/latest/api/store/aws/): the
``AWS_…``, ``GOOGLE_…`` and ``AZURE_…`` variables of the environment count, and what is given
overrides them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

from onceforall.common.locations import split_location
from onceforall.errors import MissingExtraError, OptionError

__all__ = ["SCHEMES", "names_the_bucket", "obstore_module", "opened", "sentence"]

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
_NO_KEYS = """\
No credentials were found. Give some in the environment or by onceforall.store.* (keys that are \
Spark's settings aren't seen through Spark Connect from Spark 4.3 on)"""
_NOT_ALLOWED = """\
The key may not do that. Grant it GetObject, PutObject, DeleteObject and ListBucket, and let the \
policy allow If-None-Match"""
_METADATA = "169.254.169.254"
_REMEDIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    # What to do, and the words by which it is known, in lower case; the first that fits.
    ("There is no such bucket. Create it, or mend the URL", ("nosuchbucket",)),
    (
        "The store doesn't accept the key. Give the right access key and secret",
        ("signaturedoesnotmatch", "invalidaccesskeyid"),
    ),
    ("The session token has expired. Give a new one", ("expiredtoken", "token has expired")),
    (
        _NO_KEYS,
        # The address at which a cloud's machines ask for theirs.
        (_METADATA, "credential", "unauthenticated", "401 unauthorized"),
    ),
    (_NOT_ALLOWED, ("accessdenied", "403 forbidden", "permission")),
    (
        "The bucket is in another region. Give its region",
        ("moved permanently", "authorizationheadermalformed", "permanentredirect"),
    ),
    (_NO_CONDITION, ("notimplemented", "not implemented")),
    (
        "The store is overloaded. Wait, or lower its load",
        ("slowdown", "status code: 503", "status code: 429"),
    ),
    (
        "The store doesn't answer. Mend the network or the endpoint",
        ("dns", "timed out", "timeout", "error sending request"),
    ),
)


_REPEATED = (
    re.compile(rf"https?://(?!{re.escape(_METADATA)})\S+(?: in [\d.]+\w+)?"),
    re.compile(r"\b(?:at location|for path) .*?(?=: Error performing|$)", re.MULTILINE),
    re.compile(r"<(?!Code>|Message>|Error>)(\w+)>[^<]*</\1>"),
)
"""What an error repeats of the question: the URL and how long it took, the key, and what of an
answer is no code and no message."""


def obstore_module() -> Any:
    """Return obstore, with its stores.

    Raises:
        MissingExtraError: it isn't installed.
    """
    try:
        import obstore
        import obstore.store
    except ImportError as error:
        raise MissingExtraError("obstore", "stores") from error
    return obstore


def opened(url: str, settings: Mapping[str, str], *, retries: int) -> Any:
    """Return obstore's store of a prefix; nothing is sent.

    Args:
        url: of the prefix, such as ``s3a://bucket/checkpoints/ads``.
        settings: obstore's, such as ``endpoint``, ``region`` or ``access_key_id``; values are never
            shown.
        retries: how often obstore itself asks again.

    Raises:
        MissingExtraError: obstore isn't installed.
        OptionError: the URL or a setting is wrong.
    """
    obstore = obstore_module()
    parts = split_location(url, "The URL")
    if parts.scheme not in SCHEMES:
        raise OptionError(
            f"{url} has the scheme {parts.scheme!r}; the object stores are "
            f"{', '.join(sorted(SCHEMES))}."
        )
    # The environment's too, which obstore reads by itself.
    given = {**os.environ, **settings}
    for name, value in given.items():
        # Without a scheme obstore panics, with an error that is none.
        if _names_the_endpoint(name, SCHEMES[parts.scheme]) and not _is_url(value):
            where = "" if name in settings else f" (the environment's {name})"
            raise OptionError(
                f"The endpoint of {url}{where} must begin with http:// or https://. Write it in "
                "full."
            )
    plain = any(
        value.startswith("http://")
        for name, value in given.items()
        if "endpoint" in name.lower() or "EMULATOR" in name
    )
    try:
        return obstore.store.from_url(
            # It unquotes the path, which Hadoop doesn't: both must see one key.
            f"{SCHEMES[parts.scheme]}://{parts.authority}{quote(parts.path)}",
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
    except obstore.exceptions.UnknownConfigurationKeyError as error:
        raise OptionError(
            f"A setting of the store of {url} is unknown to obstore: "
            f"{', '.join(sorted(settings))}. See its documentation for the names."
        ) from error
    except BaseException as error:  # its own errors may show a setting's value
        # A setting of its client's (allow_http, proxy_url, timeout) it meets with a panic, which is
        # no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise OptionError(
            f"The store of {url} can't be opened with these settings "
            f"({', '.join(sorted(settings)) or 'none'}): {type(error).__name__}. "
            "Mend the URL or the settings."
        ) from None


def _names_the_endpoint(name: str, scheme: str) -> bool:
    kind = {"s3": "aws", "gs": "google"}.get(scheme, "azure")
    own = {f"{kind}_endpoint", f"{kind}_endpoint_url", f"{kind}_storage_endpoint"}
    # Without such a beginning only a setting counts, as obstore has it.
    return name.lower() in own or name in {"endpoint", "endpoint_url"}


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc)


def names_the_bucket(error: BaseException) -> bool:
    """Tell whether what isn't there is the bucket."""
    return "nosuchbucket" in _own_words(str(error))


def is_absent(error: BaseException) -> bool:
    """Tell whether a store says in its own words that an object isn't there."""
    said = _own_words(str(error))
    return any(word in said for word in ("nosuchkey", "blobnotfound"))


def _own_words(said: str) -> str:
    """Return in lower case what a store and its client say, without what they only repeat: a
    bucket may be called "credentials", and a request take 503 ms.
    """
    for repeated in _REPEATED:
        said = repeated.sub(" ", said)
    return said.lower()


def sentence(said: str) -> str:
    """Return what a person can do about an error of obstore's, with the store's own code for it.

    What obstore says in full has its own insides behind, and at times the headers of a request.
    """
    said = said.partition("\n\nDebug source")[0]
    own = _own_words(said)
    found = next((remedy for remedy, words in _REMEDIES if any(w in own for w in words)), None)
    return f"{found or 'Mend the cause'} ({_code(said)})"


def _code(said: str) -> str:
    code = re.search(r"<Code>(\w+)</Code>", said)
    if code is not None:
        return f"the store said {code[1]}"
    status = re.search(r"status code: (\d{3}[ A-Za-z]*)", said)
    if status is not None:
        return f"the store said {status[1].strip()}"
    return said.rpartition(" - ")[2].partition("\n")[0][:120]
