"""Keeps in Spark's cache what the function of a batch puts there, until the batch's jobs have run.

The function's writes only register, so what it gives up again would be computed once for each job.
Spark Connect shows no caches and no plans; so its own methods are replaced while the function runs.
The process runs nothing but that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from onceforall.common import logs
from onceforall.errors import text_of
from onceforall.spark.connect.plans import is_read_once
from onceforall.spark.connect.server import server_is_gone
from onceforall.spark.errors import cache_was_emptied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.storagelevel import StorageLevel

    from onceforall.spark.surroundings import Shared

__all__ = ["FunctionCaches", "PersistedRows"]

logger = logs.logger("onceforall")

_GAP = r"(?:\s|--[^\r\n]*(?:[\r\n]|\Z)|/\*(?:[^*]|\*(?!/))*\*/)"
_PART = r"(?:`(?:[^`]|``)+`|\w+)"
_NAME = rf"(?!IDENTIFIER{_GAP}*\(|IF{_GAP}+EXISTS\b){_PART}(?:{_GAP}*\.{_GAP}*{_PART})*"
_OF_CACHE = re.compile(
    rf"{_GAP}*(?:CACHE{_GAP}+(?:LAZY{_GAP}+)?TABLE{_GAP}+(?P<table>{_NAME})"
    rf"|(?P<uncached>UNCACHE{_GAP}+TABLE\b)|CLEAR{_GAP}+CACHE\b"
    rf"|DROP{_GAP}+VIEW{_GAP}+(?:IF{_GAP}+EXISTS{_GAP}+)?(?P<view>{_NAME}))",
    re.IGNORECASE,
)
"""Statements that put something into Spark's cache, or take it out, as dropping a view does. Not
one that makes a view's or table's name at run time, by ``IDENTIFIER(…)``: which one is not known.
"""

_LOOKS = ("to_pandas", "to_table", "to_table_as_iterator")
_COMPUTE_NOTHING = frozenset(
    {"create_dataframe_view", "register_function", "register_table_function"}
)
"""Commands that compute no rows; a statement may."""

_Method = Callable[..., Any]


class FunctionCaches:
    """What one call of a function has put into Spark's cache, and has given up.

    Args:
        spark: the session of the batch.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.persisted: list[DataFrame] = []
        self._given_up: list[Callable[[], object]] = []
        self.has_looked = False
        """Whether the function has had something computed."""
        self.has_written = False
        """Whether a frame of its own is registered to be written."""

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put off, until ``release``, what takes something out of the cache within."""
        from pyspark.sql.connect.catalog import Catalog
        from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        client = type(self._spark.client)
        replaced: list[tuple[type, str, Callable[[_Method], _Method]]] = [
            *((client, name, self._look) for name in _LOOKS),
            (client, "execute_command", self._command),
            (ConnectFrame, "persist", self._persist),
            (ConnectFrame, "unpersist", self._leave),
            (Catalog, "cacheTable", self._cache_table),
            (Catalog, "uncacheTable", self._leave_table),
            (Catalog, "clearCache", self._put_off),
            (Catalog, "dropTempView", self._drop_view),
            (Catalog, "dropGlobalTempView", partial(self._drop_view, database=self._of_globals)),
            (ConnectSession, "sql", self._sql),
        ]
        if hasattr(Catalog, "dropView"):  # From Spark 4.2 on.
            replaced.append((Catalog, "dropView", self._drop_any_view))
        originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
        for (owner, name, original), (_, _, made) in zip(originals, replaced, strict=True):
            setattr(owner, name, made(original))
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)

    def _look(self, original: _Method) -> _Method:
        def look(client: Any, *arguments: Any, **named: Any) -> Any:
            self.has_looked = True
            return original(client, *arguments, **named)

        return look

    def _command(self, original: _Method) -> _Method:
        def execute(client: Any, command: Any, *arguments: Any, **named: Any) -> Any:
            self.has_looked |= command.WhichOneof("command_type") not in _COMPUTE_NOTHING
            return original(client, command, *arguments, **named)

        return execute

    def _put_off(self, original: _Method) -> _Method:
        def put_off(owner: Any, *arguments: Any, **named: Any) -> None:
            self._given_up.append(partial(original, owner, *arguments, **named))

        return put_off

    def _leave(self, original: _Method) -> _Method:
        def unpersist(frame: DataFrame, *arguments: Any, **named: Any) -> Any:
            if not self.has_written and not self._has_persisted(frame):
                return original(frame, *arguments, **named)
            self._given_up.append(partial(original, frame, *arguments, **named))
            return frame

        return unpersist

    def _leave_table(self, original: _Method) -> _Method:
        def uncache_table(catalog: Any, *arguments: Any, **named: Any) -> None:
            if self._has_done_nothing:
                original(catalog, *arguments, **named)
            else:
                self._given_up.append(partial(original, catalog, *arguments, **named))

        return uncache_table

    def _has_persisted(self, frame: DataFrame) -> bool:
        """Tell whether this call has put the rows of a frame into the cache, by this frame or by
        another one of the same plan. What else it has put there stays when the frame's are left.
        """
        from pyspark.errors import AnalysisException

        try:
            return any(each is frame or each.sameSemantics(frame) for each in self.persisted)
        except AnalysisException:
            return True  # Of a table or view that is gone nobody can tell.

    @property
    def _has_done_nothing(self) -> bool:
        """Whether what is taken out of the cache now is of an earlier call: what this one puts
        there next, perhaps the same table as it is by now, is not to be read from that.
        """
        return not self.persisted and not self.has_written

    def _persist(self, original: _Method) -> _Method:
        def persist(frame: DataFrame, *arguments: Any, **named: Any) -> Any:
            self.persisted.append(frame)
            return original(frame, *arguments, **named)

        return persist

    def _cache_table(self, original: _Method) -> _Method:
        def cache_table(catalog: Any, tableName: str, *arguments: Any, **named: Any) -> None:  # noqa: N803  Spark's
            original(catalog, tableName, *arguments, **named)
            self._note_table(tableName)

        return cache_table

    def _drop_view(self, original: _Method, database: Callable[[], str] = str) -> _Method:
        def drop_view(catalog: Any, viewName: str) -> Any:  # noqa: N803  Spark's
            # These take a name as it is, and not as a statement does.
            if not self._is_cached_view(database() + _quoted(viewName)):
                return original(catalog, viewName)
            self._given_up.append(partial(original, catalog, viewName))
            return True

        return drop_view

    def _drop_any_view(self, original: _Method) -> _Method:
        def drop_any_view(catalog: Any, viewName: str, *arguments: Any, **named: Any) -> Any:  # noqa: N803  Spark's
            if not self._is_cached_view(viewName):
                return original(catalog, viewName, *arguments, **named)
            self._given_up.append(partial(original, catalog, viewName, *arguments, **named))
            return None

        return drop_any_view

    def _of_globals(self) -> str:
        return f"{_quoted(self._spark.conf.get('spark.sql.globalTempDatabase') or '')}."

    def _is_cached_view(self, name: str) -> bool:
        """Tell whether Spark drops a cache of the function's with a view."""
        from pyspark.errors import AnalysisException

        try:
            return bool(self.persisted) and _is_cached(self._spark.table(name))
        except AnalysisException:
            return False  # Nobody can read it, such as one over a table that has other columns now.

    def _sql(self, original: _Method) -> _Method:
        def sql(session: Any, sqlQuery: Any, *arguments: Any, **named: Any) -> Any:  # noqa: N803  Spark's
            found = _OF_CACHE.match(sqlQuery) if isinstance(sqlQuery, str) else None
            if found is not None and found["view"] and not self._is_cached_view(found["view"]):
                found = None
            if found is not None and found["uncached"] and self._has_done_nothing:
                found = None
            if found is not None and found["table"] is None:
                self._given_up.append(partial(original, session, sqlQuery, *arguments, **named))
                return session.range(0).select()
            answer = original(session, sqlQuery, *arguments, **named)
            if found is not None:
                self._note_table(found["table"])
            return answer

        return sql

    def _note_table(self, name: str) -> None:
        self.persisted.append(self._spark.table(name))

    @contextmanager
    def watching(self, shared: Sequence[Shared]) -> Iterator[None]:
        """See that what the jobs within read from the cache is still in it behind them.

        Raises:
            AttemptFailedError: it is not.
        """
        yield
        frames = [*(rows.frame for rows in shared), *self.persisted]
        if not all(_is_cached(frame) for frame in frames):
            raise cache_was_emptied()

    def release(self) -> None:
        """Do what was put off; no error."""
        given_up, self._given_up = self._given_up, []
        self.persisted.clear()
        self.has_looked = self.has_written = False
        for give_up in given_up:
            if server_is_gone():
                return
            try:
                give_up()
            except Exception as error:  # noqa: BLE001  it goes with its session
                logger.debug("emptying a cache had no answer: %s", text_of(error))


