"""Functions of the user that give a secret (a password, a token, an address), called where a
connection is made.

They ask servers of their own, so they may fail, and they may hang: whoever connects would hang with
them, a decided batch and the end of a query included.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceforall.common.threads import result_within

ANSWERS_WITHIN_S = 60.0
"""For so long a function is waited for. One that hangs for ever keeps a thread for each call."""


class FunctionFailedError(Exception):
    """It gave no value; says what it did as the end of a sentence: ``raised KeyError``."""


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function in a thread of its own, with this one's context variables, and return
    what it returns.

    Raises:
        FunctionFailedError: it raised something, of which only the kind and the place are told, for
            the text may hold a secret; or it hangs.
    """
    context = contextvars.copy_context()

    def answer() -> tuple[Any, str]:
        try:
            return context.run(function, *arguments), ""
        except Exception as error:  # noqa: BLE001  whatever a user's function raises
            return None, _told(error)

    try:
        value, failure = result_within(answer, ANSWERS_WITHIN_S, lambda: False)
    except TimeoutError:
        failure = f"gave no answer within {ANSWERS_WITHIN_S:g} s"
    if failure:
        raise FunctionFailedError(failure)
    return value


def _told(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return f"raised {type(error).__name__}"
    file = Path(trace.tb_frame.f_code.co_filename).name
    return f"raised {type(error).__name__} in line {trace.tb_lineno} of {file}"
