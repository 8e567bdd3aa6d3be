"""Each block of code on the pages is run by a test as it stands, or says that it is a fragment:
none is passed over."""

import ast
import json
import re

import pytest

from support.pages import PAGES, PICTURES, ROOT, RUN_ELSEWHERE, Block, all_blocks, blocks, elsewhere


def fails_when_nobody_runs(block):
    """Say in which test a block is run."""
    if block.language in PICTURES or block.is_fragment:
        return None
    if block.language == "json":
        return "here"
    if block.language in {"sh", "bash"}:
        return "test_commands.py, every line of every page"
    if block.language == "sql":
        assert block.page == "docs/postgres.md", f"{block}: no test runs SQL of this page"
        return "test_statements.py"
    if block.language == "diff":
        assert block.page == "README.md", f"{block}: no test runs a diff of this page"
        return "test_programs.py"
    assert block.language == "python", f"{block}: nobody knows how to run {block.language!r}"
    return elsewhere(block) or "test_programs.py, every page"


@pytest.mark.parametrize("block", all_blocks(), ids=str)
def test_a_block_is_a_picture_or_a_fragment_or_is_run(block):
    fails_when_nobody_runs(block)


@pytest.mark.parametrize(("page", "start"), RUN_ELSEWHERE, ids=str)
def test_a_block_that_is_run_elsewhere_is_there_and_so_is_its_test(page, start):
    assert [block for block in blocks(page, "python") if block.code.startswith(start)], (
        "the page has no such block any more"
    )
    path, name = RUN_ELSEWHERE[page, start].split("::")
    text = (ROOT / path).read_text()
    assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{path} has no test {name} any more"


@pytest.mark.parametrize("block", [block for block in all_blocks() if block.is_fragment], ids=str)
def test_a_fragment_is_valid_and_says_what_it_continues(block):
    assert block.language == "python"
    ast.parse(block.code)
    assert len(block.code.partition("\n")[0]) > len("# fragment: of it")


def test_fragments_stay_few():
    assert len([block for block in all_blocks() if block.is_fragment]) <= 4


@pytest.mark.parametrize("block", all_blocks("json"), ids=str)
def test_json_is_json(block):
    assert json.loads(block.code)


def test_the_first_program_of_the_documentation_is_the_example_file():
    [block] = [
        block
        for block in blocks("docs/start.md", "python")
        if block.code.startswith("import sys\n")
    ]
    text = (ROOT / "examples" / "window_counts" / "window_counts.py").read_text()
    assert text.split('"""', 2)[2].lstrip("\n") == block.code


def test_the_fragment_of_the_job_load_is_what_the_job_does():
    [block] = [block for block in blocks("docs/ad-events.md", "python") if block.is_fragment]
    job = ast.parse((ROOT / "examples" / "ad_events" / "load.py").read_text())
    written = []
    for tree in (ast.parse(block.code), job):
        [function] = [
            node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "write"
        ]
        for argument in function.args.args:
            argument.annotation = None
        function.returns = None
        written.append(ast.unparse(function))
    assert written[0] == written[1]


@pytest.mark.parametrize(
    "block",
    [
        Block("docs/new.md", 1, "sql", "SELECT 1;"),
        Block("docs/new.md", 1, "diff", "+a"),
        Block("docs/new.md", 1, "scala", "val a = 1"),
        Block("docs/new.md", 1, "", "no language"),
    ],
    ids=lambda block: block.language or "none",
)
def test_a_block_that_nobody_runs_fails(block):
    with pytest.raises(AssertionError):
        fails_when_nobody_runs(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_block_is_hidden_from_the_tests_by_its_indentation(page):
    fences = [
        line
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.lstrip().startswith(("```", "~~~"))
    ]
    assert len(fences) == 2 * len(blocks(page.relative_to(ROOT)))
