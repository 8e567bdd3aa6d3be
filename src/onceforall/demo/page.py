"""``report.html``: one file without anything from outside; its pictures are SVG, drawn from the
report alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from onceforall.demo.display import NAMES
from onceforall.demo.job import QUERIES
from onceforall.demo.outcome import BAD
from onceforall.demo.outputs import SINKS
from onceforall.demo.report import SINK_NAMES, agreement_words, conclusion
from onceforall.demo.writers import WRITERS

_WIDTH = 1080
_LABELS = 86
_LANE = 34
_BAR = 20
_HEAD = 30
_FOOT = 34

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2430; --soft: #5b6775; --line: #dfe4ea; --paper: #ffffff; --card: #f6f8fa;
  --ours: #0d8a72; --theirs: #d97706; --kill: #d1242f; --down: #e3e7ec; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa6b4; --line: #333c47; --paper: #12161c; --card: #1a2029;
  --ours: #2fb99b; --theirs: #f0a13a; --kill: #ff6b6b; --down: #2a323d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 32px 24px 64px; max-width: 1130px; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 4px; } h2 { font-size: 20px; margin: 44px 0 6px; } h3 { font-size: 16px; margin: 22px 0 6px; }
p { margin: 6px 0 12px; max-width: 96ch; } .soft { color: var(--soft); } small { color: var(--soft); font-weight: 400; font-size: 14px; margin-left: 8px; }
.verdict { border-left: 5px solid var(--ours); background: var(--card); padding: 14px 18px; margin: 20px 0; border-radius: 0 8px 8px 0; }
.verdict.failed { border-color: var(--kill); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 12px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child, .sinks :is(th, td):nth-child(-n+3) { text-align: left; } th { color: var(--soft); font-weight: 600; font-size: 14px; }
tr.first td { border-top: 2px solid var(--line); } td.bad { color: var(--kill); font-weight: 700; } td.good { color: var(--ours); font-weight: 700; }
svg { display: block; width: 100%; min-width: 720px; height: auto; } svg text { fill: var(--ink); font-size: 13px; font-family: inherit; }
svg .soft { fill: var(--soft); } svg .grid { stroke: var(--line); } svg .down { fill: var(--down); }
svg .kill { stroke: var(--kill); stroke-width: 2; } svg text.kill { fill: var(--kill); stroke: none; font-weight: 700; }
svg .onceforall { fill: var(--ours); } svg .spark { fill: var(--theirs); } svg .hit { fill: var(--kill); opacity: .5; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 22px; color: var(--soft); font-size: 14px; margin: 8px 0 0; }
.legend i { display: inline-block; width: 14px; height: 14px; border-radius: 3px; margin-right: 7px; vertical-align: -2px; }
code { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
"""


def render(report: dict[str, Any]) -> str:
    """Return the page for a report of `report.build`."""
    versions = ", ".join(
        f"{escape(name)} {escape(str(version))}" for name, version in report["versions"].items()
    )
    longest_s = max(report[writer]["duration_s"] for writer in WRITERS)
    timelines = "".join(_timeline(writer, report[writer], longest_s) for writer in WRITERS)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>onceforall: exactly once, through kill -9</title><style>{_STYLE}</style></head><body>
