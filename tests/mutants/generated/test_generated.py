"""Bugs that operators make: each operator makes what it says, and a sample of them is noticed.
`make mutants-generated` tries them all."""

from __future__ import annotations

import subprocess
import textwrap
from dataclasses import replace

import pytest

from mutants.catalogue import ROOT, SOURCE
from mutants.generated import outside, run
from mutants.generated.choosing import OF_A_KIND, Chosen
from mutants.generated.operators import (
    BOUNDARY,
    DROPPED,
    JOINED,
    NEGATED,
    OFF_BY_ONE,
    OPERATORS,
    OTHER_END,
    OTHER_VARIABLE,
    SWALLOWED,
    SWAPPED,
    UNLOCKED,
    bugs_of,
)
from mutants.generated.published import (
    Record,
    digest_of_records,
    digest_of_today,
    merged,
    page,
    publish,
    read,
    records_of,
)
from mutants.generated.report import Results
from mutants.generated.verdicts import Judged, load
from mutants.running import BROKEN, CAUGHT, SURVIVED, Verdict, Workshop


def made(folder, text, operator=None):
    (folder / "module.py").write_text(textwrap.dedent(text))
    return [
        bug for bug in bugs_of(folder, "module.py") if operator is None or bug.operator == operator
    ]


# --- the operators --------------------------------------------------------------------------------

CASES = [
    (DROPPED, "f(x)\ng(x)", ["pass\n    g(x)", "f(x)\n    pass"]),
    (DROPPED, "self.a = f(x)", ["pass"]),
    (DROPPED, "raise ValueError(x)", ["pass"]),
    (DROPPED, "_LOG.info('words %s', x)", []),
    (DROPPED, "failpoints.hit('bind.moved')", []),
    (SWAPPED, "f(x)\nfailpoints.hit('bind.moved')", []),
    (DROPPED, "'a docstring'\ny = f(x)\nreturn y", []),
    (SWAPPED, "f(x)\ng(x)", ["g(x)\n    f(x)"]),
    (SWAPPED, "y = f(x)\ng(y)", []),
    (BOUNDARY, "return x < y", ["return (x <= y)"]),
    (BOUNDARY, "return x >= y", ["return (x > y)"]),
    (NEGATED, "if x == y:\n        f()", ["if not (x == y):\n        f()"]),
    (NEGATED, "return x in y", ["return (x not in y)"]),
    (NEGATED, "return [a for a in x if a]", ["return [a for a in x if not (a)]"]),
    (
        SWALLOWED,
        "try:\n        f()\n    except ValueError:\n        raise KeyError from None",
        ["try:\n        f()\n    except ValueError:\n        pass"],
    ),
    (SWALLOWED, "try:\n        f()\n    except ValueError:\n        pass", []),
    (OTHER_VARIABLE, "return x", ["return y"]),
    (OTHER_VARIABLE, "return other", []),
    (UNLOCKED, "with self._lock:\n        f()", ["if True:\n        f()"]),
    (UNLOCKED, "with open(x) as file:\n        f()", []),
    (JOINED, "return x and y", ["return ((x) or (y))"]),
    (OTHER_END, "return min(x, y)", ["return max(x, y)"]),
    (OFF_BY_ONE, "return x + 1", ["return (x)"]),
]


@pytest.mark.parametrize(("operator", "body", "expected"), CASES)
def test_an_operator_makes_what_it_says_and_nothing_else(tmp_path, operator, body, expected):
    head = "def g(self, x: int, y: int, other: str):\n    "
    body = body.replace("\n", "\n    ") if "        " not in body else body
    bugs = made(tmp_path, f"{head}{body}\n", operator)
    if operator == OTHER_VARIABLE:
        assert all(bug.operator == OTHER_VARIABLE for bug in bugs)
    assert [bug.applied(tmp_path).removeprefix(head).rstrip("\n") for bug in bugs] == expected


