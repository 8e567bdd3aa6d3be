"""A guard of the production code that is taken out: a piece of a function's source text, and what
stands there without it.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """A guard that is taken out.

    Attributes:
        name: what the code does without it.
        owner: the module or class that has the function.
        function: its name.
        old: a piece of its source that stands there once.
        new: what takes its place.
        kinds: the faults that it takes, or the sink's mode; with all of them most schedules would
            miss it.
        why: no schedule needs it; empty when the simulation finds that it is broken.
    """

    name: str
    owner: object
    function: str
    old: str
    new: str
    kinds: tuple[str, ...] | None = None
    why: str = ""

    def break_it(self, patch):
        """Plant it."""
        original = getattr(self.owner, self.function)
        plain = inspect.unwrap(original)
        source = textwrap.dedent(inspect.getsource(plain))
        assert source.count(self.old) == 1, f"{self.old!r} stands {source.count(self.old)} times"
        text = "from __future__ import annotations\n" + source.replace(self.old, self.new)
        made = {}
        # In the module's own names, where the clock is put in the place of ``time``.
        exec(compile(text, f"<{self.name}>", "exec"), vars(sys.modules[plain.__module__]), made)
        broken = made[plain.__name__]
        if inspect.isclass(self.owner):
            patch.setattr(self.owner, self.function, broken)
            return
        package = ".".join(plain.__module__.split(".")[:3])
        for each in [m for n, m in sys.modules.items() if n.startswith(package)]:
            if getattr(each, self.function, None) is original:
                patch.setattr(each, self.function, broken)
