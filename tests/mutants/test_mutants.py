"""The planted bugs are what they say, and the runner can tell one that is noticed from one that
isn't. `make mutants` tries them all."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from mutants import report, run
from mutants.catalogue import REQUIRED, ROOT, SOURCE, Mutant, load
from mutants.running import BROKEN, CAUGHT, SURVIVED, Verdict, Workshop

MUTANTS = load()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("workshop"))


def mutant(old, new, *checks, file="protocol/names.py"):
    return Mutant("a-bug", file, old, new, "it does something to a user", checks)


# --- the data -------------------------------------------------------------------------------------


def test_there_are_many_and_one_of_each_class():
    assert len(MUTANTS) >= 40
    assert {each.required for each in MUTANTS} - {None} == REQUIRED


@pytest.mark.parametrize("each", MUTANTS, ids=lambda each: each.id)
def test_what_is_to_be_replaced_stands_there_once_and_a_program_remains(each):
    compile(each.applied(SOURCE), each.file, "exec")


def test_no_name_in_a_mutant_is_undefined(tmp_path):
    for each in MUTANTS:
        (tmp_path / f"{each.id.replace('-', '_')}.py").write_text(
            each.applied(SOURCE), encoding="utf-8"
        )
    rules = "F821,F822,F823"
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", rules, "--output-format", "concise", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_check_is_there():
    """Each word of a check is a file or a node id that pytest finds; what ``-k`` leaves over
    shows when the mutants run."""
    nodes = {check.split(" ")[0] for each in MUTANTS for check in each.checks}
    texts = {}
    for node in sorted(nodes):
        path, _, name = node.partition("::")
        file = ROOT / path
        assert file.exists(), f"{node}: there is no such file"
        if name:
            texts.setdefault(path, file.read_text(encoding="utf-8"))
            assert f"def {name.split('::')[-1].split('[')[0]}(" in texts[path], (
                f"{node}: there is no such test"
            )


NOT_BY_A_BUG = {
    "tests/crash/test_failpoint_reach.py::test_what_the_catalogue_says_of_a_sink_is_what_runs_pass": (
        "it compares a list with what runs pass, and guards no promise"
    ),
}
"""Crash tests that no mutant names, each with the reason."""


def test_every_crash_test_has_a_bug_that_it_must_notice():
    """They are the dearest tests and the last line: each has to show once that it can fail."""
    named = {check.split(" ")[0].split("[")[0] for each in MUTANTS for check in each.checks}
    there = [
        node
        for file in sorted((ROOT / "tests" / "crash").glob("test_*.py"))
        for node in _tests_in(ast.parse(file.read_text(encoding="utf-8")), _from_root(file))
    ]
    assert len(there) > 60
    without = [node for node in there if not {node, node.split("::")[0]} & named]
    assert sorted(without) == sorted(NOT_BY_A_BUG)


def _from_root(file):
    return file.relative_to(ROOT).as_posix()


def _tests_in(tree, prefix):
    for each in tree.body:
        if isinstance(each, ast.ClassDef):
            yield from _tests_in(each, f"{prefix}::{each.name}")
        elif isinstance(each, ast.FunctionDef) and each.name.startswith("test"):
            yield f"{prefix}::{each.name}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "Not A Slug"}, "is no id"),
        ({"checks": []}, "needs a check"),
        ({"why": "bad"}, "a sentence"),
        ({"strange": 1}, "unknown fields"),
        ({"every": True, "checks": ["tests -k one"]}, "one node id"),
    ],
)
def test_a_malformed_entry_is_named(tmp_path, change, words):
    entry = {
        "id": "a-bug",
        "file": "f",
        "old": "o",
        "new": "n",
        "why": "it does something to a user",
        "checks": ["c"],
        **change,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
    (tmp_path / "area.toml").write_text("[[mutant]]\n" + "\n".join(lines))
    with pytest.raises(ValueError, match=words):
        load(tmp_path)


def test_a_bug_that_stands_there_no_more_is_named():
    with pytest.raises(ValueError, match="stands 0 times in protocol/names.py"):
        mutant("what was there once", "", "c").applied(SOURCE)


# --- the runner -----------------------------------------------------------------------------------

SWEEPING = "tests/protocol/test_sweeping.py"


def planted(name):
    return next(each for each in MUTANTS if each.id == name)


def test_a_bug_is_caught_and_the_copy_with_it_is_what_was_imported(workshop):
    verdict = workshop.judge(planted("a-sweep-takes-what-is-spared"))
    assert verdict.status == CAUGHT, verdict
    assert verdict.caught_by.startswith(f"{SWEEPING}::test_what_is_spared_is_never_covered")
    assert verdict.words.startswith("AssertionError")
    assert verdict.importers == ("pytest",)


def test_a_bug_reaches_the_processes_that_a_test_starts(workshop, tmp_path):
    check = tmp_path / "test_children.py"
    check.write_text(
        "import subprocess, sys\n"
        "def test_a_child():\n"
        "    program = 'from onceforall.protocol.names import sink_code; "
        'print(sink_code("out"))\'\n'
        "    assert subprocess.check_output([sys.executable, '-c', program], "
        "text=True).startswith('out-')\n"
    )
    bug = mutant("""return f"{word or 'sink'}-""", """return f"{word or 'sink'}+""", str(check))
    verdict = workshop.judge(bug)
    assert verdict.status == CAUGHT, verdict
    assert "-c" in verdict.importers


