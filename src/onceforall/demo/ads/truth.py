"""What must come out of the pipeline, computed from the generator's ground in plain Python and
pyarrow.

Neither Spark nor a word of the jobs is used here. The rules, which the jobs must arrive at on their
own:

- A view or click that is well-formed and in time counts once, for its campaign and the quarter of
  an hour in which it happened.
- An order that is well-formed and in time belongs to the latest click of its user that happened
  before it, at most half an hour before, and was itself well-formed and in time; otherwise it is
  unmatched.
- The commission of an attributed order is a share of its amount, in millionths, by the campaign's
  row in PostgreSQL, rounded down; a campaign without a row there has none.
- A malformed record is a dead letter as often as it arrives; what came hours late is put aside
  once.
"""

from __future__ import annotations

import bisect
import uuid
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa

from onceforall.demo.ads.generator import (
    CAMPAIGNS,
    CLICK,
    GOOD,
    LATE,
    ORDER,
    REASONS,
    Ground,
    Numbers,
    campaign_id,
    event_ids,
)

WINDOW_MS = 15 * 60_000
ATTRIBUTION_MS = 30 * 60_000
UNKNOWN_ADVERTISER = "unknown"
_FORGOTTEN = 7
EVENT_IDS = uuid.UUID("5f0c9a52-6d0e-4f3b-9a5e-7f4c5d1e2b90")
SPEND_IDS = uuid.UUID("c1b7e0f4-2a86-4d19-8c3d-90e6f5a7b132")
"""What record ids are made of, as ``examples/ad_events/pipeline.py`` says to everybody who reads
the ledger."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Campaign:
    """A row of the table of campaigns.

    Attributes:
        campaign_id: its key.
        advertiser: who pays.
        commission_ppm: how much of an order's amount is the commission, in millionths of it.
    """

    campaign_id: str
    advertiser: str
    commission_ppm: int


@dataclass(frozen=True)
class Truth:
    """What must be found.

    Attributes:
        ledger: the rows of each destination, by their record id.
        dead_letters: how many, by reason.
        late: the ids of the events that came hours late.
    """

    ledger: Mapping[str, Row]
    dead_letters: Mapping[str, int]
    late: frozenset[str]

    def total(self, column: str) -> int:
        """Return the sum of a column of the ledger over all rows that have it."""
        return sum(row.get(column) or 0 for row in self.ledger.values())


def campaigns() -> list[Campaign]:
    """Return the rows of the table of campaigns. One campaign has none: somebody forgot it."""
    known = (number for number in range(CAMPAIGNS) if number != _FORGOTTEN)
    return [
        Campaign(campaign_id(number), f"advertiser {number % 17}", 20_000 + number * 7_321 % 90_000)
        for number in known
    ]


def truth_of(ground: Ground) -> Truth:
    """Compute what must come out."""
    ledger = {**_spend(ground), **_orders(ground, {each.campaign_id: each for each in campaigns()})}
    dead = Counter(
        REASONS[fate - LATE - 1] for fate in ground.fate[ground.sent].tolist() if fate > LATE
    )
    return Truth(
        ledger, dict(dead), frozenset(event_ids(ground, np.flatnonzero(ground.fate == LATE)))
    )


def record_id(namespace: uuid.UUID, *named: str) -> str:
    """Return the id that a record must have: a UUID of version 5, of the texts that name it as
    ``record_id`` of the operators documents.
    """
    return str(uuid.uuid5(namespace, "".join(named)))


def _spend(ground: Ground) -> dict[str, Row]:
    counted = np.flatnonzero((ground.fate == GOOD) & (ground.kind != ORDER))
    is_click = ground.kind[counted] == CLICK
    table = pa.table(
        {
            "campaign": ground.campaign[counted],
            "window": ground.happened_ms[counted] // WINDOW_MS * WINDOW_MS,
            "impressions": (~is_click).astype(np.int64),
            "clicks": is_click.astype(np.int64),
            "spend_micros": ground.micros[counted],
        }
    )
    sums = table.group_by(["campaign", "window"]).aggregate(
        [(c, "sum") for c in ("impressions", "clicks", "spend_micros")]
    )
    rows = [
        {
            "kind": "spend",
            "campaign_id": campaign_id(row["campaign"]),
            "happened_ms": row["window"],
            "impressions": row["impressions_sum"],
            "clicks": row["clicks_sum"],
            "spend_micros": row["spend_micros_sum"],
        }
        for row in sums.to_pylist()
    ]
    return {
        record_id(SPEND_IDS, _text(row["campaign_id"]), _moment(row["happened_ms"])): row
        for row in rows
    }


def _orders(ground: Ground, known: Mapping[str, Campaign]) -> dict[str, Row]:
    counted = np.flatnonzero((ground.fate == GOOD) & (ground.kind == ORDER))
    clicks = _clicks_by_user(ground)
    ids = event_ids(ground, np.arange(len(ground.kind)))
    columns = (counted, ground.user[counted], ground.happened_ms[counted], ground.micros[counted])
    rows = []
    for order, user, moment, amount in zip(*(column.tolist() for column in columns), strict=True):
        row = {
            "kind": "order",
            "order_id": ids[order],
            "happened_ms": moment,
            "amount_micros": amount,
        }
        moments, events = clicks[user]
        # The last one before the order.
        found = bisect.bisect_left(moments, moment) - 1
        if found < 0 or moment - moments[found] > ATTRIBUTION_MS:
            rows.append({**row, "status": "unmatched"})
            continue
        campaign = campaign_id(int(ground.campaign[events[found]]))
        rows.append(
            {
                **row,
                "status": "attributed",
                "click_id": ids[events[found]],
                **_paid_by(known.get(campaign), campaign, amount),
            }
        )
    return {record_id(EVENT_IDS, _text(f"event {row['order_id']}")): row for row in rows}


def _text(value: str) -> str:
    return f"s{len(value)}:{value}"


def _moment(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    return f"t27:{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


def _paid_by(known: Campaign | None, campaign: str, amount: int) -> Row:
    advertiser, ppm = (
        (UNKNOWN_ADVERTISER, 0) if known is None else (known.advertiser, known.commission_ppm)
    )
    return {
        "campaign_id": campaign,
        "advertiser": advertiser,
        "commission_micros": amount * ppm // 1_000_000,
    }


def _clicks_by_user(ground: Ground) -> Mapping[int, tuple[list[int], list[int]]]:
    """Return the moments and the events of each user's clicks, in the order of the moments."""
    counted = np.flatnonzero((ground.fate == GOOD) & (ground.kind == CLICK))
    in_order: Numbers = counted[np.argsort(ground.happened_ms[counted], kind="stable")]
    found: defaultdict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for event, user, moment in zip(
        in_order.tolist(),
        ground.user[in_order].tolist(),
        ground.happened_ms[in_order].tolist(),
        strict=True,
    ):
        found[user][0].append(moment)
        found[user][1].append(event)
    return found
