"""What a simulation raises when the promise is broken."""

from __future__ import annotations


class Violation(BaseException):
    """The promise is broken.

    A ``BaseException``, so that it passes through every ``except Exception`` of the code under
    test.
    """