class PersistedRows:
    """The rows of one frame, in Spark's cache; see ``surroundings.Shared``.

    Args:
        frame: the frame.
        function: what the function of the batch has done with Spark's cache and its rows.
    """

    def __init__(self, frame: DataFrame, function: FunctionCaches) -> None:
        self.frame = frame
        self._function = function
        self._unpersist = frame.unpersist
        self._is_wanted = False
        self._is_kept = True
        frame.persist()
        for name in ("persist", "cache"):
            setattr(frame, name, self._want)
        setattr(frame, "unpersist", self._leave)  # noqa: B010  mypy takes it for a mistake

    def _want(self, storageLevel: StorageLevel | None = None) -> DataFrame:  # noqa: ARG002, N803  Spark's
        self._is_wanted = True
        return self.frame

    def _leave(self, blocking: bool = False) -> DataFrame:  # noqa: ARG002, FBT001, FBT002  Spark's
        return self.frame

    def is_read_often(self, frames: Sequence[DataFrame]) -> bool:
        """Tell it where it can't be excluded: Connect shows little of a plan."""
        if len(frames) > 1 or self._function.persisted or self._function.has_looked:
            return True
        return not all(is_read_once(frame, self.frame) for frame in frames)

    def keep(self, *, needed: bool) -> bool:
        """Take the rows out of the cache unless they are needed."""
        self._is_wanted |= needed  # What one pass over the batch needs, the next one gets.
        if self._is_kept and not self._is_wanted:
            self.release()
        return self._is_kept

    def release(self) -> None:
        """Take the rows out of the cache; no error."""
        if not self._is_kept or server_is_gone():
            return
        self._is_kept = False
        try:
            self._unpersist()
        except Exception as error:  # noqa: BLE001  it goes with its session
            logger.debug("unpersisting a batch had no answer: %s", text_of(error))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _is_cached(frame: DataFrame) -> bool:
    from pyspark.errors import AnalysisException

    try:
        level = frame.storageLevel
    except AnalysisException as error:
        if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
            raise
        return False  # The view is gone, and its cache with it.
    return bool(level.useMemory or level.useDisk)