@pytest.mark.long  # for whoever changes the generator
def test_every_operator_finds_something_in_the_package():
    modules = [
        "protocol/entries.py",
        "protocol/transitions",
        "commit_log/log.py",
        "sinks/kafka/sink.py",
    ]
    assert {bug.operator for bug in run.bugs_in(SOURCE, modules)} == set(OPERATORS)


def test_each_bug_of_the_package_is_a_program_and_has_a_name_of_its_own():
    bugs = run.bugs_in(SOURCE, ["protocol/transitions"])
    assert len(bugs) > 100
    assert len({bug.id for bug in bugs}) == len(bugs)
    for bug in bugs:
        compile(bug.applied(SOURCE), bug.file, "exec")


def test_a_bug_keeps_its_name_when_something_else_changes(tmp_path):
    text = "def g(x: int) -> bool:\n    return x < 3\n"
    before = made(tmp_path, text)
    after = made(tmp_path, "import os\n\n\ndef f() -> None:\n    os.sync()\n\n\n" + text, BOUNDARY)
    assert [bug.id for bug in before] == [bug.id for bug in after]
    assert after[0].line == before[0].line + 7


def test_a_bug_whose_place_has_changed_is_not_planted_elsewhere(tmp_path):
    (bug,) = made(tmp_path, "def g(x: int) -> bool:\n    return x < 3\n")
    (tmp_path / "module.py").write_text("def g(x: int) -> bool:\n    return x > 3\n")
    with pytest.raises(ValueError, match="was changed meanwhile"):
        bug.applied(tmp_path)


# --- the choice of tests --------------------------------------------------------------------------


def test_quick_tests_that_run_the_line_come_first_and_not_all_of_one_kind():
    tests = [f"a.py::test_many[{number}]" for number in range(40)] + ["b.py::slow", "b.py::quick"]
    chosen = Chosen({"m.py": {3: list(range(42)), 4: [40]}}, tests, [0.1] * 40 + [9.0, 0.01])
    quick, slow = chosen.of("m.py", [3])
    assert quick[0] == "b.py::quick"
    assert len(quick) == OF_A_KIND + 1
    assert slow == ["b.py::slow"]
    assert chosen.of("m.py", [4]) == ([], ["b.py::slow"])
    assert chosen.of("other.py", [3]) == ([], [])


# --- what it comes to -----------------------------------------------------------------------------


def test_a_bug_goes_to_all_tests_of_its_room_at_last():
    of_protocol = next(bug for bug in outside.load()[0] if bug.file.startswith("protocol/"))
    bug = run.with_whole_folders(of_protocol)
    assert bug.checks[-1] == "tests/protocol tests/driver tests/integration -m 'not long'"


def test_the_tests_of_each_room_are_there():
    files = [str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")]
    assert run.folders_beside("sinks/postgres/markers.py") == ["tests/sinks/postgres"]
    assert run.folders_beside("sinks/files/places/objects/tree.py") == ["tests/sinks/files_s3"]
    assert run.folders_beside("sinks/files/places/gcs/client.py") == ["tests/sinks/files_gcs"]
    for file in files:
        assert all((ROOT / folder).is_dir() for folder in run.folders_beside(file)), file


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (Verdict(CAUGHT, "t", "AssertionError: x", 1), "caught"),
        (Verdict(SURVIVED, None, "3 tests passed", 1), "survived"),
        (Verdict(BROKEN, "t", "TypeError: x", 1), "caught"),
        (Verdict(BROKEN, "t", "NameError: x", 1), "no program"),
        (Verdict(BROKEN, None, "collection: E   NameError: x", 1), "no program"),
        (Verdict(BROKEN, None, "collection: E   TypeError: x", 1), "caught"),
        (Verdict(BROKEN, "t", "Failed: Timeout >60s", 1), "hung"),
        (Verdict(BROKEN, None, "pytest hung for 240 s", 1), "hung"),
        (Verdict(BROKEN, None, "pytest ended with 4: x", 1), "broken"),
        (Verdict(BROKEN, None, f"{run._UNCOLLECTED[1]} 1 failures", 1), "caught"),
    ],
)
def test_what_a_verdict_says_of_a_bug_that_nobody_chose(verdict, status):
    assert run.status_of(verdict) == status


