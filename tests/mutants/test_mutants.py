"""The planted bugs are what they say, and the runner can tell one that is noticed from one that
isn't. `make mutants` tries them all."""

from __future__ import annotations

import json
import subprocess
import sys

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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "Not A Slug"}, "is no id"),
        ({"checks": []}, "needs a check"),
        ({"why": "bad"}, "a sentence"),
        ({"strange": 1}, "unknown fields"),
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


def test_a_check_that_fails_without_the_bug_too_has_noticed_nothing(workshop):
    red, green = (
        f"tests/mutants/example_checks.py::test_that_is_{colour}" for colour in ("red", "green")
    )
    assert workshop.failing_without_a_bug([red, green], 30) == {
        red: "AssertionError: always\nassert False".splitlines()[0]
    }


def test_verdicts_are_kept_for_as_long_as_neither_code_nor_checks_change(workshop, tmp_path):
    one = planted("a-sweep-takes-what-is-spared")
    key = report.key_of(one, workshop.package)
    rows = [
        report.row_of(one, Verdict(CAUGHT, "t", "w", 1.0), key),
        report.row_of(one, Verdict(SURVIVED, None, "w", 1.0), "k"),
    ]
    report.write(tmp_path, rows, 2)
    assert list(report.earlier(tmp_path)) == [key]
    assert report.key_of(mutant("a", "b", SWEEPING), workshop.package) != key
