"""How a secret may stand in a text: as it is, or as a representation, JSON, a URL or a pickle
writes it.
"""

from __future__ import annotations

import functools
import json
from urllib.parse import quote, quote_plus


@functools.cache
def spellings(secret: str) -> frozenset[str]:
    """Return every spelling of a secret that is looked for, those within another one included: a
    representation that stands in JSON, for instance.

    What is encrypted, compressed or written in base64 is not among them.
    """
    once = _spelled(secret)
    return frozenset(once.union(*map(_spelled, once)))


def _spelled(text: str) -> set[str]:
    data = text.encode("utf-8", "surrogatepass")
    end = len(repr(_QUOTES)) - 1
    escaped = {
        repr(text + _QUOTES)[1:-end],
        ascii(text + _QUOTES)[1:-end],
        repr(data + _QUOTES.encode())[2:-end],
    }
    return {
        text,
        *escaped,
        *(each.replace("\\'", "'") for each in escaped),
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        data.decode("latin-1"),  # as the suite reads a pickle
        quote(data),
        quote(data, safe=""),
        quote_plus(data),
    }


_QUOTES = "'\""
"""Behind a text, they make ``repr`` escape each ``'`` in it; whether it does without them depends
on the rest of what it shows.
"""
