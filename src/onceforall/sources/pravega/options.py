"""The options of the Pravega source: read and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from onceforall.common import arguments
from onceforall.common.pravega.names import StreamName, address, stream_name
from onceforall.errors import OptionError
from onceforall.sources.option_reading import OptionReader, named

_NAMES = {
    name.lower(): name
    for name in (
        "controller",
        "scope",
        "stream",
        "startingPosition",
        "failOnDataLoss",
        "maxRecordsPerTrigger",
        "maxBytesPerTrigger",
        "retrySeconds",
    )
}
_SEGMENT = re.compile(r"\d{1,19}")
_EXPECTED = 'EARLIEST, LATEST, or a stream cut as {"0": 1024, "1": 0}'


@dataclass(frozen=True)
class Access:
    """How to reach a stream: no secret; what driver and tasks both use.

    Attributes:
        address: ``host:port`` of the controller.
        stream: the stream.
        retry_s: for how long a request is repeated.
    """

    address: str
    stream: StreamName
    retry_s: float = 120.0


@dataclass(frozen=True)
class Options:
    """What a query's options say.

    Attributes:
        access: how to reach the stream.
        start: where a new query begins: ``earliest``, ``latest``, or offsets by segment.
        fail_on_data_loss: stop where events are gone.
        max_records: about how many events a batch may have; None: any number.
        max_bytes: about how many bytes.
    """

    access: Access
    start: str | Mapping[int, int] = "latest"
    fail_on_data_loss: bool = True
    max_records: int | None = None
    max_bytes: int | None = None


def parse(given: Mapping[str, str]) -> Options:
    """Read the options of a source.

    Args:
        given: as Spark hands them over; names in any case, with or without ``pravega.`` before
            them.

    Raises:
        OptionError: one is unknown, missing or malformed.
    """
    try:
        options = named(given, _NAMES, "pravega.", {})
    except KeyError as error:
        raise OptionError(
            f"The Pravega source has no option {arguments.shown(str(error.args[0]))}. It has: "
            f"{', '.join(_NAMES.values())}."
        ) from None
    for name in ("controller", "scope", "stream"):
        if not options.get(name):
            raise OptionError(f"The Pravega source needs the option {name}. Give it.")
    read = OptionReader(options)
    return Options(
        access=Access(
            address("controller", options["controller"]),
            stream_name(options["scope"], options["stream"], ("scope", "stream")),
            read.number("retrySeconds") or 120.0,
        ),
        start=parse_start(options.get("startingposition", "LATEST")),
        fail_on_data_loss=read.flag("failOnDataLoss", default=True),
        max_records=read.whole("maxRecordsPerTrigger"),
        max_bytes=read.whole("maxBytesPerTrigger"),
    )


def parse_start(text: str) -> str | Mapping[int, int]:
    """Read the option ``startingPosition``.

    Raises:
        OptionError: it is none of the forms.
    """
    word = text.strip().lower()
    if word in {"earliest", "latest"}:
        return word
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not found:
        raise arguments.wrong("startingPosition", text, _EXPECTED)
    for segment, offset in found.items():
        if not _SEGMENT.fullmatch(segment) or type(offset) is not int or offset < 0:
            raise OptionError(
                f"startingPosition has no usable place for {arguments.shown(segment)}. Give "
                f"{_EXPECTED}."
            )
    return {int(segment): offset for segment, offset in found.items()}
