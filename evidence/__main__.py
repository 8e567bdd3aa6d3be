"""``make evidence``: for each published result, whether it is of the code that is checked out.
Ends with 1 when one isn't.
"""

# ruff: noqa: T201  a command prints

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from evidence.digests import (
    ROOT,
    profile_digest,
    protocol_digest,
    query_digest,
    scale_digest,
    speed_digest,
    stores_digest,
    versions_digest,
)

sys.path.insert(0, str(ROOT / "tests"))


@dataclass(frozen=True)
class Result:
    """A published result.

    Attributes:
        page: where it stands.
        what: what was measured.
        digest: finds the digest on the page, as its first group.
        today: returns the digest of today's code.
        again: how it is measured again, and how long that takes.
    """

    page: str
    what: str
    digest: str
    today: Callable[[], str]
    again: str

    def of_the_page(self, root: Path = ROOT) -> str | None:
        """Return the digest that the page bears; None: none."""
        found = re.search(self.digest, (root / self.page).read_text(encoding="utf-8"))
        return found[1] if found else None


def harness_of_the_campaign() -> str:
    """Return the digest of what judges in the crash campaign."""
    return str(import_module("chaos.results").harness_digest())


def harness_of_the_benchmarks() -> str:
    """Return the digest of what measures in the benchmarks."""
    from benchmarks.report.results import harness_digest

    return harness_digest()


def of_the_simulator(kind: str) -> str:
    """Return the digest of what one of the simulators runs."""
    from simulator.page import digest_of_today

    return digest_of_today(kind)


def of_the_mutants() -> str:
    """Return the digest of the planted bugs, and of what judges each."""
    return str(import_module("mutants.report").digest_of_today())


def of_the_generated_bugs() -> str:
    """Return the digest of the modules that the page of generated bugs names."""
    return str(import_module("mutants.generated.published").digest_of_today())


RESULTS = (
    Result(
        "docs/chaos-results.md",
        "the crash campaign",
        r"production code \| digest (\w+)",
        query_digest,
        "CHAOS_MINUTES=120 make chaos, two hours",
    ),
    Result(
        "docs/chaos-results.md",
        "what judges in the crash campaign",
        r"production code \| .*harness (\w+)",
        harness_of_the_campaign,
        "CHAOS_MINUTES=120 make chaos, two hours",
    ),
    Result(
        "docs/simulator-results.md",
        "random schedules",
        r"random schedules: digest of the code \| (\w+)",
        protocol_digest,
        "make simulator, five hours",
    ),
    Result(
        "docs/simulator-results.md",
        "every schedule of a world",
        r"Every schedule: digest of the code (\w+)\.",
        partial(of_the_simulator, "exhaustive"),
        "python -m simulator.exhaustive, a part of make simulator, ten minutes",
    ),
    Result(
        "docs/simulator-results.md",
        "the Kafka sink over simulated brokers",
        r"(?s)## The Kafka sink.+?digest of the code \| (\w+)",
        partial(of_the_simulator, "brokers"),
        "python -m simulator.brokers --schedules 100000, a part of make simulator",
    ),
    Result(
        "docs/simulator-results.md",
        "the PostgreSQL sink, statement by statement",
        r"(?s)## The PostgreSQL sink.+?digest of the code \| (\w+)",
        partial(of_the_simulator, "database"),
        "python -m simulator.database --schedules 5000, a part of make simulator",
    ),
    Result(
        "docs/mutants-results.md",
        "the planted bugs",
        r"Digest of package, bugs and tests: (\w+)\.",
        of_the_mutants,
        "make mutants, two hours",
    ),
    Result(
        "docs/generated-results.md",
        "bugs that nobody chose",
        r"Digest of these modules: (\w+)\.",
        of_the_generated_bugs,
        "make mutants-generated of the modules that have changed, minutes each",
    ),
    Result(
        "docs/performance.md",
        "speed",
        r"\| code \| digest (\w+)",
        speed_digest,
        "make bench, four hours",
    ),
    Result(
        "docs/performance.json",
        "speed of restarts",
        r'"whole": "(\w+)"',
        query_digest,
        "make bench, which measures recovery and curves again, an hour",
    ),
    Result(
        "docs/performance.json",
        "what measures speed",
        r'"harness": "(\w+)"',
        harness_of_the_benchmarks,
        "make bench, four hours",
    ),
    Result(
        "docs/store-costs.md",
        "requests to a store",
        r"Measured code: `(\w+)`",
        stores_digest,
        "make store-costs, a quarter of an hour",
    ),
    Result(
        "docs/versions.md",
        "versions of pyspark",
        r"Measured code: `(.+?)`",
        versions_digest,
        "make compat, three hours",
    ),
    Result(
        "docs/scale.md",
        "many transactions",
        r"Measured code: `(\w+)`",
        scale_digest,
        "make scale, ten minutes",
    ),
    Result(
        "docs/profile.json",
        "where a record's time goes",
        r'"source": "(\w+)"',
        profile_digest,
        "python -m benchmarks.steps.profile_path --publish",
    ),
)


def lines(results: Iterable[Result]) -> tuple[list[str], bool]:
    """Return a line per result, and whether each is of today's code."""
    found, all_current = [], True
    for result in results:
        there, today = result.of_the_page(), result.today()
        if there == today:
            found.append(f"of today's code    {result.page}: {result.what}")
            continue
        all_current = False
        why = "bears no digest" if there is None else f"is of {there}, today's code is {today}"
        found.append(
            f"OF EARLIER CODE    {result.page}: {result.what} {why}. Again: {result.again}"
        )
    return found, all_current


if __name__ == "__main__":
    told, current = lines(RESULTS)
    print("\n".join(told))
    sys.exit(0 if current else 1)
