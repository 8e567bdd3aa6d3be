"""The options of the Kinesis source: read, checked, and without any secret.

Spark shows a source's options in its plans, so no option takes a key: credentials come from the
usual chain of boto3 where the code runs, from a profile or a role that an option names, or from a
function that it names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from onceforall.common import arguments
from onceforall.common.aws import Access, checked_endpoint, checked_function, is_stream
from onceforall.errors import OptionError
from onceforall.sources.option_reading import OptionReader, named

_NAMES = {
    name.lower(): name
    for name in (
        "streamName",
        "streamArn",
        "region",
        "endpointUrl",
        "startingPosition",
        "failOnDataLoss",
        "maxRecordsPerTrigger",
        "maxBytesPerTrigger",
        "maxPlanningSeconds",
        "retrySeconds",
        "profile",
        "roleArn",
        "roleSessionName",
        "roleExternalId",
        "stsEndpointUrl",
        "credentialsFunction",
    )
}
# What other connectors call the same.
_ALIASES = {
    "initialposition": "startingposition",
    "stsrolearn": "rolearn",
    "stssessionname": "rolesessionname",
    "stsendpoint": "stsendpointurl",
}
_SECRET = re.compile(r"secret|access.?key|token|password", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,128}")


@dataclass(frozen=True)
class Start:
    """Where a new query begins.

    Attributes:
        kind: ``latest``, ``trim_horizon``, ``at_timestamp`` or ``given``.
        timestamp: of ``at_timestamp``, in milliseconds.
        given: of ``given``: shards' ids with ``AT`` or ``AFTER`` and a sequence number; by stream,
            as the option names it, or under ``""`` where there is one only.
    """

    kind: str
    timestamp: int | None = None
    given: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """What a query's options say.

    Attributes:
        streams: names and ARNs.
        access: how to reach them.
        start: where a new query begins.
        fail_on_data_loss: stop where records may be gone.
        max_records: about how many rows a batch may have; None: any number.
        max_bytes: about how many bytes.
        max_planning_s: how long planning a batch may take.
    """

    streams: tuple[str, ...]
    access: Access
    start: Start
    fail_on_data_loss: bool = True
    max_records: int | None = None
    max_bytes: int | None = None
    max_planning_s: float = 10.0


def parse(given: Mapping[str, str]) -> Options:
    """Read the options of a source.

    Args:
        given: as Spark hands them over; names in any case, with or without ``kinesis.`` before
            them.

    Raises:
        OptionError: one is unknown, missing, malformed, or holds a secret.
    """
    try:
        options = named(given, _NAMES, "kinesis.", _ALIASES)
    except KeyError as error:
        raise OptionError(_unknown(str(error.args[0]))) from None
    read = _Reader(options)
    return Options(
        streams=_streams(options),
        access=Access(
            region=options.get("region"),
            endpoint_url=read.url("endpointUrl"),
            profile=options.get("profile"),
            role_arn=options.get("rolearn"),
            role_session_name=options.get("rolesessionname", "onceforall"),
            role_external_id=options.get("roleexternalid"),
            sts_endpoint_url=read.url("stsEndpointUrl"),
            credentials_function=read.function("credentialsFunction"),
            retry_s=read.number("retrySeconds") or 120.0,
        ),
        start=parse_start(options.get("startingposition", "LATEST")),
        fail_on_data_loss=read.flag("failOnDataLoss", default=True),
        max_records=read.whole("maxRecordsPerTrigger"),
        max_bytes=read.whole("maxBytesPerTrigger"),
        max_planning_s=read.number("maxPlanningSeconds") or 10.0,
    )


def _unknown(name: str) -> str:
    if _SECRET.search(name):
        return (
            f"The Kinesis source takes no {name}: Spark shows a source's options in its plans. Use "
            "the usual chain of AWS credentials, or the option profile, roleArn or "
            "credentialsFunction."
        )
    return (
        f"The Kinesis source has no option {arguments.shown(name)}. It has: "
        f"{', '.join(_NAMES.values())}."
    )


def _streams(options: Mapping[str, str]) -> tuple[str, ...]:
    listed = [
        one.strip()
        for key in ("streamname", "streamarn")
        for one in options.get(key, "").split(",")
        if one.strip()
    ]
    if not listed:
        raise OptionError(
            "The Kinesis source needs a stream: give the option streamName or streamArn; several "
            "with commas between them."
        )
    for one in listed:
        if not is_stream(one):
            raise OptionError(
                f"{arguments.shown(one)} is neither the name nor the ARN of a stream. Give names "
                "in streamName or ARNs in streamArn, with commas between them."
            )
    if len(set(listed)) < len(listed):
        raise OptionError("A stream is named twice in streamName or streamArn. Name each once.")
    return tuple(listed)


class _Reader(OptionReader):
    """Reads options by their names."""

    def url(self, name: str) -> str | None:
        return checked_endpoint(name, self.text(name))

    def function(self, name: str) -> str | None:
        return checked_function(name, self.text(name))


_EXPECTED = (
    "LATEST, TRIM_HORIZON, 'AT_TIMESTAMP 2026-01-31T12:00:00Z', or JSON as "
    '{"shardId-000000000000": {"iteratorType": "AFTER_SEQUENCE_NUMBER", "iteratorPosition": '
    '"4960…"}}, of several streams {"stream": {…}}'
)


def parse_start(text: str) -> Start:
    """Read the option ``startingPosition``.

    Raises:
        OptionError: it is none of the forms.
    """
    word, _, rest = text.strip().partition(" ")
    if text.strip().startswith("{"):
        return Start("given", given=_given(text))
    kind = {"earliest": "trim_horizon"}.get(word.lower(), word.lower())
    if kind in {"latest", "trim_horizon"} and not rest:
        return Start(kind)
    if kind == "at_timestamp" and rest.strip():
        try:
            at = datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", rest.strip()))
            if at.tzinfo is not None:
                return Start(kind, timestamp=int(at.astimezone(timezone.utc).timestamp() * 1000))
        except (ValueError, OverflowError):
            pass
        raise OptionError(
            f"startingPosition has the time {arguments.shown(rest.strip())}. Give one with its "
            "zone, as 2026-01-31T12:00:00Z."
        )
    raise arguments.wrong("startingPosition", text, _EXPECTED)


def _given(text: str) -> dict[str, dict[str, tuple[str, str]]]:
    try:
        found = json.loads(text)
    except ValueError:
        raise arguments.wrong("startingPosition", text, _EXPECTED) from None
    if found and all(str(name).startswith("shardId-") for name in found):
        found = {"": found}
    result: dict[str, dict[str, tuple[str, str]]] = {}
    for stream, shards in found.items():
        if not isinstance(shards, Mapping) or not shards:
            raise arguments.wrong("startingPosition", text, _EXPECTED)
        result[stream] = {shard: _place(shard, each) for shard, each in shards.items()}
    if not result:
        raise arguments.wrong("startingPosition", text, _EXPECTED)
    return result


def _place(shard: str, each: Any) -> tuple[str, str]:
    if isinstance(each, Mapping):
        kind, number = each.get("iteratorType"), each.get("iteratorPosition", "")
        if kind == "TRIM_HORIZON" and not number:
            return kind, ""
        if (
            isinstance(kind, str)
            and kind in {"AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"}
            and isinstance(number, str)
            and _NUMBER.fullmatch(number)
        ):
            return kind, number
    raise OptionError(
        f"startingPosition has no usable place for {arguments.shown(shard)}. Give {_EXPECTED}."
    )