def test_a_harmless_change_survives_and_fails_the_run(tmp_path, capsys):
    folder = tmp_path / "mutants"
    folder.mkdir()
    (folder / "area.toml").write_text(
        '[[mutant]]\nid = "a-word-in-a-docstring"\nfile = "protocol/sweeping.py"\nold = "A '
        'permission to abort"\nnew = "Leave to abort"\n'
        f'why = "Nothing at all, and so it survives."\nchecks = ["{SWEEPING}"]\n'
    )
    output = tmp_path / "results"
    assert run.main(["--folder", str(folder), "--output", str(output)]) == 1
    assert "SURVIVED: a-word-in-a-docstring" in capsys.readouterr().err
    results = json.loads((output / "results.json").read_text())
    assert results["totals"] == {
        "planted": 1,
        "caught": 0,
        "survived": 1,
        "broken": 0,
        "not run": 0,
    }
    assert "**survived**" in (output / "results.md").read_text()


@pytest.mark.parametrize(
    ("new", "check", "words"),
    [
        ("import nothing_of_that_name\nimport hashlib", SWEEPING, "nothing_of_that_name"),
        (
            "import hashlib  # the same",
            f"{SWEEPING}::test_that_is_not_there",
            "pytest ended with 4",
        ),
    ],
)
def test_what_is_no_program_or_no_check_is_broken_and_not_caught(workshop, new, check, words):
    verdict = workshop.judge(mutant("import hashlib", new, check))
    assert verdict.status == BROKEN
    assert words in verdict.words


TROUBLES = {
    "no server": "from onceforall.errors import EmbeddedServerError\n    raise EmbeddedServerError('x')",
    "no room": "import os\n    os.write(os.open('/dev/full', os.O_WRONLY), b'x')",
    "no port": (
        "import socket\n    one, two = socket.socket(), socket.socket()\n"
        "    one.bind(('127.0.0.1', 0))\n    two.bind(one.getsockname())"
    ),
    "no memory": "bytearray(2**62)",
    "no driver": "raise RuntimeError('the library has no driver')",
    "a full disk that the test means": "raise OSError(28, 'No space left on device')",
    "a wrong answer": "assert not hashlib",
    "what onceforall refuses": (
        "from onceforall.errors import OptionError\n    raise OptionError('it was right before')"
    ),
}


