"""The suite for sources notices each thing that makes a source unfit, and passes one that isn't."""

# ruff: noqa: N802  Spark's names

from __future__ import annotations

import re

import pytest
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from onceforall.testing.sources import (
    SourceSuiteError,
    SourceUnderTest,
    check_source,
    source_cases,
)
from support.pages import ROOT, blocks


class Part(InputPartition):
    def __init__(self, numbers):
        super().__init__(None)
        self.numbers = numbers


class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a list; a right one."""

    def __init__(self, numbers):
        self.numbers, self.until = numbers, None

    def __getstate__(self):
        return {"numbers": [], "until": None}

    def initialOffset(self):
        return {"at": 0}

    def getDefaultReadLimit(self):
        return ReadMaxRows(5)

    def latestOffset(self, start, limit):
        end = len(self.numbers) if self.until is None else self.until
        return {"at": max(start["at"], min(start["at"] + limit.max_rows, end))}

    def prepareForTriggerAvailableNow(self):
        self.until = len(self.numbers)

    def partitions(self, start, end):
        numbers = self.numbers[start["at"] : end["at"]]
        return [Part(half) for half in (numbers[::2], numbers[1::2]) if half]

    def read(self, part):
        yield from ((n,) for n in part.numbers)

    def stop(self):
        pass


class EndsAtTheNewest(Reader):
    """Its end is a word, and a replay reads on to what came later."""

    def latestOffset(self, start, limit):
        return (
            {"at": start["at"], "n": len(self.numbers)}
            if start.get("n") != len(self.numbers)
            else start
        )

    def partitions(self, start, end):
        return [] if start == end else [Part(self.numbers[start.get("n", 0) :])]


class KeepsItsPlaceInMemory(Reader):
    """It goes on behind an end that it has told, though Spark may never have stored that."""

    place = None

    def latestOffset(self, start, limit):
        begun = start["at"] if self.place is None else self.place
        self.place = min(begun + 5, len(self.numbers))
        return {"at": self.place, "from": begun} if self.place > begun else start

    def partitions(self, start, end):
        return super().partitions({"at": end["from"]} if start != end else start, end)


class BeginsWhereItIsAsked(Reader):
    """Its beginning is another one at each start, once something was read."""

    asked = 0

    def initialOffset(self):
        type(self).asked += 1
        return {"at": 0 if type(self).asked < 3 else 2}


class BatchesWithoutNews(Reader):
    def latestOffset(self, start, limit):
        end = super().latestOffset(start, limit)
        return {**end, "tick": start.get("tick", 0) + 1}


class SkipsAtARestart(Reader):
    first = True

    def latestOffset(self, start, limit):
        if self.first and start["at"]:
            start = {"at": min(start["at"] + 1, len(self.numbers))}
        self.first = False
        return super().latestOffset(start, limit)

    def partitions(self, start, end):
        return super().partitions({"at": end["at"] - 4 if end["at"] > 5 else start["at"]}, end)


class ReadsOnlyOnce(Reader):
    def __init__(self, numbers):
        super().__init__(numbers)
        self.taken = set()

    def partitions(self, start, end):
        parts = [
            Part([n for n in p.numbers if n not in self.taken])
            for p in super().partitions(start, end)
        ]
        self.taken |= {n for p in parts for n in p.numbers}
        return parts


class ReversesRows(Reader):
    turn = 0

    def partitions(self, start, end):
        type(self).turn += 1
        return super().partitions(start, end)[:: 1 if type(self).turn % 4 else -1]


class NeverEnds(Reader):
    def prepareForTriggerAvailableNow(self):
        self.numbers.append(-1)


class NoJson(Reader):
    def initialOffset(self):
        return {"at": {1}}


class HasASecret(Reader):
    password = "hunter2"

    def __getstate__(self):
        return {**super().__getstate__(), "password": self.password}


class FailsOnFaults(Reader):
    def latestOffset(self, start, limit):
        if FAULTS.pop("next", None):
            raise ConnectionError("no answer")
        return super().latestOffset(start, limit)


class LosesAtChanges(Reader):
    def partitions(self, start, end):
        parts = super().partitions(start, end)
        return parts[:1] if FAULTS.pop("changed", None) else parts


FAULTS = {}


def under(kind):
    def new():
        FAULTS.clear()
        if hasattr(kind, "asked"):
            kind.asked = 0
        numbers = []
        return SourceUnderTest(
            make_reader=lambda: kind(numbers),
            put=numbers.extend,
            number=lambda row: row[0],
            changes={"grow": lambda: FAULTS.update(changed=1)},
            faults={"away": lambda: FAULTS.update(next=1)},
            secrets=["hunter2"],
        )

    return new


def test_a_right_source_passes_every_case():
    report = check_source(under(Reader))
    assert report.passed == source_cases()
    assert report.skipped == {}


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        (EndsAtTheNewest, "replays_are_equal"),
        (KeepsItsPlaceInMemory, "an_end_that_was_never_stored_is_forgotten"),
        (BeginsWhereItIsAsked, "the_first_batch_is_fixed"),
        (BatchesWithoutNews, "without_news_there_is_no_batch"),
        (SkipsAtARestart, "restarts_skip_and_repeat_nothing"),
        (ReadsOnlyOnce, "a_task_that_fails_is_repeated"),
        (ReversesRows, "replays_are_equal"),
        (NeverEnds, "available_now_ends"),
        (NoJson, "every_row_comes_once"),
        (HasASecret, "no_secret_is_shown"),
        (FailsOnFaults, "faults_lose_nothing"),
        (LosesAtChanges, "changes_lose_nothing"),
    ],
)
def test_what_is_wrong_with_a_source_fails_its_case(kind, case):
    with pytest.raises(SourceSuiteError) as raised:
        check_source(under(kind), only=[case])
    assert [failure.case for failure in raised.value.failures] == [case]
    assert case in str(raised.value)


def test_what_the_suite_is_not_told_is_skipped_with_the_reason():
    def new():
        numbers = []
        return SourceUnderTest(lambda: Reader(numbers), numbers.extend, lambda row: row[0])

    report = check_source(new)
    assert set(report.skipped) == {
        "changes_lose_nothing",
        "faults_lose_nothing",
        "no_secret_is_shown",
    }
    with pytest.raises(ValueError, match="No such cases: nothing"):
        check_source(new, only=["nothing"])


def test_the_program_on_the_page_passes_as_it_stands(capsys):
    [block] = blocks("docs/source-suite.md", "python")
    names = {"__name__": "page"}
    exec(compile(block.code, str(block), "exec"), names)
    names["test_the_lines_replay"]()
    assert "changes_lose_nothing" in capsys.readouterr().out


def test_the_page_has_every_case():
    page = (ROOT / "docs" / "source-suite.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(source_cases())
