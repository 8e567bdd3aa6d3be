"""Attribution by brute force: a random stream, and what each of its batches must give, from all
that has ever arrived."""

import random

from onceforall.operators.matching import Click, Order


class Stream:
    """A random stream: per batch its rows (user, click or order) and the watermark that is in
    force in it."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.window = draw.choice([0, 1, 3, 10, 40, 200])
        delay = draw.choice([0, 2, 10, 50])
        spread = draw.choice([1, 10, 60, 300])
        users = draw.choice([1, 2, 5])
        tie = draw.choice(
            [
                lambda: None,
                lambda: draw.randrange(3),
                lambda: draw.choice("ab"),
                lambda: draw.choice([None, 1, 2]),
            ]
        )
        self.batches = []
        now, watermark, seen = 0, 0, {"click": 0, "order": 0}
        for _ in range(draw.randrange(1, 12)):
            rows = []
            for _ in range(draw.choice([0, 1, 3, 8])):
                now += draw.randrange(1 + spread // 4)
                time = max(1, now - draw.randrange(1 + spread))
                user, text = draw.randrange(users), f"r{draw.randrange(6)}"
                rows.append(
                    (user, Click(time, tie(), text) if draw.random() < 0.6 else Order(time, text))
                )
            self.batches.append((watermark, rows))
            for _, row in rows:
                kind = "click" if isinstance(row, Click) else "order"
                seen[kind] = max(seen[kind], row.time_us)
            watermark = max(watermark, min(seen.values()) - delay)
        # Two batches without rows: one for the last watermark, one that reaches everything.
        self.batches += [(watermark, []), (now + 10_000, [])]


def reference(stream):
    """What each batch must give, from all that has ever arrived: per batch the sorted (user,
    status, order, click)."""
    results = []
    for number, (watermark, rows) in enumerate(stream.batches):
        found = [
            (user, "late", row, None)
            for user, row in rows
            if isinstance(row, Order) and row.time_us <= watermark
        ]
        arrived = [each for _, earlier in stream.batches[: number + 1] for each in earlier]
        for past, (mark, earlier) in enumerate(stream.batches[:number]):
            later_marks = [mark for mark, _ in stream.batches[past + 1 : number]]
            for user, order in earlier:
                if (
                    isinstance(order, Click)
                    or order.time_us <= mark
                    or any(order.time_us <= m for m in later_marks)
                ):
                    continue
                if order.time_us <= watermark:
                    best = None
                    for other, click in arrived:
                        if (
                            other == user
                            and isinstance(click, Click)
                            and 0 <= order.time_us - click.time_us <= stream.window
                        ):
                            as_key = lambda c: (
                                c.time_us,
                                -1
                                if c.tie is None
                                else 0
                                if c.tie == "a"
                                else 1
                                if c.tie == "b"
                                else c.tie,
                                c.row,
                            )
                            best = click if best is None or as_key(click) > as_key(best) else best
                    found.append((user, "unmatched" if best is None else "attributed", order, best))
        results.append(sorted(found, key=repr))
    return results
