"""The template of a time bucket: fields ``{column:format}``, whose formats have the directives of
``strftime`` that need no language.

Its slashes part folders, and folders like ``hour={event_time:%H}`` are read back as columns, as
those of ``partition_by`` are; slashes and equals signs in a format are the template's own.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from onceforall.errors import OptionError
from onceforall.sinks.files.paths import HOME, SPARK_METADATA, hive_folder, plain_folder

_DIRECTIVES = "YmdHMSjyGVuUW%"
_FORMAT = re.compile(rf"(?:[^%]|%[{_DIRECTIVES}])*")


@dataclass(frozen=True)
class TimeBucket:
    """A template of folders. Make it with ``time_bucket``.

    Attributes:
        template: as the user gave it.
        pieces: literal texts, and (column, format); a format has no slash and no equals sign.
        zone: the time zone in which timestamps with a zone are formatted; None: the one that they
            have.
    """

    template: str
    pieces: tuple[str | tuple[str, str], ...]
    zone: str | None

    @property
    def columns(self) -> list[str]:
        """The columns that it formats."""
        return [piece[0] for piece in self.pieces if not isinstance(piece, str)]

    @property
    def hive_columns(self) -> list[str]:
        """The columns that its folders make, as in ``hour={event_time:%H}``."""
        literal = "".join(piece if isinstance(piece, str) else "\0" for piece in self.pieces)
        return [part.partition("=")[0] for part in literal.split("/") if "=" in part]


def time_bucket(template: str, zone: str | None) -> TimeBucket:
    """Read a template.

    Raises:
        OptionError: it is malformed, has no field, or would make folders that readers pass over.
    """
    try:
        parsed = list(string.Formatter().parse(template))
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"time_bucket={template!r} is no template: {error}. {_EXAMPLE}"
        ) from error
    pieces: list[str | tuple[str, str]] = []
    for literal, column, form, conversion in parsed:
        if literal:
            pieces.append(literal)
        if column is None:
            continue
        if not column or conversion or not form or "%" not in form or not _FORMAT.fullmatch(form):
            raise OptionError(
                f"time_bucket={template!r}: each field must be {{column:format}}, with a format "
                f"of %{', %'.join(_DIRECTIVES)}. {_EXAMPLE}"
            )
        pieces += _parted(column, form)
    bucket = TimeBucket(template, tuple(pieces), zone)
    if not bucket.columns:
        raise OptionError(f"time_bucket={template!r} has no field. {_EXAMPLE}")
    sample = "".join(piece if isinstance(piece, str) else "2026" for piece in pieces).split("/")
    if any(not part or part[0] in "._=" for part in sample) or sample[0] in {HOME, SPARK_METADATA}:
        raise OptionError(
            f"time_bucket={template!r} makes folders that are empty or that readers pass over: no "
            "part between slashes may be empty "
            f"or begin with a dot or an underscore. {_EXAMPLE}"
        )
    if any("\0" in name or not name for name in bucket.hive_columns):
        raise OptionError(
            f"time_bucket={template!r} makes a column's name of a value: only what follows the = "
            "may have fields."
        )
    if zone is not None:
        _check_zone(zone)
    return bucket


def _parted(column: str, form: str) -> list[str | tuple[str, str]]:
    """Return a field's pieces: what parts folders, or a column's name from its value, is literal,
    wherever it stands: ``{t:dt=%Y/%m}`` makes the folders of ``dt={t:%Y}/{t:%m}``.
    """
    parts = [part for part in re.split("([/=])", form) if part]
    return [(column, part) if "%" in part else part for part in parts]


def sample_folder(partition_by: Sequence[str], bucket: TimeBucket | None) -> str:
    """Return a folder as these make it, with the formats in the place of the bucket's values:
    its parts and their columns are right.
    """
    folders = [hive_folder(name, None) for name in partition_by]
    if bucket is not None:
        texts = "".join(
            piece if isinstance(piece, str) else piece[1] for piece in bucket.pieces
        ).split("/")
        folders += [
            hive_folder(text.partition("=")[0], None) if "=" in text else plain_folder(text)
            for text in texts
        ]
    return "/".join(folders)


_EXAMPLE = "An example: time_bucket='{event_time:%Y-%m-%d--%H}'."


def _check_zone(zone: str) -> None:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(zone)
    except (ValueError, OSError, LookupError, TypeError) as error:
        raise OptionError(
            f"time_bucket_zone={zone!r} is no time zone that this machine knows, such as 'UTC' or "
            "'Europe/Berlin'."
        ) from error
