"""What a published result depends on: the modules that run in it, and nothing else; and that the
command names what is old."""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from xml.etree import ElementTree as ET

import pytest

from benchmarks.footprint.__main__ import names_in
from benchmarks.footprint.recorder import Recorder
from evidence import digests, versions
from evidence.__main__ import RESULTS, Result, lines
from evidence.digests import (
    PACKAGE,
    PROTOCOL,
    QUERY,
    code_of,
    digest_of,
    modules_of,
    run_by,
    without_others,
)

FILES = {
    "onceforall/__init__.py": "",
    "onceforall/a.py": "from onceforall.room import b\n",
    "onceforall/room/__init__.py": "",
    "onceforall/room/b.py": "def f():\n    import onceforall.late\n",
    "onceforall/late.py": "if TYPE_CHECKING:\n    from onceforall import types_only\nimport json\n",
    "onceforall/types_only.py": "",
    "onceforall/stranger.py": "from onceforall import a\n",
}


@pytest.fixture
def package(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "onceforall"


def test_what_is_imported_counts_also_late_and_what_only_a_type_checker_reads_does_not(package):
    found = {file.relative_to(package).as_posix() for file in modules_of(["onceforall.a"], package)}
    assert found == {"a.py", "room/__init__.py", "room/b.py", "late.py"}


def test_a_change_voids_what_runs_it_and_nothing_else(package, tmp_path):
    def digest():
        return digest_of(modules_of(["onceforall.a"], package), tmp_path)

    before = digest()
    (package / "stranger.py").write_text("x = 1\n")
    assert digest() == before
    (package / "late.py").write_text("x = 1\n")
    assert digest() != before


def test_the_packages_in_which_a_module_lies_count_where_they_have_code(package):
    room = package / "deep" / "room"
    room.mkdir(parents=True)
    for folder, text in ((room.parent, "import onceforall.late\n"), (room, '"""Words."""\n')):
        (folder / "__init__.py").write_text(text)
    (room / "c.py").write_text("x = 1\n")
    found = {
        file.relative_to(package).as_posix()
        for file in modules_of(["onceforall.deep.room.c"], package)
    }
    assert found == {"deep/room/c.py", "deep/__init__.py", "late.py"}


def test_the_package_itself_which_voids_nothing_only_hands_names_on():
    """Each release and each new name changes it."""
    functions, statements = [], []
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        (functions if isinstance(node, ast.FunctionDef) else statements).append(node)
    assert [node.name for node in functions] == ["__getattr__", "__dir__"]
    assert {type(node) for node in statements} <= {
        ast.Import, ast.ImportFrom, ast.If, ast.Expr, ast.Assign, ast.AnnAssign,
    }  # fmt: skip
    assert not [
        node
        for each in statements
        if isinstance(each, ast.Assign | ast.AnnAssign)
        for node in ast.walk(each)
        if isinstance(node, ast.Call)
    ]


@pytest.mark.parametrize(
    ("digest", "file"),
    [
        (digests.stores_digest, "benchmarks/stores/requests.py"),
        (digests.profile_digest, "benchmarks/steps/profile_path.py"),
        (digests.versions_digest, "src/onceforall/worker_daemon.py"),
        (digests.versions_digest, "tests/compat.sh"),
        (digests.scale_digest, "src/onceforall/commit_log/__init__.py"),
    ],
)
def test_a_result_is_of_what_made_it_too(digest, file, monkeypatch):
    hashed = []
    monkeypatch.setattr(digests, "digest_of", lambda files: hashed.extend(files))
    digest()
    assert digests.ROOT / file in hashed


def test_a_test_runs_what_it_imports_with_its_conftest_and_what_those_import(package, tmp_path):
    files = {
        "tests/conftest.py": "from support import servers\n",
        "tests/support/__init__.py": "",
        "tests/support/servers.py": "from onceforall.late import x\n",
        "tests/support/others.py": "",
        "tests/room/conftest.py": "",
        "tests/room/test_a.py": "import simulator.world\n",
        "tests/other/conftest.py": "",
        "simulator/__init__.py": "",
        "simulator/world.py": "from onceforall import a\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = run_by([tmp_path / "tests/room/test_a.py"], package, tmp_path)
    assert {file.relative_to(tmp_path).as_posix() for file in found} == {
        "tests/room/test_a.py", "tests/room/conftest.py", "tests/conftest.py", "tests/support/__init__.py", "tests/support/servers.py", "simulator/world.py",
        "onceforall/a.py", "onceforall/room/__init__.py", "onceforall/room/b.py", "onceforall/late.py",
    }  # fmt: skip


DOCUMENTED = '''"""A module."""
# Why it is so.
LIMIT = 3  # records
"""What it
limits."""


class Sink:
    """A sink."""  # a note

    # The first one
    "second words"

    def write(self, row: str = "#") -> str:
        """Return a row.

        Args: é
        """
        note(
            # within brackets
            "a value", """a
# longer value""",
        )
        "é"; return row
'''

BARE = '''LIMIT = 3
class Sink:
    def write(self, row: str = "#") -> str:
        note(
            "a value", """a
# longer value""",
        )
        "é"; return row
'''


def test_what_only_people_read_is_left_out_of_the_code():
    assert code_of(DOCUMENTED) == BARE
    assert code_of(BARE) == BARE
    assert code_of("") == ""


@pytest.mark.long
def test_of_each_module_everything_stays_that_runs():
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text()
        words = {
            (node.lineno, node.col_offset)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        }
        runs = [token for token in tokens(text) if token.type not in layout]
        kept = [token.string for token in tokens(code_of(text)) if token.type not in layout]
        assert kept == [token.string for token in runs if token.start not in words], file


def tokens(text):
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def test_words_void_nothing_and_a_value_does(package, tmp_path):
    def digest():
        return digest_of(modules_of(["onceforall.a"], package), tmp_path)

    late = package / "late.py"
    before = digest()
    late.write_text(f'"""Other words."""\n\n{late.read_text()}  # and more\n')
    assert digest() == before
    late.write_text(f'{late.read_text()}x = "a value"\n')
    assert digest() != before


def test_a_root_that_was_moved_is_noticed(package):
    with pytest.raises(FileNotFoundError, match=r"onceforall\.gone"):
        modules_of(["onceforall.gone"], package)


def test_a_query_runs_what_it_is_known_to_run():
    query = {file.relative_to(PACKAGE).as_posix() for file in modules_of(QUERY)}
    assert query >= {
        "driver/coordinator.py", "driver/batch_writer.py", "driver/transaction.py", "protocol/machine.py", "task/write_task.py", "spark/commits.py", "commit_log/stores/local.py",
        "sinks/kafka/driver/wire.py", "sinks/files/tree.py", "sinks/postgres/merging.py",
    }  # fmt: skip
    assert not {
        name
        for name in query
        if name.startswith(("testing/", "demo/", "embedded/", "cli/", "operators/"))
    }
    protocol = {file.relative_to(PACKAGE).as_posix() for file in modules_of(PROTOCOL)}
    assert protocol < query
    assert not {name for name in protocol if name.startswith(("sinks/", "spark/", "task/"))}


def test_a_page_of_earlier_code_is_named_with_what_would_have_to_run(tmp_path):
    def result(today):
        return Result(
            "docs/performance.md", "speed", r"\| code \| digest (\w+)", lambda: today, "make bench"
        )

    there = result("").of_the_page()
    assert there
    assert lines([result(there)]) == (["of today's code    docs/performance.md: speed"], True)
    told, current = lines([result("f00d")])
    assert (told, current) == (
        [
            (
                f"OF EARLIER CODE    docs/performance.md: speed is of {there}, today's code is f00d. "
                "Again: make bench"
            )
        ],
        False,
    )


@pytest.mark.long
def test_the_command_looks_at_every_page_with_results():
    told, _ = lines(RESULTS)
    assert len(told) == len(RESULTS)
    assert {result.page for result in RESULTS} == {
        "docs/chaos-results.md", "docs/simulator-results.md", "docs/mutants-results.md", "docs/generated-results.md", "docs/performance.md", "docs/performance.json", "docs/profile.json", "docs/scale.md", "docs/store-costs.md",
        "docs/versions.md",
    }  # fmt: skip


CASES = """<testsuites><testsuite time="60">
<testcase classname="tests.crash.test_kills" name="a"/>
<testcase classname="tests.crash.test_kills" name="b"><skipped message="Skipped: it lacks this"/></testcase>
<testcase classname="tests.spark.test_files" name="c">{outcome}</testcase>
</testsuite></testsuites>"""


@pytest.fixture
def of_versions(tmp_path):
    """Write the results of a version of pyspark."""

    def write(version, outcome="", parts=("short", "kills")):
        described = {
            "Python": "3.11",
            "Java": "17",
            "Hadoop": "3.4",
            "day": "2026-01-01",
            "code": "abc",
        }
        (tmp_path / f"{version}.json").write_text(json.dumps(described))
        for part in parts:
            (tmp_path / f"{version}-{part}.xml").write_text(CASES.format(outcome=outcome))
        return tmp_path

    return write


def read(folder):
    """Return the results of a folder, without those of the published page."""
    return versions.read(folder, folder / "records" / "versions.json")


def test_the_page_of_versions_counts_what_passed_and_says_what_was_left_out(of_versions):
    of_versions("4.10.0")
    page = versions.page(read(of_versions("4.2.0")))
    assert "The same tests pass on pyspark 4.2.0, 4.10.0**: 8 runs" in page
    assert "| kill -9 of driver and workers at every step | 2; 2 left out | 2; 2 left out |" in page
    assert "- it lacks this (2 on 4.2.0, 2 on 4.10.0)" in page
    assert "Spark Connect: kill -9 of the server" not in page, "nobody ran it"


@pytest.mark.parametrize("outcome", ["<failure/>", "<error/>"])
def test_the_page_of_versions_begins_with_what_failed(of_versions, outcome):
    page = versions.page(read(of_versions("4.2.0", outcome)))
    assert "**Not all tests pass on each of 4.2.0**: 2 of 4.2.0 fail." in page
    assert "| **2 failed**, 0 passed |" in page


def test_a_module_that_is_left_out_as_a_whole_counts_as_left_out(of_versions):
    folder = of_versions("4.2.0")
    whole = """<testsuites><testsuite time="1"><testcase classname="" name="tests.operators.test_a">
<skipped message="collection skipped">('/a/test_a.py', 14, 'Skipped: it came later')</skipped>
</testcase></testsuite></testsuites>"""
    (folder / "4.2.0-kills.xml").write_text(whole)
    page = versions.page(read(folder))
    assert "it came later" in page
    assert "'it came later" not in page


def test_a_part_that_was_not_run_is_no_result(of_versions, tmp_path):
    with pytest.raises(ValueError, match=r"no results in .*: run make compat"):
        read(tmp_path)
    with pytest.raises(ValueError, match=r"4.2.0-kills.xml: run tests/compat.sh 4.2.0"):
        read(of_versions("4.2.0", parts=("short",)))


def test_a_test_of_no_area_is_told():
    with pytest.raises(ValueError, match=r"no area has the test tests\.else"):
        versions.Version({}).add("tests.else.test_a", ET.Element("testcase"))


def test_another_python_has_a_column_of_its_own_and_no_kills_at_every_step(of_versions):
    of_versions("4.2.0")
    page = versions.page(read(of_versions("4.2.0-py3.13", parts=("short",))))
    assert "| tests passed | 4.2.0 | 4.2.0 on Python 3.13 |" in page


def test_what_passed_only_in_a_second_run_alone_is_told(of_versions):
    folder = of_versions("4.2.0", "<failure/>")
    (node,) = versions.failed("4.2.0", folder)
    assert node == "tests/spark/test_files.py::c"
    again = '<testsuites><testsuite><testcase classname="tests.spark.test_files" name="c"/>'
    (folder / "4.2.0-again.xml").write_text(f"{again}</testsuite></testsuites>")
    page = versions.page(read(folder))
    assert "**The same tests pass on pyspark 4.2.0**" in page
    assert "CHANGELOG.md): 1 on 4.2.0." in page


def test_a_version_that_was_not_run_again_keeps_its_record_and_one_that_was_loses_it(
    of_versions, tmp_path
):
    before = versions.read(of_versions("4.2.0", "<failure/>"), tmp_path / "none")
    records = tmp_path / "records"
    records.write_text(
        json.dumps(
            {name: version.record() for name, version in before.items()}
            | {"4.10.0": before["4.2.0"].record()}
        )
    )
    after = versions.read(of_versions("4.2.0"), records)
    assert list(after) == ["4.2.0", "4.10.0"]
    assert after["4.10.0"] == before["4.2.0"]
    assert not versions._outcomes(
        after["4.2.0"], "plans, checkpoints, offsets, Hadoop's client"
    ).failed
    assert "**Not all tests pass on each of 4.2.0, 4.10.0**: 2 of 4.10.0 fail." in versions.page(
        after
    )


def test_a_test_of_a_class_is_named_as_pytest_takes_it():
    case = ET.Element("testcase", classname="tests.sinks.test_a.TestB", name="test_c[d]")
    assert versions._node(case) == "tests/sinks/test_a.py::TestB::test_c[d]"


RUNNING = '''import json

LIMIT = 3


class Sink:
    """A sink."""

    size: int = 4

    def __init__(self) -> None:
        self.rows = 0

    @property
    def slow(self) -> int:
        return 5

    def write(self) -> int:
        def inner() -> int:
            return LIMIT

        return inner()


if LIMIT:

    @cache
    def start() -> None:
        """Begin."""


async def later() -> None:
    pass
'''

WRITING = """import json
LIMIT = 3
class Sink:
    size: int = 4
    def write(self) -> int:
        def inner() -> int:
            return LIMIT
        return inner()
if LIMIT:
"""


def test_of_a_module_only_the_functions_that_ran_stay_and_what_belongs_to_none():
    assert without_others(RUNNING, {"Sink.write"}) == WRITING
    everything = {"Sink.__init__", "Sink.slow", "Sink.write", "start", "later"}
    assert without_others(RUNNING, everything) == code_of(RUNNING)
    assert without_others("", {"gone"}) == ""


@pytest.mark.parametrize(
    ("old", "new", "voided"),
    [
        pytest.param("return LIMIT\n", "return LIMIT + 1\n", True, id="function"),
        pytest.param("LIMIT = 3\n", "LIMIT = 4\n", True, id="constant"),
        pytest.param("rows = 0", "rows = 1", False, id="what only a start runs"),
        pytest.param("def write", "def put", True, id="another name"),
    ],
)
def test_speed_is_voided_by_what_a_batch_runs(old, new, voided, tmp_path, monkeypatch):
    package = tmp_path / "onceforall"
    package.mkdir()
    (tmp_path / "functions.json").write_text('{"sink.py": ["Sink.write"]}')
    monkeypatch.setattr(digests, "ROOT", tmp_path)
    monkeypatch.setattr(digests, "PACKAGE", package)
    monkeypatch.setattr(digests, "FOOTPRINT", tmp_path / "functions.json")
    (package / "sink.py").write_text(RUNNING)
    before = digests.speed_digest()
    assert old in RUNNING
    (package / "sink.py").write_text(RUNNING.replace(old, new))
    assert (digests.speed_digest() != before) == voided


def test_the_footprint_has_what_writes_and_what_decides_and_no_repair():
    functions = json.loads(digests.FOOTPRINT.read_text())
    assert "QueryRun.take" in functions["driver/query_run.py"]
    assert "task/write_task.py" in functions
    assert {"kafka", "files", "postgres"} <= {
        name.split("/")[1] for name in functions if name.startswith("sinks/")
    }
    assert "spark/repairs.py" not in functions
    for module, names in functions.items():
        defined = {
            name for name, _ in digests.functions_of(ast.parse((PACKAGE / module).read_text()))
        }
        # What was renamed or deleted since voids the figures, and they say so.
        assert defined & {name.split(".<locals>")[0] for name in names}, module


def test_a_driver_is_recorded_from_its_second_batch_on_and_a_worker_from_the_start(tmp_path):
    run = {}
    text = "class QueryRun:\n def take(self): open_or_write()\ndef open_or_write(): pass\n"
    # What is no module of the package isn't written down: this test, and what it calls.
    code = compile(text, str(tmp_path / "onceforall/driver/query_run.py"), "exec")
    exec(code, run)
    for kind, calls, expected in (
        ("driver", 1, []),
        ("driver", 2, ["QueryRun.take", "open_or_write"]),
        ("worker", 1, ["QueryRun.take", "open_or_write"]),
    ):
        folder = tmp_path / f"{kind}-{calls}"
        folder.mkdir()
        recorder = Recorder(folder, is_worker=kind == "worker")
        before = sys.getprofile()
        sys.setprofile(recorder)
        try:
            for _ in range(calls):
                run["QueryRun"]().take()
        finally:
            sys.setprofile(before)
        written = [line for file in folder.iterdir() for line in file.read_text().splitlines()]
        assert written == [f"driver/query_run.py {name}" for name in expected]


def test_what_was_recorded_is_sorted_and_refused_where_a_side_is_missing(tmp_path):
    (tmp_path / "1.txt").write_text(
        "driver/coordinator.py b\ndriver/coordinator.py a.<locals>.<lambda>\n"
    )
    with pytest.raises(SystemExit, match=r"nothing of task/write_task\.py was recorded"):
        names_in(tmp_path)
    (tmp_path / "2.txt").write_text("task/write_task.py c\ndriver/coordinator.py A.a\n")
    assert names_in(tmp_path) == {
        "driver/coordinator.py": ["A.a", "b"],
        "task/write_task.py": ["c"],
    }