<h1>Exactly once in three sinks, through <code style="font-size:.92em">kill -9</code></h1>
<p class="soft">{report["events"]:,} flights from Kafka, through two Spark queries, to Kafka, files and PostgreSQL at once, and {report["kills"]}
times SIGKILL at a random moment.</p>
<div class="verdict{"" if report["passed"] else " failed"}">{escape(conclusion(report))}</div>
<h2>Lost and doubled</h2>
<p>What a reader finds in the topics (at <code>read_committed</code>), in the folders of files (by the manifests, where there are any) and in
the tables, compared with a truth that plain Python computed from the data set, without Spark.</p>
{_table(report)}
{_bars(report)}
<h2>All sinks or none</h2>
<p>Each row bears the id of its batch. A batch on which the three sinks <b>disagree</b> has different rows in two of them. <b>Parts seen</b> are
batches of which a reader that looked at files and tables all the while saw some rows, but not all. <b>Left behind</b> are open Kafka
transactions, prepared transactions, staging tables and temporary files that were there when everything had ended.</p>
{_together(report)}
<h2>Batches and kills</h2>
<p>Each bar is a micro-batch, from the moment when Spark recorded its offsets to the moment when it recorded its end. A batch that a
kill interrupted is red: Spark runs it again, and what was already written is written again, unless the writer knows better.</p>
{timelines}
<div class="legend"><span><i style="background:var(--ours)"></i>batch, onceforall</span>
<span><i style="background:var(--theirs)"></i>batch, Spark's own writers</span>
<span><i style="background:var(--kill);opacity:.5"></i>batch met by a kill, until its replay was complete</span>
<span><i style="background:var(--down)"></i>no driver, or one that is starting</span></div>
<h2>How it was done</h2>
<p>Both writers had the same flights, the same queries (a transformation of every event; flights, cancellations and minutes of delay per
airport and hour), the same Spark settings and the same plan of kills (seed {report["seed"]}): the driver's Python process, its JVM and its
Python workers got SIGKILL between 0 and 4 seconds after both queries had completed a batch since the start.</p>
<p><b>onceforall</b> wrote each batch with one decision to its <code>KafkaSink</code>, <code>FileSink</code> and <code>PostgresSink</code>.
<b>Spark's own writers</b> are what a <code>foreachBatch</code> function usually calls: <code>format("kafka")</code>, <code>parquet</code> in
append mode, and <code>jdbc</code> in append mode, one after the other on the cached batch.</p>
<p><b>Lost</b>: expected rows of which no correct copy was read. <b>Duplicated</b>: copies beyond the first of a row. <b>Wrong</b>: rows
that differ from the truth. The data set is {escape(report["data_set"])}. It took {report["duration_s"]:.0f} s after
{report["setup_s"]:.0f} s of set-up.</p>
<p class="soft">{versions}. Again with the same moments: <code>onceforall demo --seed {report["seed"]}</code></p>
</body></html>
"""


def _table(report: dict[str, Any]) -> str:
    head = ("writer", "sink", "query", "rows expected", "rows read", *BAD)
    body = []
    for writer in WRITERS:
        for sink in SINKS:
            for query in QUERIES:
                row = report[writer]["queries"][query][sink]
                is_first = (sink, query) == (SINKS[0], QUERIES[0])
                named = escape(NAMES[writer]) if is_first else ""
                shown = SINK_NAMES[sink] if query == QUERIES[0] else ""
                cells = f"<td>{named}</td><td>{shown}</td><td>{query}</td><td>{row['expected']:,}</td><td>{row['read']:,}</td>"
                bad = "".join(_cell(row[name]) for name in BAD)
                body.append(f'<tr class="{"first" if is_first else "next"}">{cells}{bad}</tr>')
    return _rows("sinks", head, body)


def _together(report: dict[str, Any]) -> str:
    head = (
        "writer",
        "kills",
        "batches in which sinks disagree",
        "reads beside the job",
        "parts seen",
        "left behind",
    )
    body = []
    for writer in WRITERS:
        result = report[writer]
        differing = sum(len(each["disagreeing"]) for each in result["agreement"].values())
        reads = sum(seen["reads"] for seen in result["concurrent_reads"].values())
        torn = sum(seen["partial_batches"] for seen in result["concurrent_reads"].values())
        left = sum(result["leftovers"].values())
        cells = f"<td>{escape(NAMES[writer])}</td><td>{result['kills']}</td>{_cell(differing, agreement_words(result))}<td>{reads:,}</td>"
        body.append(f"<tr>{cells}{_cell(torn)}{_cell(left)}</tr>")
    return _rows("together", head, body)


def _rows(kind: str, head: Sequence[str], body: Sequence[str]) -> str:
    names = "".join(f"<th>{name}</th>" for name in head)
    return (
        '<div class="scroll"><table '
        f'class="{kind}"><thead><tr>{names}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    )


def _cell(bad: int, shown: str | None = None) -> str:
    return f'<td class="{"bad" if bad else "good"}">{f"{bad:,}" if shown is None else shown}</td>'


def _bars(report: dict[str, Any]) -> str:
    """Lost and doubled by writer and sink, on one scale."""
    numbers = [
        (name, writer, sink, report[writer]["sinks"][sink][name])
        for name in ("lost", "duplicated")
        for sink in SINKS
        for writer in WRITERS
    ]
    most = max((number for *_, number in numbers), default=0) or 1
    left, room = 280, _WIDTH - 280 - 90
    parts = []
    y = 14
    for at, (name, writer, sink, number) in enumerate(numbers):
        if at % (len(SINKS) * len(WRITERS)) == 0:
            y += 8
            parts.append(f'<text x="0" y="{y + 16}" font-weight="700">{name}</text>')
        length = room * number / most
        # A row that is there must be seen, however few they are.
        length = max(length, 3.0) if number else 0.0
        label = f"{SINK_NAMES[sink]}, {NAMES[writer]}"
        parts.append(
            f'<text x="{left - 12}" y="{y + 16}" text-anchor="end" '
            f'class="soft">{escape(label)}</text>'
            f'<line class="grid" x1="{left}" y1="{y}" x2="{left}" y2="{y + 24}"/>'
            f'<rect class="{writer}" x="{left}" y="{y + 2}" width="{length:.1f}" height="{_BAR}" '
            'rx="3"/>'
            f'<text x="{left + length + 9:.1f}" y="{y + 17}" font-weight="700">{number:,}</text>'
        )
        y += 26
    return (
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH} {y + 6}" role="img" aria-label="lost and '
        'duplicated rows by writer and sink">'
        f"{''.join(parts)}</svg></div>"
    )


def _timeline(writer: str, result: dict[str, Any], longest_s: float) -> str:
    """One writer's batches and kills; both writers have the same scale."""
    room = _WIDTH - _LABELS - 12
    bottom = _HEAD + _LANE * len(QUERIES)

    def x(time_s: float) -> float:
        return _LABELS + room * max(0.0, time_s) / (longest_s or 1.0)

    timeline = result["timeline"]
    parts = [_axis(longest_s, bottom, x)]
    for life in timeline["drivers"]:
        end_s = life.get("working_s", life.get("ended_s", result["duration_s"]))
        width = x(end_s) - x(life["started_s"])
        parts.append(
            f'<rect class="down" x="{x(life["started_s"]):.1f}" y="{_HEAD}" width="{width:.1f}" '
            f'height="{bottom - _HEAD}"/>'
        )
    for lane, query in enumerate(QUERIES):
        y = _HEAD + lane * _LANE + (_LANE - _BAR) / 2
        parts.append(f'<text x="0" y="{y + 15:.1f}">{query}</text>')
        hits = {
            kill["in_flight"][query] for kill in timeline["kills"] if query in kill["in_flight"]
        }
        for batch in timeline["batches"][query]:
            begin, end = x(batch["planned_s"]), x(batch["committed_s"])
            css = "hit" if batch["batch"] in hits else writer
            words = (
                f"batch {batch['batch']} of {query}: {batch['events']:,} events, "
                f"{batch['committed_s'] - batch['planned_s']:.2f} s"
            )
            parts.append(
                f'<rect class="{css}" x="{begin:.1f}" y="{y:.1f}" '
                f'width="{max(end - begin - 0.6, 0.8):.1f}" height="{_BAR}" rx="1.5">'
                f"<title>{escape(words)}</title></rect>"
            )
    for number, kill in enumerate(timeline["kills"], start=1):
        at = x(kill["at_s"])
        parts.append(
            f'<line class="kill" x1="{at:.1f}" y1="{_HEAD - 8}" x2="{at:.1f}" y2="{bottom + 2}"/>'
            f'<text class="kill" x="{at:.1f}" y="{_HEAD - 13}" text-anchor="middle">kill '
            f"{number}</text>"
        )
    title = (
        f"{escape(NAMES[writer])} <small>{result['kills']} kills, {result['hits']} of them in the "
        "middle of a batch; "
        f"{result['duplicated']:,} rows doubled, {result['lost']:,} lost</small>"
    )
    return (
        f'<h3>{title}</h3><div class="scroll"><svg viewBox="0 0 {_WIDTH} {bottom + _FOOT}" '
        'role="img" '
        f'aria-label="timeline of {escape(NAMES[writer])}">{"".join(parts)}</svg></div>'
    )


def _axis(longest_s: float, bottom: int, x: Any) -> str:
    step_s = next((step for step in (5, 10, 20, 30, 60, 120) if longest_s / step <= 12), 300)
    ticks = range(0, int(longest_s) + 1, step_s)
    return "".join(
        f'<line class="grid" x1="{x(tick):.1f}" y1="{_HEAD}" x2="{x(tick):.1f}" y2="{bottom + 5}"/>'
        f'<text class="soft" x="{x(tick):.1f}" y="{bottom + 21}" text-anchor="middle">{tick} '
        "s</text>"
        for tick in ticks
    )