@pytest.fixture
def two(tmp_path):
    """Two bugs of a module, and what became of them: the first survived."""
    text = (
        "def g(x: int) -> bool:\n    return x < 3\n\n\ndef h(x: int) -> bool:\n    return x > 3\n"
    )
    one, other = made(tmp_path, text)
    results = Results(tmp_path / "generated.json")
    results.add(one, "survived", Verdict(SURVIVED, None, "3 tests passed", 1))
    results.add(other, "caught", Verdict(CAUGHT, "tests/x.py::t", "AssertionError", 1))
    return one, other, results


def test_the_page_names_each_survivor_and_what_was_said_of_it(two, tmp_path):
    one, other, results = two
    records = records_of(results, [one, other], tmp_path)
    assert "| `module.py` | 2 | 2 | 1 | 0 | 1 | 50.0 % |" in page(records, {})
    assert "| **all** | 2 | 2 | 1 | 0 | 1 | 50.0 % |" in page(records, {})
    assert (
        f"- `module.py`, `g` ({one.id}), {BOUNDARY}: `` {one.old} `` → `` {one.new} ``: **open**"
        in page(records, {})
    )
    judged = {one.id: Judged(one.id, one.file, one.old, "there is no other way to be")}
    assert "| `module.py` | 2 | 2 | 1 | 1 | 0 | 0.0 % |" in page(records, judged)
    assert "the same program: there is no other way to be" in page(records, judged)


def test_what_is_not_known_of_a_bug_counts_as_not_tried(two, tmp_path):
    one, other, results = two
    results.withdraw({other.id}, "tests/x.py::t", "it is red")
    assert results.status(other.id) == "broken"
    assert "| `module.py` | 2 | 1 | 0 | 0 | 1 | 100.0 % |" in page(
        records_of(results, [one, other], tmp_path), {}
    )
    results.add(one, "broken", Verdict(BROKEN, None, "nothing ended", 1))
    assert records_of(results, [one, other], tmp_path) == {}


def test_what_is_published_is_read_again_and_belongs_to_the_code_of_its_modules(two, tmp_path):
    one, other, results = two
    records = records_of(results, [one, other], tmp_path)
    file = tmp_path / "docs.json"
    publish(records, {}, file)
    assert read(file) == records
    assert read(tmp_path / "none.json") == {}
    assert (tmp_path / "docs.md").read_text(encoding="utf-8") == page(records, {})
    today = digest_of_today(file, tmp_path)
    assert f"Digest of these modules: {today}." in page(records, {})
    module = tmp_path / "module.py"
    text = module.read_text(encoding="utf-8")
    module.write_text(f"# words\n\n{text}", encoding="utf-8")
    assert digest_of_today(file, tmp_path) == today
    module.write_text(text.replace("3", "4"), encoding="utf-8")
    assert digest_of_today(file, tmp_path) != today
    module.unlink()
    assert digest_of_today(file, tmp_path) != today
    assert digest_of_records(["a", "b"]) == digest_of_records(["b", "a"])


@pytest.mark.parametrize(
    ("digest", "tried", "kept"),
    [("old", 9, "new"), ("new", 9, "old"), ("new", 5, "new"), ("new", 4, "new")],
)
def test_a_later_run_adds_its_modules_and_forgets_nothing_that_still_holds(digest, tried, kept):
    now = {"b.py": Record("new", 10, 5, 5, 0, ())}
    before = {"b.py": Record(digest, 10, tried, tried, 0, ()), "a.py": Record("x", 1, 1, 1, 0, ())}
    found = merged(before, now)
    assert list(found) == ["a.py", "b.py"]
    assert found["b.py"] is (now if kept == "new" else before)["b.py"]


