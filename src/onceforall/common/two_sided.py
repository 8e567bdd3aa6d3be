"""Objects that live on the driver and of which the tasks get a part: the sinks.

What only the driver has (locks, clients, what it has looked up) is made by ``_make_driver_side``
and goes into no pickle; in each process that unpickles the object it is made anew, empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self


class TwoSided:
    """Pickles and copies without the driver's side."""

    _driver_side: frozenset[str] = frozenset()

    def _make_driver_side(self) -> None:
        """Set the attributes that only the driver has, to what they are in a new process."""

    def _begin_driver_side(self) -> None:
        """Make the driver's side; the last thing that ``__init__`` does."""
        before = set(vars(self))
        self._make_driver_side()
        self._driver_side = frozenset(vars(self)) - before

    def _carried(self) -> dict[str, Any]:
        """Return the attributes of both sides, secret values included."""
        left = {*self._driver_side, "_driver_side"}
        return {name: value for name, value in vars(self).items() if name not in left}

    def __getstate__(self) -> dict[str, Any]:
        # What no pickle may have besides (secret values, functions), the sink leaves out itself.
        return self._carried()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._begin_driver_side()

    def __copy__(self) -> Self:
        # A copy stays in this process, so it keeps what no pickle may have.
        made = type(self).__new__(type(self))
        made.__setstate__(self._carried())
        return made
