"""The ad events, made from a seed: what really happened (the *ground*), and the records in which it
reaches Kafka.

What upstream does to them: users and campaigns are skewed; records come out of order, by up to five
minutes; some come again, within a quarter of an hour; some come hours late; and some are malformed.
All of it is drawn here, so that `truth` can tell what must come out without a look at the pipeline.

The promises on which the truth rests, with `arrival` for the record's timestamp in Kafka, which
never decreases within a topic:

- a record is in time (at most `ORDINARY_DELAY_MS` after its event) or hopelessly late
  (`LATE_FROM_MS` or more): nothing lies near the limit of an hour that the jobs draw;
- a repetition is the same bytes under the same key, in the same partition, at most
  `REPEATED_WITHIN_MS` after the first;
- no two clicks of a user, and no click and order of a user, happen in the same millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceforall.errors import OptionError

EVENTS, ORDERS = "ad-events", "orders"
PARTITIONS = {EVENTS: 4, ORDERS: 1}
"""Of each topic.

A partition that has very few records would be read behind the others: Spark rounds its share of a
batch down.
"""
START_MS = 1_732_838_400_000
"""The first event happens after this: 2024-11-29T00:00:00Z, in milliseconds since 1970."""
DAY_MS = 86_400_000
"""The events happen within a day, however many there are."""
CAMPAIGNS = 100
ORDINARY_DELAY_MS = 5 * 60_000
REPEATED_WITHIN_MS = 15 * 60_000
LATE_FROM_MS = 2 * 3_600_000
LATE_UNTIL_MS = 6 * 3_600_000
MINIMUM_EVENTS = 1_000

VIEW, CLICK, ORDER = 0, 1, 2
KINDS = ("view", "click", "purchase")
TOPICS = (EVENTS, EVENTS, ORDERS)
"""The topic of each kind."""
AD_TYPES = ("banner", "modal", "sponsored-search", "mail", "mobile")

GOOD, LATE = 0, 1
REASONS = (
    "not JSON",
    "unknown event type",
    "missing field",
    "wrong type",
    "negative amount",
    "from the future",
)
"""Why a record is a dead letter. Fate 2 is the first of them."""
_FIRST_DEFECT = 2

_CLICK_SHARE, _ORDER_SHARE = 0.04, 0.015
_LATE_SHARE, _MALFORMED_SHARE, _REPEATED_SHARE = 0.004, 0.006, 0.01
_ORDERS_AFTER_A_CLICK = 0.6

Numbers = npt.NDArray[np.int64]


class Record(NamedTuple):
    """A record of an input topic.

    Attributes:
        topic: ``ad-events`` or ``orders``.
        partition: of the topic.
        key: the user.
        value: JSON, unless it is malformed.
        arrival_ms: the record's timestamp.
    """

    topic: str
    partition: int
    key: bytes
    value: bytes
    arrival_ms: int


@dataclass(frozen=True)
class Ground:
    """What really happened; one row per event, the columns are arrays of the same length.

    Attributes:
        kind: `VIEW`, `CLICK` or `ORDER`.
        number: counts the events of all kinds; the event's id is made of it.
        user: a number.
        campaign: a number below `CAMPAIGNS`; -1 for orders.
        happened_ms: in milliseconds since 1970.
        micros: what the view or click costs, or the order is worth, in millionths of the currency.
        fate: `GOOD`, `LATE`, or 2 and above: malformed, for the reason at that place in `REASONS`.
        sent: per record, in the order of their arrival: which event it reports.
        arrival_ms: per record.
    """

    kind: Numbers
    number: Numbers
    user: Numbers
    campaign: Numbers
    happened_ms: Numbers
    micros: Numbers
    fate: Numbers
    sent: Numbers
    arrival_ms: Numbers

    @property
    def records(self) -> int:
        """How many records there are."""
        return len(self.sent)


def make_ground(seed: int, events: int) -> Ground:
    """Draw everything that happens.

    Args:
        seed: the same seed and number give the same events and records.
        events: how many views, clicks and orders; a day has that many, so that more events are
            denser ones.

    Raises:
        OptionError: fewer than `MINIMUM_EVENTS`, with which some kinds would be missing.
    """
    if events < MINIMUM_EVENTS:
        raise OptionError(
            f"The ads demo needs at least {MINIMUM_EVENTS:,} events, not {events}. Give a larger "
            "--events."
        )
    draw = np.random.default_rng(seed)
    clicks, orders = int(events * _CLICK_SHARE), int(events * _ORDER_SHARE)
    users = max(50, events // 20)
    view = _views(draw, events - clicks - orders, users)
    click = _clicks(draw, view, clicks)
    order = _orders(draw, click, orders, users)
    kind = np.repeat(np.array([VIEW, CLICK, ORDER]), [events - clicks - orders, clicks, orders])
    user, campaign, happened, micros = (
        np.concatenate(parts) for parts in zip(view, click, order, strict=True)
    )
    fate = _fates(draw, events)
    sent, arrival = _records(draw, happened, fate)
    return Ground(kind, np.arange(events), user, campaign, happened, micros, fate, sent, arrival)


def _views(draw: np.random.Generator, count: int, users: int) -> tuple[Numbers, ...]:
    weights = 1.0 / np.arange(1, CAMPAIGNS + 1) ** 1.1
    campaign = draw.choice(CAMPAIGNS, size=count, p=weights / weights.sum())
    happened = START_MS + draw.integers(0, DAY_MS, count)
    return _skewed(draw, count, users), campaign, happened, draw.integers(150, 9_000, count)


def _skewed(draw: np.random.Generator, count: int, users: int) -> Numbers:
    """Draw users, of whom the first ones come much more often."""
    return (users * draw.random(count) ** 3).astype(np.int64)


def _clicks(
    draw: np.random.Generator, view: tuple[Numbers, ...], count: int
) -> tuple[Numbers, ...]:
    user, campaign, happened, _ = view
    seen = draw.integers(0, len(user), count)
    # Even milliseconds, each once per user; orders get odd ones.
    clicked = (happened[seen] + draw.integers(1_000, 60_000, count)) // 2 * 2
    return (
        user[seen],
        campaign[seen],
        _apart(user[seen], clicked),
        draw.integers(40_000, 900_000, count),
    )


def _apart(user: Numbers, moment: Numbers) -> Numbers:
    """Move moments on, by two at a time, until no user has two at the same one."""
    moment = moment.copy()
    while True:
        order = np.lexsort((moment, user))
        same = (np.diff(user[order]) == 0) & (np.diff(moment[order]) == 0)
        if not same.any():
            return moment
        moment[order[1:][same]] += 2


def _orders(
    draw: np.random.Generator, click: tuple[Numbers, ...], count: int, users: int
) -> tuple[Numbers, ...]:
    clicked_by, _, clicked, _ = click
    origin = draw.integers(0, len(clicked_by), count)
    follows = draw.random(count) < _ORDERS_AFTER_A_CLICK
    user = np.where(follows, clicked_by[origin], _skewed(draw, count, users))
    after = clicked[origin] + draw.integers(1_000, 45 * 60_000, count)
    happened = np.where(follows, after, START_MS + draw.integers(0, DAY_MS, count)) // 2 * 2 + 1
    # Whole cents.
    return user, np.full(count, -1), happened, draw.integers(99, 50_000, count) * 10_000


def _fates(draw: np.random.Generator, count: int) -> Numbers:
    fate = np.full(count, GOOD)
    drawn = draw.random(count)
    malformed = drawn < _MALFORMED_SHARE
    fate[malformed] = _FIRST_DEFECT + draw.integers(0, len(REASONS), int(malformed.sum()))
    fate[(drawn >= _MALFORMED_SHARE) & (drawn < _MALFORMED_SHARE + _LATE_SHARE)] = LATE
    return fate


def _records(
    draw: np.random.Generator, happened: Numbers, fate: Numbers
) -> tuple[Numbers, Numbers]:
    count = len(happened)
    ordinary = np.minimum(draw.exponential(20_000, count), ORDINARY_DELAY_MS).astype(np.int64)
    delay = np.where(fate == LATE, draw.integers(LATE_FROM_MS, LATE_UNTIL_MS, count), ordinary)
    repeated = np.flatnonzero(draw.random(count) < _REPEATED_SHARE)
    again = delay[repeated] + draw.integers(0, REPEATED_WITHIN_MS, len(repeated))
    sent = np.concatenate((np.arange(count), repeated))
    arrival = happened[sent] + np.concatenate((delay, again))
    order = np.argsort(arrival, kind="stable")
    return sent[order], arrival[order]


def records(ground: Ground, begin: int, end: int) -> Iterator[Record]:
    """Make the records from `begin` up to `end`, in the order of their arrival."""
    sent = ground.sent[begin:end]
    users = _named("u", 7, ground.user[sent]).cast(pa.binary()).to_pylist()
    values = _values(ground, sent)
    partitions = partition_of(ground.user[sent], ground.kind[sent]).tolist()
    kinds, arrivals = ground.kind[sent].tolist(), ground.arrival_ms[begin:end].tolist()
    for kind, partition, user, value, arrival in zip(
        kinds, partitions, users, values, arrivals, strict=True
    ):
        yield Record(TOPICS[kind], partition, user, value, arrival)


def closing_records() -> list[Record]:
    """Return one record of each kind, days after all others: their event time lets every watermark
    pass what came before.

    They are ordinary records, but the windows and the orders that they open are never closed.
    """
    at = START_MS + 3 * DAY_MS
    texts = (
        ("view", ', "ad_id": "a00000", "campaign_id": "c000", "cost_micros": 0'),
        ("click", ', "ad_id": "a00000", "campaign_id": "c000", "cost_micros": 0'),
        ("purchase", ', "amount_micros": 0'),
    )
    return [
        Record(
            TOPICS[kind],
            0,
            b"closing",
            f'{{"event_id": "closing-{name}", "user_id": "closing", "event_type": "{name}", '
            f'"event_time": {at}{more}}}'.encode(),
            at,
        )
        for kind, (name, more) in enumerate(texts)
    ]


def partition_of(user: Numbers, kind: Numbers) -> Numbers:
    """Return the partition of each user's records of these kinds."""
    # Users that come often have small numbers, and must not share a partition: Knuth's
    # multiplicative hash spreads them.
    spread: Numbers = (user * 2_654_435_761 >> 16) % np.array(
        [PARTITIONS[topic] for topic in TOPICS]
    )[kind]
    return spread