@pytest.mark.long
def test_each_verdict_is_on_a_bug_that_can_be_made():
    judged = load()
    made = run.bugs_in(SOURCE, {each.file for each in judged.values()})
    bugs = {bug.id: bug for bug in (*made, *outside.load()[0])}
    for each in judged.values():
        assert each.id in bugs, f"{each.id} ({each.file}: {each.old}) is no bug of today's code"
        assert (bugs[each.id].file, " ".join(bugs[each.id].old.split())) == (each.file, each.old)


@pytest.mark.long  # make mutants-generated begins so
def test_a_sample_of_the_protocols_bugs_is_noticed_by_its_folders_tests(tmp_path):
    """Whatever survived when all were tried stands in verdicts.toml."""
    workshop = Workshop(tmp_path / "workshop")
    files = {
        "protocol/transitions/decide.py": (
            "tests/protocol/test_machine.py",
            "tests/protocol/test_redo.py",
        ),
        "protocol/identity.py": ("tests/protocol/test_identity.py",),
    }
    for file, checks in files.items():
        bugs = [bug for bug in bugs_of(SOURCE, file) if bug.id not in load()]
        # The one in the middle: which one that is changes with the module.
        bug = bugs[len(bugs) // 2]
        verdict = workshop.judge(replace(bug, checks=checks))
        assert run.status_of(verdict) in {"caught", "hung"}, (bug, verdict)


def test_bugs_of_what_was_changed_are_those_of_its_lines_alone(tmp_path, capsys, monkeypatch):
    package = tmp_path / "src" / "onceforall"
    package.mkdir(parents=True)

    def git(*arguments):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *name, *arguments], cwd=tmp_path, check=True, capture_output=True)

    lines = ["def f(a: int) -> bool:", "    return a < 1", "", "", "def g(a: int) -> bool:", "    return a < 2"]  # fmt: skip
    for file in ("one.py", "two.py", "gone.py"):
        (package / file).write_text("\n".join(lines) + "\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    (package / "one.py").write_text("\n".join([*lines[:5], "    return a < 3"]) + "\n")
    (package / "gone.py").unlink()
    assert run.lines_since("HEAD", package) == {"one.py": {6}}
    tried = []
    monkeypatch.setattr(run, "SOURCE", package)
    monkeypatch.setattr(run, "lines_since", lambda commit: {"one.py": {6}})
    monkeypatch.setattr(run._Run, "judge", lambda self, bugs: tried.extend(bugs))
    output = tmp_path / "build"
    output.mkdir()
    run.main(["--since", "HEAD", "--tests", "tests/protocol", "--output", str(output)])
    assert tried
    assert {(bug.file, bug.line, bug.checks) for bug in tried} == {
        ("one.py", 6, ("tests/protocol",))
    }


# --- planted from outside -------------------------------------------------------------------------


def test_a_bug_from_outside_is_planted_where_its_text_stands_once_and_named_where_it_does_not(
    tmp_path,
):
    folder, source = tmp_path / "outside", tmp_path / "package"
    folder.mkdir()
    source.mkdir()
    (source / "m.py").write_text("ü = 1\na = 2\nb = 2\n")
    entry = "[[mutant]]\nid = '{}'\nfile = '{}'\nold = '{}'\nnew = 'a = 3'\nwhy = 'rows are lost'\n"
    (folder / "x.toml").write_text(
        "".join(
            entry.format(*each)
            for each in [
                ("one", "m.py", "a = 2"),
                ("none", "m.py", "c = 2"),
                ("two", "m.py", "= 2"),
                ("no file", "n.py", "a = 2"),
            ]
        )
    )
    (bug,), gone = outside.load(folder, source)
    assert gone == ["none", "two", "no file"]
    assert (bug.id, bug.lines, bug.within) == ("one", (2,), "rows are lost")
    assert bug.applied(source) == "ü = 1\na = 3\nb = 2\n"
    (folder / "y.toml").write_text(entry.format("one", "m.py", "b = 2"))
    with pytest.raises(ValueError, match="twice"):
        outside.load(folder, source)
