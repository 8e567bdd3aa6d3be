"""What a published result depends on: the modules that run in it, and nothing else; and that the
command names what is old."""

from __future__ import annotations

import pytest

from evidence.__main__ import RESULTS, Result, lines
from evidence.digests import PACKAGE, PROTOCOL, QUERY, digest_of, modules_of

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


def test_the_command_looks_at_every_page_with_results():
    told, _ = lines(RESULTS)
    assert len(told) == len(RESULTS)
    assert {result.page for result in RESULTS} == {
        "docs/chaos-results.md", "docs/mutants-results.md", "docs/performance.md", "docs/performance.json", "docs/profile.json", "docs/scale.md", "docs/store-costs.md",
    }  # fmt: skip
