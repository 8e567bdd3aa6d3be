"""Reads a source's options by their names: texts become numbers, or an error that names one."""

from __future__ import annotations

import re
from collections.abc import Mapping

from onceforall.common import arguments
from onceforall.errors import OptionError


def named(
    given: Mapping[str, str], names: Mapping[str, str], prefix: str, aliases: Mapping[str, str]
) -> dict[str, str]:
    """Return options by their names in lower case.

    Args:
        given: as Spark hands them over; names in any case, with or without the prefix.
        names: all that there are, by their names in lower case.
        prefix: what may stand before a name.
        aliases: what other connectors call them.

    Raises:
        KeyError: one is unknown; its argument is the name as it was given.
        OptionError: one is given twice.
    """
    options: dict[str, str] = {}
    for name, value in given.items():
        bare = name.lower().removeprefix(prefix)
        bare = aliases.get(bare, bare)
        if bare not in names:
            raise KeyError(name)
        if bare in options:
            raise OptionError(f"The option {names[bare]} is given twice. Give it once.")
        options[bare] = str(value).strip()
    return options


class OptionReader:
    """Reads options by their names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Take the options, by their names in lower case."""
        self._options = options

    def text(self, name: str) -> str | None:
        """Return an option as it is; None: it isn't given."""
        return self._options.get(name.lower())

    def whole(self, name: str) -> int | None:
        """Return a whole number of at least 1.

        Raises:
            OptionError: it is none.
        """
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[1-9]\d{0,17}", text):
            raise arguments.wrong(name, text, "a whole number of at least 1")
        return int(text)

    def number(self, name: str) -> float | None:
        """Return a positive number.

        Raises:
            OptionError: it is none.
        """
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) or float(text) == 0:
            raise arguments.wrong(name, text, "a positive number")
        return float(text)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false.

        Raises:
            OptionError: it is neither.
        """
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in {"true", "false"}:
            raise arguments.wrong(name, text, "true or false")
        return text.lower() == "true"