@pytest.mark.parametrize(
    ("trouble", "of_the_test", "of_the_fixture"),
    [
        ("no server", BROKEN, BROKEN),
        ("no room", BROKEN, BROKEN),
        ("no port", BROKEN, BROKEN),
        ("no memory", BROKEN, BROKEN),
        ("no driver", CAUGHT, BROKEN),
        ("a full disk that the test means", CAUGHT, BROKEN),
        ("a wrong answer", CAUGHT, CAUGHT),
        ("what onceforall refuses", CAUGHT, CAUGHT),
    ],
)
def test_what_the_machine_or_a_server_did_is_broken_and_not_caught(
    workshop, tmp_path, trouble, of_the_test, of_the_fixture
):
    for place, status in (("test", of_the_test), ("fixture", of_the_fixture)):
        check = tmp_path / f"test_in_a_{place}.py"
        prefix = "@pytest.fixture\ndef made()" if place == "fixture" else "def test_it()"
        check.write_text(
            f"import hashlib, pytest\nimport onceforall.protocol.names\n{prefix}:\n"
            f"    {TROUBLES[trouble]}\n"
            + ("def test_it(made): pass\n" if place == "fixture" else "")
        )
        verdict = workshop.judge(mutant("import hashlib", "import hashlib  # same", str(check)))
        assert verdict.status == status, (place, verdict)
        assert (verdict.caught_by is not None) == (status == CAUGHT), "nothing noticed it"


@pytest.mark.parametrize(("times", "status"), [(1, BROKEN), (2, CAUGHT)])
def test_a_state_that_never_came_counts_only_if_it_doesnt_come_twice(
    workshop, tmp_path, times, status
):
    """A machine that was busy for a moment isn't a bug that was noticed."""
    check = tmp_path / "test_waiting.py"
    check.write_text(
        "from pathlib import Path\nimport onceforall.protocol.names\n"
        "from support.waiting import until\n"
        "def test_it():\n"
        f"    tries = Path({str(tmp_path / 'tries')!r})\n"
        "    tries.write_text(f'{tries.read_text() if tries.exists() else str()}x')\n"
        f"    until(lambda: len(tries.read_text()) > {times}, 0, 'a state')\n"
    )
    verdict = workshop.judge(mutant("import hashlib", "import hashlib  # the same", str(check)))
    assert verdict.status == status, verdict
    assert "not within 0 s: a state" in verdict.words


def test_a_run_that_broke_off_is_broken_and_no_survivor(workshop, tmp_path):
    check = tmp_path / "test_breaking_off.py"
    check.write_text(
        "import os\n"
        "def test_that_passes():\n    import onceforall.protocol.names\n"
        "def test_behind_which_nothing_runs():\n    os._exit(1)\n"
        "def test_that_would_notice():\n    assert False\n"
    )
    verdict = workshop.judge(mutant("import hashlib", "import hashlib  # the same", str(check)))
    assert verdict.status == BROKEN, verdict
    assert "though no test failed" in verdict.words


def test_a_check_that_fails_without_the_bug_too_has_noticed_nothing(workshop):
    assert workshop.failing_without_a_bug([RED, GREEN], 30) == {
        RED: "AssertionError: always\nassert False".splitlines()[0]
    }


RED, GREEN = (
    f"tests/mutants/example_checks.py::test_that_is_{colour}" for colour in ("red", "green")
)


@pytest.fixture
def every():
    """A mutant each of whose checks must fail; its bug changes nothing, so that its checks do as
    they do anyway."""

    def make(*checks):
        return replace(mutant("import hashlib", "import hashlib  # the same", *checks), every=True)

    return make


def test_where_every_check_must_fail_all_are_run_and_all_are_named(workshop, every):
    other = "tests/mutants/example_checks.py::test_that_is_red_too"
    verdict = workshop.judge(every(RED, other))
    assert verdict.status == CAUGHT, verdict
    assert (verdict.caught_by, verdict.also) == (RED, (other,))
    row = report.row_of(every(RED, other), verdict, "k")
    assert report.noticed_by(row) == [RED, other]


def test_where_every_check_must_fail_one_that_passes_is_named(workshop, every):
    verdict = workshop.judge(every(RED, GREEN))
    assert verdict.status == SURVIVED, verdict
    assert verdict.words == f"{GREEN}: 1 tests passed"
    assert RED not in verdict.words


def test_where_every_check_must_fail_one_that_is_none_is_named(workshop, every):
    absent = f"{SWEEPING}::test_that_is_not_there"
    verdict = workshop.judge(every(absent, GREEN, RED))
    assert verdict.status == BROKEN, verdict
    assert verdict.words.startswith(f"{absent}: pytest ended with 4")


