"""A conformance suite for sinks: one call checks any ``TwoPhaseCommitSink`` against the contract of
module ``onceforall.sink``.

It needs no Spark. Drivers and tasks are real processes: they are killed with SIGKILL between any
two calls and at lines within them, frozen with SIGSTOP, and their work is completed or swept by
others, from committables that went through JSON. What a reader of the target sees, and what is left
over in it, is told by two functions of the caller's::

    from onceforall.testing.conformance import SinkUnderTest, check_sink

    def test_my_sink_keeps_the_contract(tmp_path):
        check_sink(SinkUnderTest(
            make_sink=lambda: MySink(tmp_path),
            rows=lambda numbers: pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())}),
            read=lambda: [row["n"] for row in read_my_target(tmp_path)],
            leftovers=lambda: [path.name for path in tmp_path.glob("*.tmp")],
        ))

A row is a number to the suite, which counts how often a reader sees each. So it doesn't look at the
order of rows, and at their values, nulls and types only where ``read`` does: for a row that isn't
what ``rows`` made of its number let it return a number that the suite never gives, -1 for instance.

Each case has a query id and rows of its own, so that all may run on one target. What the suite
can't know it skips, and says so in its
report: ``lose``, ``another_target`` and ``secrets`` give it more to do. A sink without two-phase
commit that is idempotent (``Capabilities``) gets the cases for those, and one that promises
``at_least_once`` those for that.
``TwoPhaseCommitSink.columns`` isn't called, for it needs a Spark session.

Processes are forked from a helper process without threads, so a POSIX system is needed.
"""

from onceforall.testing.conformance.suite import (
    ConformanceError,
    ConformanceReport,
    Failure,
    cases,
    check_sink,
)
from onceforall.testing.conformance.under_test import SinkUnderTest

__all__ = [
    "ConformanceError",
    "ConformanceReport",
    "Failure",
    "SinkUnderTest",
    "cases",
    "check_sink",
]