def event_ids(ground: Ground, events: Numbers) -> list[str]:
    """Return the ids that upstream gave to these events."""
    ids: list[str] = _named("e", 9, ground.number[events]).to_pylist()
    return ids


def campaign_id(number: int) -> str:
    """Return the id of a campaign."""
    return f"c{number:03d}"


def _named(letter: str, width: int, numbers: Numbers) -> Any:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")
    return pc.binary_join_element_wise(letter, digits, "")


def _values(ground: Ground, sent: Numbers) -> list[bytes]:
    """Render the events, each with its defect where it is to have one."""
    rendered = np.empty(len(sent), dtype=object)
    fate = np.maximum(ground.fate[sent], _FIRST_DEFECT - 1)
    for defect in np.unique(fate).tolist():
        reason = None if defect < _FIRST_DEFECT else REASONS[defect - _FIRST_DEFECT]
        for is_order in (False, True):
            rows = np.flatnonzero((fate == defect) & ((ground.kind[sent] == ORDER) == is_order))
            rendered[rows] = (
                _objects(ground, sent[rows], reason, is_order=is_order)
                .cast(pa.binary())
                .to_pylist()
            )
    values: list[bytes] = rendered.tolist()
    return values


def _objects(ground: Ground, events: Numbers, reason: str | None, *, is_order: bool) -> Any:
    """Render events of one kind, with the defect that is the `reason`."""
    fields = _fields(ground, events)
    if reason == "unknown event type":
        fields["event_type"] = _quoted(_constant("impressoin", len(events)))
    elif reason == "missing field":
        del fields["user_id"]
    elif reason == "wrong type":
        fields["micros"] = _quoted(_constant("free", len(events)))
    elif reason == "negative amount":
        fields["micros"] = pc.binary_join_element_wise("-", fields["micros"], "")
    elif reason == "from the future":
        fields["event_time"] = pa.array(ground.happened_ms[events] + 365 * DAY_MS).cast(pa.string())
    if is_order:
        fields = {name: field for name, field in fields.items() if name not in _OF_AN_AD}
    objects = _object(fields, "amount_micros" if is_order else "cost_micros")
    return pc.utf8_slice_codeunits(objects, 0, 60) if reason == "not JSON" else objects


