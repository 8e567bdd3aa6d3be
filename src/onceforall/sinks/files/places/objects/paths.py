"""Keys of a bucket, with the part of ``pathlib.Path``'s interface that the file sink uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class ObjectPath:
    """A key, or a prefix.

    Attributes:
        bucket: the URL of the bucket, such as ``s3a://lake``.
        key: without a slash at its beginning or end; empty for the bucket itself.
    """

    bucket: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> ObjectPath:
        return ObjectPath(self.bucket, f"{self.key}/{name}".strip("/"))

    @property
    def bucket_name(self) -> str:
        """The bucket's name."""
        return self.bucket.partition("://")[2]

    @property
    def name(self) -> str:
        """The last part."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """What it is in; of the bucket, itself."""
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    @property
    def parents(self) -> list[ObjectPath]:
        """All that it is in, the nearest first."""
        found, at = [], self
        while at.key:
            at = at.parent
            found.append(at)
        return found


def unlisted(text: str) -> str | None:
    """Return the first character that XML 1.0 can't have (https://www.w3.org/TR/xml/#charsets):
    one such key, and no answer that lists it can be read.
    """
    return next(
        (
            f"U+{ord(each):04X}"
            for each in text
            if each in "\ufffe\uffff" or (each < " " and each not in "\t\n\r")
        ),
        None,
    )
