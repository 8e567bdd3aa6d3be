"""Attribution: which click an order goes to, from two streams, exactly once and the same on every
replay.

Spark's join of two streams gives every pair; "the latest click before the order" has to be chosen
among them when no better one can come. The rule and what is kept are told in ``matching``, which
knows no Spark; this module brings the two streams together by user, and the result apart again.

::

    decided = attribute(
        orders.withWatermark("ordered_at", "10 minutes"),
        clicks.withWatermark("clicked_at", "10 minutes"),
        user="user_id", order_time="ordered_at", click_time="clicked_at", window="7 days",
    )
    query = (
        ofa.write_stream(decided)
        .to(ofa.KafkaSink(servers, topic="attributed"), transform=attributed_orders)
        .to(ofa.KafkaSink(servers, topic="unmatched"), transform=unmatched_orders)
        .to(ofa.KafkaSink(servers, topic="late"), transform=late_orders)
        …
    )
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceforall.common import arguments
from onceforall.errors import OptionError, SchemaError
from onceforall.operators import _checks as checks
from onceforall.operators import _columns as columns
from onceforall.operators import _signatures as signatures
from onceforall.operators import matching
from onceforall.operators.triggers import Duration, micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from onceforall.operators._keyed import Output, Step

STATUS = "attribution"
"""The column that says what became of an order: ``attributed``, ``unmatched`` or ``late``."""

CLICK = "click"
"""The column with the click, a struct of all its columns; null unless the order is attributed."""


def attribute(
    orders: DataFrame,
    clicks: DataFrame,
    *,
    user: str | Sequence[str],
    order_time: str,
    click_time: str,
    window: Duration,
    tie: str | None = None,
) -> DataFrame:
    """Return each order once, with the latest click of its user in the time before it.

    Args:
        orders: a streaming frame with a watermark on `order_time`. One row is one order, so
            deduplicate before.
        clicks: a streaming frame with a watermark on `click_time`.
        user: the column, or columns, by which an order and a click belong together; the same names
            and types in both.
        order_time: a TIMESTAMP column of the orders.
        click_time: a TIMESTAMP column of the clicks.
        window: how long before an order a click counts, ``"7 days"`` or a ``timedelta``; both ends
            belong to it.
        tie: a column of the clicks that decides between several at one time: the greatest value is
            taken, a null last. Whole numbers, strings, dates, timestamps or binaries. Without it,
            and where it ties too, the content of the rows decides: at random, but the same on every
            replay.

    Returns:
        A streaming frame, for output mode append: the orders' columns, ``click`` (STRUCT, nullable)
        and ``attribution`` (STRING):

        - ``attributed``: with its click.
        - ``unmatched``: no click was in the window. Orders without user or time are here, too, at
            once.
        - ``late``: the order came when the watermark had passed its time already, so it was not
            matched.

        An order is decided when the watermark, the smaller one of both streams, has passed its
        time; so a stream that stands still holds back all orders. The last orders of a stream that
        ends wait for ever. Clicks that come after their order count until then. The frame has no
        watermark: windows over it belong in a query of their own.

    Raises:
        OptionError: `window` can't be read, or a column of the orders is named ``click`` or
            ``attribution``.
        SchemaError: a column is missing, or of a type that doesn't fit.
        UnsupportedQueryError: a frame isn't streaming or has no watermark, or the session's state
            store is not RocksDB.
        MissingExtraError: protobuf is not installed (extra ``operators``).

    Promised: the same result for the same batches, whatever the order of rows within them, so also
        on a replay. State per user: the orders that
    wait, the clicks since the watermark, and one before it.
    """
    from pyspark.sql import functions as F  # noqa: N812  the name that everybody knows it by

    from onceforall.operators._keyed import plain_schema, run

    window_us = checks.given(
        micros(window, "window"),
        "window",
        "Give how long before an order a click counts, such as '7 days' or a timedelta.",
    )
    for argument, frame in (("orders", orders), ("clicks", clicks)):
        arguments.check_frame(frame, "attribute", argument)
    users = checks.columns_named(orders, user, "user (orders)")
    for argument, column in (("order_time", order_time), ("click_time", click_time)):
        arguments.text(argument, column, "the name of a TIMESTAMP column")
    _check(orders, clicks, users, order_time, click_time)
    matchable = _all_present(users)
    prepared = _prepared(
        orders, users, F.when(matchable, F.unix_micros(_column(order_time))), None
    ).unionByName(
        _prepared(
            clicks.where(matchable & _column(click_time).isNotNull()),
            users,
            F.unix_micros(_column(click_time)),
            _tie(clicks, tie),
        )
    )
    signature = signatures.signature(
        users,
        columns.families(orders, users),
        order_time,
        click_time,
        tie,
        None if tie is None else columns.families(clicks, [tie]),
    )
    texts = run(prepared, AttributionRules(window_us, signature))
    decided = texts.select(
        columns.from_json(F.col("row"), plain_schema(orders)).alias("o"),
        columns.from_json(F.col("other"), plain_schema(clicks)).alias(CLICK),
        F.col("status").alias(STATUS),
    )
    return decided.select(
        *(F.col("o").getField(name).alias(name) for name in orders.columns), CLICK, STATUS
    )


def attributed_orders(frame: DataFrame) -> DataFrame:
    """Return the orders that have a click, with it: what a sink takes as ``transform=``."""
    arguments.check_frame(frame, "attributed_orders", or_connect=True)
    return frame.where(f"{STATUS} = 'attributed'").drop(STATUS)


def unmatched_orders(frame: DataFrame) -> DataFrame:
    """Return the orders without a click in the window, as they came in."""
    arguments.check_frame(frame, "unmatched_orders", or_connect=True)
    return frame.where(f"{STATUS} = 'unmatched'").drop(STATUS, CLICK)


def late_orders(frame: DataFrame) -> DataFrame:
    """Return the orders that came too late to be matched, as they came in."""
    arguments.check_frame(frame, "late_orders", or_connect=True)
    return frame.where(f"{STATUS} = 'late'").drop(STATUS, CLICK)


@dataclass(frozen=True)
class AttributionRules:
    """``matching`` behind the glue of ``_keyed``: events are ``{"t": time, "o": true}`` for an
    order, ``{"t": time, "k": tie}`` for a click.

    Attributes:
        window_us: how long before an order a click counts, in microseconds.
        signature: that of the columns that decide; None: state of any others is taken.
    """

    window_us: int
    signature: int | None = None

    def take(
        self,
        state: str | None,
        events: Iterable[tuple[str, str]],
        watermark_us: int,
        timer_ms: int | None = None,  # noqa: ARG002  which clicks are too old, the watermark tells
    ) -> Step:
        """Take a batch's rows of one user; see ``_keyed.Rules``."""
        clicks, orders, out = [], [], []
        for text, row in events:
            event = json.loads(text)
            if not event.get("o"):
                clicks.append(matching.Click(event["t"], event.get("k"), row))
            elif "t" in event:
                orders.append(matching.Order(event["t"], row))
            else:
                # Nobody's order, or one of no time: there is nothing to wait for.
                out.append(("unmatched", row, None))
        new, late = matching.take(
            matching.decoded(state, self.signature), clicks, orders, watermark_us, self.window_us
        )
        return self._step(new, [*sorted(out), *(("late", order.row, None) for order in late)])

    def due(self, state: str | None, watermark_us: int) -> Step:
        """Decide the orders that the watermark has reached; see ``_keyed.Rules``."""
        new, decided = matching.decide(
            matching.decoded(state, self.signature), watermark_us, self.window_us
        )
        out: list[Output] = [
            ("unmatched", order.row, None)
            if click is None
            else ("attributed", order.row, click.row)
            for order, click in decided
        ]
        return self._step(new, out)

    def _step(self, state: matching.State, out: Sequence[Output]) -> Step:
        from onceforall.operators._keyed import Step

        return Step(
            matching.encoded(state, self.signature), matching.wake(state, self.window_us), out
        )