def _fields(ground: Ground, sent: Numbers) -> dict[str, Any]:
    """Return all fields as JSON texts, under their names; ``micros`` is the cost or the amount."""
    user, campaign, number = ground.user[sent], ground.campaign[sent], ground.number[sent]
    address = (
        pa.array(part).cast(pa.string()) for part in (user >> 16 & 255, user >> 8 & 255, user & 255)
    )
    return {
        "event_id": _quoted(_named("e", 9, number)),
        "user_id": _quoted(_named("u", 7, user)),
        "page_id": _quoted(_named("p", 4, number % 997)),
        "ad_id": _quoted(_named("a", 5, campaign * 10 + number % 10)),
        "campaign_id": _quoted(_named("c", 3, campaign)),
        "ad_type": _quoted(pa.array(AD_TYPES).take(pa.array(number % len(AD_TYPES)))),
        "event_type": _quoted(pa.array(KINDS).take(pa.array(ground.kind[sent]))),
        "event_time": pa.array(ground.happened_ms[sent]).cast(pa.string()),
        "ip_address": _quoted(pc.binary_join_element_wise("10", *address, ".")),
        "micros": pa.array(ground.micros[sent]).cast(pa.string()),
    }


_OF_AN_AD = ("page_id", "ad_id", "campaign_id", "ad_type")


def _object(fields: dict[str, Any], micros: str) -> Any:
    pieces: list[Any] = []
    for name, field in fields.items():
        pieces += [
            "{" if not pieces else ", ",
            f'"{micros if name == "micros" else name}": ',
            field,
        ]
    return pc.binary_join_element_wise(*pieces, "}", "")


def _quoted(texts: Any) -> Any:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _constant(text: str, count: int) -> Any:
    return pa.array([text]).take(pa.array(np.zeros(count, dtype=np.int64)))
