"""What a reader found in a sink at one moment: one array per property, one element per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Numbers = npt.NDArray[np.int64]

UNREADABLE = -1
"""The id of a row whose own id can't be read, where ids are numbers: no input has it."""


@dataclass(frozen=True, eq=False)
class Rows:
    """All rows that a reader of one sink sees at one moment, in any order, those that it sees twice
    twice.

    All arrays are one-dimensional and of the same length.

    Attributes:
        ids: which input's effect each row is: whole numbers, or texts, as in the ``Truth`` they are
            judged by.
        lanes: in which ordered part of the sink each row stands (a Kafka partition); None: the sink
            keeps no order.
        positions: where it stands there (an offset); given exactly when ``lanes`` is.
        keys: the key that each row bears; None: not looked at.
        contents: all else that each row bears, as one number (``contents_of``) or one text; None:
            not looked at.
    """

    ids: Array
    lanes: Numbers | None = None
    positions: Numbers | None = None
    keys: Array | None = None
    contents: Array | None = None

    def __post_init__(self) -> None:
        lengths = {
            len(array)
            for array in (self.ids, self.lanes, self.positions, self.keys, self.contents)
            if array is not None
        }
        if lengths != {len(self.ids)} or (self.lanes is None) != (self.positions is None):
            raise ValueError(
                "Rows: give arrays of the same length, and lanes and positions both or neither."
            )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_ordered(self) -> bool:
        """Whether it is known where each row stands."""
        return self.lanes is not None


NO_ROWS = Rows(np.empty(0, np.int64))