def test_one_of_all_checks_that_fails_without_the_bug_too_is_named(tmp_path, capsys):
    folder = tmp_path / "mutants"
    folder.mkdir()
    (folder / "area.toml").write_text(
        '[[mutant]]\nid = "a-sweep-spares-nothing"\nfile = "protocol/sweeping.py"\n'
        'old = "or name in self.spared:"\nnew = "or name in ():"\n'
        'why = "A whole batch is lost, and one check says so always."\nevery = true\n'
        f'checks = ["{SWEEPING}::test_what_is_spared_is_never_covered", "{RED}"]\n'
    )
    assert run.main(["--folder", str(folder), "--output", str(tmp_path / "results")]) == 1
    assert f"{RED} fails without the bug too" in capsys.readouterr().err


def test_what_an_earlier_run_did_not_come_to_run_without_the_bug_runs_now(tmp_path, capsys):
    """It was ended before: a test that fails anyway has noticed nothing."""
    folder, results = tmp_path / "mutants", tmp_path / "results"
    folder.mkdir()
    (folder / "area.toml").write_text(
        '[[mutant]]\nid = "a-sweep-spares-nothing"\nfile = "protocol/sweeping.py"\n'
        'old = "or name in self.spared:"\nnew = "or name in ():"\n'
        f'why = "A whole batch is lost, and nobody knows."\nchecks = ["{RED}"]\n'
    )
    (one,) = load(folder)
    row = report.row_of(
        one, Verdict(CAUGHT, RED, "it is red", 1.0, ("pytest",)), report.key_of(one, whole=False)
    )
    report.write(results, [row], 1)
    assert "of 1 the test that noticed it has yet to run" in (results / "results.md").read_text()
    assert run.main(["--folder", str(folder), "--output", str(results), "--resume"]) == 1
    assert f"{RED} fails without the bug too" in capsys.readouterr().err


def test_verdicts_are_kept_for_as_long_as_neither_code_nor_checks_change(workshop, tmp_path):
    one = planted("a-sweep-takes-what-is-spared")
    key = report.key_of(one, workshop.package, whole=False)
    other = replace(one, id="another-one")
    rows = [
        report.row_of(one, Verdict(CAUGHT, "t", "w", 1.0, ("pytest",)), key),
        report.row_of(other, Verdict(SURVIVED, None, "w", 1.0), "k"),
    ]
    report.write(tmp_path, rows, 2)
    assert [row["key"] for row in report.earlier(tmp_path, None).values()] == [key]
    assert report.key_of(mutant("a", "b", SWEEPING), workshop.package, whole=False) != key


@pytest.mark.parametrize(
    ("file", "whole", "is_voided"),
    [
        ("protocol/sweeping.py", False, True),
        ("cli/__init__.py", False, False),
        ("cli/__init__.py", True, True),
    ],
)
def test_a_verdict_is_voided_by_a_change_of_what_ran(workshop, file, whole, is_voided):
    one = planted("a-sweep-takes-what-is-spared")
    key = report.key_of(one, workshop.package, whole=whole)
    changed = workshop.package / file
    changed.write_text(changed.read_text() + "changed = True\n")
    report._digest_of_what_runs.cache_clear()
    assert (report.key_of(one, workshop.package, whole=whole) != key) == is_voided


def test_what_another_program_imported_is_not_known():
    assert not report.was_elsewhere(("onceforall.embedded.s3_program", "pytest"))
    assert report.was_elsewhere(("-c", "pytest"))


def test_another_clone_goes_on_from_what_is_published(workshop, tmp_path):
    one = planted("a-sweep-takes-what-is-spared")
    row = report.row_of(
        one,
        Verdict(CAUGHT, "t", "w", 1.0, ("pytest",)),
        report.key_of(one, workshop.package, whole=False),
    )
    report.write(tmp_path, [row], 1)
    docs = tmp_path / "docs"
    docs.mkdir()
    report.publish(tmp_path, docs)
    published = docs / "mutants-results.json"
    assert report.earlier(tmp_path / "none", published) == {one.id: {**row, "words": ""}}
    assert report.digest_of_all([row["key"]]) in (docs / "mutants-results.md").read_text()
