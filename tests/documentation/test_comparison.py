"""The comparison with other systems is whole: each entry of ours has a test that exists, each
number a source, and the README shows rows of the page as they stand there."""

import re

import pytest

import onceforall
from support.pages import ROOT, text_of_tests

PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
MEASURED = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
SYSTEMS = [
    "onceforall", "Flink", "Kafka Streams", "Spark as shipped", "Arroyo", "RisingWave", "Quix Streams",
]  # fmt: skip
NUMBER = re.compile(r",? \[(\d+)\]")


def section(heading):
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def rows(text):
    """The rows of the tables that compare systems: the name of each with its cells."""
    found = []
    for table in re.findall(r"^\| \| onceforall \|.*\n(?:\|.*\n)+", text, re.MULTILINE):
        lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
        assert lines[0] == SYSTEMS
        found += [(name, cells) for name, *cells in lines[2:]]
    return found


AHEAD = rows(section("Where onceforall does as much, or more"))
BEHIND = rows(section("Where onceforall does less"))
CELLS = dict(AHEAD + BEHIND)
TESTS = {
    name: re.findall(r"`([^`]+)`", tests)
    for name, tests in re.findall(r"^- ([^:]+): (.+)$", section("Tests"), re.MULTILINE)
}
SOURCES = dict(re.findall(r"^(\d+)\. (.+)$", section("Sources"), re.MULTILINE))


def test_no_flattering_rows_only():
    assert len(CELLS) == len(AHEAD) + len(BEHIND) >= 20
    assert len(BEHIND) > len(AHEAD)  # As the README says.


@pytest.mark.parametrize("name", CELLS)
def test_a_row_says_something_of_each_system(name):
    assert len(CELLS[name]) == len(SYSTEMS)
    assert all(cell.strip() for cell in CELLS[name])


def test_only_what_onceforall_lacks_has_no_test():
    assert set(TESTS) <= set(CELLS)
    assert all(CELLS[name][0].startswith("no") for name in set(CELLS) - set(TESTS))


@pytest.mark.parametrize("test", sorted({test for tests in TESTS.values() for test in tests}))
def test_a_test_that_is_named_exists(test):
    path, _, name = test.partition("::")
    text = text_of_tests(path)
    assert re.search(rf"def {name or 'test_.*'}\(", text), f"{path} has no test {name} any more"


def test_each_number_has_a_source_and_each_source_is_used():
    used = {number for cells in CELLS.values() for cell in cells for number in NUMBER.findall(cell)}
    assert used == set(SOURCES)
    assert list(SOURCES) == [str(number) for number in range(1, len(SOURCES) + 1)]
    assert all(re.search(r"<https://\S+>|\]\(\w+\.md", source) for source in SOURCES.values())


def test_what_is_said_of_ours_needs_no_source():
    assert not any(NUMBER.search(cells[0]) for cells in CELLS.values())


def test_the_readme_shows_rows_of_both_kinds_as_they_stand_on_the_page():
    shown = rows(README)
    for name, cells in shown:
        assert cells == [NUMBER.sub("", cell) for cell in CELLS[name]]
    names = {name for name, _ in shown}
    assert names & {name for name, _ in AHEAD}
    assert len(names & {name for name, _ in BEHIND}) * 3 >= len(names)


def test_what_was_measured_is_what_the_page_of_measurements_says():
    ours, flinks, _, sparks, *_ = CELLS["Throughput, Kafka to Kafka"]
    assert ours == "1"
    for of, cell in (("Flink exactly-once", flinks), ("Spark's own sink", sparks)):
        for size, ratio in zip(("100 B", "1 KB"), re.findall(r"0\.\d+|1\.\d+", cell), strict=True):
            assert re.search(
                rf"^\| throughput, ours / {of}, {size} \| [^|]+ \| \*\*{ratio}\*\*",
                MEASURED,
                re.MULTILINE,
            ), f"{of}, {size} is not {ratio}"
    ours, flinks, _, sparks, *_ = CELLS["Latency, Kafka to Kafka, median"]
    for contender, trigger, cell in (
        ("onceforall, exactly-once", "default", ours),
        ("onceforall, exactly-once", "1 s", ours.partition(";")[2]),
        ("Flink's KafkaSink, exactly-once", "1 s", flinks),
        ("Spark's own Kafka sink, at-least-once", "default", sparks),
    ):
        [median, *_] = re.findall(r"(\d+) ms", cell)
        assert re.search(
            rf"^\| {contender} \| {trigger} \| 2,000/s \| 2,000 \| {median} \(",
            MEASURED,
            re.MULTILINE,
        ), f"{contender}, {trigger}, is not {median} ms"


def test_the_version_is_this_one():
    version = onceforall.__version__.partition(".dev")[0]
    assert CELLS["Who stands behind it"][0].startswith(f"version {version},")