def _check(
    orders: DataFrame, clicks: DataFrame, users: Sequence[str], order_time: str, click_time: str
) -> None:
    for frame, time in ((orders, order_time), (clicks, click_time)):
        checks.check_frame(frame, "attribute")
        checks.columns_named(frame, users, "user")
        checks.check_key(frame, users)
        checks.check_time(frame, time)
        for field in frame.schema.fields:
            columns.check_carried(field.dataType, f"The column {field.name!r}")
    for name in users:
        ours, theirs = orders.schema[name].dataType, clicks.schema[name].dataType
        if ours != theirs:
            raise SchemaError(
                f"user: {name!r} is {ours.simpleString()} in the orders and "
                f"{theirs.simpleString()} in the clicks, so that no two would be the same "
                "user's. Cast one of them."
            )
    taken = {STATUS, CLICK} & {name.lower() for name in orders.columns}
    if taken:
        raise OptionError(
            f"The orders have a column {min(taken)!r}, which attribute() adds itself. Rename it "
            "before."
        )


def _prepared(
    frame: DataFrame, users: Sequence[str], time_us: Column, tie: Column | None
) -> DataFrame:
    """Return the operator's input; orders are those without a tie-breaker."""
    from pyspark.sql import functions as F  # noqa: N812

    mark = F.lit(True).alias("o") if tie is None else tie.alias("k")  # noqa: FBT003  a literal of Spark's
    return frame.select(
        columns.key_text(frame, users).alias("key"),
        columns.to_json(F.struct(time_us.alias("t"), mark)).alias("event"),
        columns.to_json(F.struct(*(_column(name) for name in frame.columns))).alias("row"),
    )


def _tie(clicks: DataFrame, tie: str | None) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if tie is None:
        return F.lit(None).cast("string")
    arguments.text("tie", tie, "the name of a column, or leave it out")
    checks.columns_named(clicks, tie, "tie")
    kind = clicks.schema[tie].dataType
    travel = columns.sortable(kind)
    if travel is None or travel.value.kind not in {"int", "str"}:
        raise SchemaError(
            f"tie: the column {tie!r} is {kind.simpleString()}; clicks are told apart by whole "
            "numbers, strings (without a collation), dates, timestamps "
            "or binaries. Cast it before."
        )
    return travel.encode(_column(tie))


def _all_present(names: Sequence[str]) -> Column:
    present = _column(names[0]).isNotNull()
    for name in names[1:]:
        present &= _column(name).isNotNull()
    return present


def _column(name: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(columns.quoted(name))
