"""The documentation says what the code does: examples compile, names exist, everything is
described, links lead somewhere."""

import ast
import doctest
import importlib.util
import inspect
import re
import subprocess
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import onceforall
from onceforall import errors
from onceforall.driver import doors as stream
from onceforall.sinks.kafka import KafkaSink, options
from onceforall.sinks.kafka.access.security import AccessError

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").glob("*.md"),
    ]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ERRORS = sorted(
    name
    for name, value in vars(errors).items()
    if inspect.isclass(value) and value.__module__ == errors.__name__
)

page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


def blocks(text, language):
    return [code for found, code in FENCE.findall(text) if found == language]


def prose(text):
    """The page without its blocks of code."""
    return FENCE.sub("", text)


def anchors(path):
    """The anchors that GitHub gives to a page's headings."""
    titles = HEADING.findall(prose(path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def everything():
    return "\n".join(path.read_text(encoding="utf-8") for path in PAGES)


def options_named(text):
    """Names like ``onceforall.takeover`` that are no module of the package."""
    names = set(re.findall(r"\bonceforall\.([A-Za-z][A-Za-z_]*)", text))
    return {
        f"onceforall.{name}"
        for name in names - set(onceforall.__all__)
        if importlib.util.find_spec(f"onceforall.{name}") is None
    }


def test_the_pages_that_the_readme_promises_are_there():
    assert {path.name for path in PAGES} >= {
        "README.md",
        "guarantees.md",
        "protocol.md",
        "hazards.md",
        "kafka.md",
        "options.md",
    }


def test_there_are_examples_at_all():
    assert len(blocks(everything(), "python")) >= 2


@page
def test_every_python_example_compiles(page):
    for code in blocks(page.read_text(encoding="utf-8"), "python"):
        compile(code, page.name, "exec")


@page
def test_every_block_of_code_says_its_language_and_ends(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("```") % 2 == 0
    assert all(language for language, _ in FENCE.findall(text))


@page
def test_every_public_name_in_a_page_exists(page):
    for name in re.findall(r"\bofa\.([A-Za-z_]+)", page.read_text(encoding="utf-8")):
        assert name in onceforall.__all__, f"{page.name} names ofa.{name}"


def test_every_option_in_a_page_exists():
    # The store's settings have names of their own behind this one.
    log_and_file_names = {
        "onceforall.sinks",
        "onceforall.egg",
        "onceforall.markers",
        "onceforall.stg_",
    }
    log_and_file_names.add("onceforall.store")
    assert options_named(everything()) - log_and_file_names <= set(stream._OPTIONS)


def test_every_option_is_documented_with_its_argument():
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    for option, (argument, _) in stream._OPTIONS.items():
        assert re.search(rf"^\| `{re.escape(option)}` \| `{argument}=` \|", text, re.MULTILINE), (
            f"{option} has no row"
        )


def test_every_option_that_a_message_of_the_code_names_exists():
    for path in sorted((ROOT / "src").rglob("*.py")):
        named = {
            name
            for name in options_named(path.read_text(encoding="utf-8"))
            if re.search(r"\.[a-z]+[A-Z]", name)
        }
        assert named <= set(stream._OPTIONS), f"{path.name} names {named - set(stream._OPTIONS)}"


def test_the_defaults_in_the_table_of_options_are_those_of_the_code():
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    parameters = inspect.signature(onceforall.exactly_once).parameters
    for argument, words in {
        "on_divergence": "`warn`",
        "min_batches_to_retain": "`100`",
        "adopt_checkpoint": "`false`",
        "takeover": "none",
        "commit_log": "none",
        "redo": "`auto`",
        "in_doubt": "none",
        "decision_reserve_ms": "a third",
    }.items():
        assert re.search(rf"`{argument}=` \| {re.escape(words)}", text), argument
        default = parameters[argument].default
        assert (
            words in {"none", "a third"}
            if default is None
            else words == f"`{str(default).lower()}`"
        )


def test_every_argument_of_the_kafka_sink_is_documented_with_its_default():
    text = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    for name, parameter in inspect.signature(KafkaSink).parameters.items():
        required = parameter.default is inspect.Parameter.empty
        default = (
            "required"
            if required
            else "none"
            if parameter.default is None
            else f'`"{parameter.default}"`'
        )
        assert f"| `{name}` | {default} |" in text, name


def test_every_option_that_the_kafka_sink_keeps_for_itself_is_documented():
    text = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    for name in options._OWN:
        assert f"`{name}`" in text, f"{name} is refused, and docs/kafka.md does not say so"


@pytest.mark.parametrize(
    ("name", "value", "delivery"),
    [
        ("metadata.broker.list", "broker:9092", "exactly_once"),
        ("error_cb", "x", "none"),
        ("group.id", "x", "none"),
        ("sasl.jaas.config", "x", "none"),
        ("allow.auto.create.topics", True, "none"),
        ("enable.idempotence", False, "at_least_once"),
        ("acks", "1", "at_least_once"),
        ("max.in.flight", 6, "exactly_once"),
        ("retries", 0, "exactly_once"),
        ("message.timeout.ms", 0, "exactly_once"),
        ("delivery.timeout.ms", 900_001, "exactly_once"),
        ("transaction.timeout.ms", 60_000, "at_least_once"),
        *((name, "x", "none") for name in options._OWN),
    ],
)
def test_what_the_documentation_says_is_refused_is_refused(name, value, delivery):
    text = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    refused = text[text.index("\nRefused:") : text.index("At `start()`, before")]
    assert f"`{name}" in refused
    with pytest.raises(errors.OptionError, match=re.escape(name)):
        KafkaSink({"bootstrap.servers": "broker:9092", name: value}, topic="t", delivery=delivery)


def test_the_defaults_of_the_kafka_sink_in_the_table_are_those_of_the_code():
    text = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    configuration = options.producer_configuration(
        {"bootstrap.servers": "broker:9092"}, "exactly_once", "id"
    )
    for name in (
        "partitioner",
        "queue.buffering.max.messages",
        "transaction.timeout.ms",
        "message.timeout.ms",
    ):
        assert re.search(rf"\| `{re.escape(name)}` \| `?{configuration[name]}\b", text), (
            f"{name} is {configuration[name]}"
        )
    assert configuration["acks"] == "all"
    assert configuration["enable.idempotence"] is True


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_says_in_the_documentation_what_to_do(name):
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert f"| [`{name}`](#{name.lower()}) |" in text, f"{name} has no row in docs/errors.md"
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert section.strip(), f"{name} has no heading in docs/errors.md"


@pytest.mark.parametrize("name", [*ERRORS, "AccessError", "ValueError"])
def test_the_address_that_an_error_gives_is_a_heading_of_that_page(name):
    kinds = {**vars(errors), "AccessError": AccessError, "ValueError": ValueError}
    path, _, anchor = errors.documentation_of(kinds[name].__new__(kinds[name])).partition("#")
    expected = {"AccessError": "attemptfailederror", "ValueError": "errors-of-others"}.get(
        name, name.lower()
    )
    assert anchor == expected
    assert anchor in anchors(ROOT / path)


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_can_be_imported_from_the_package(name):
    assert getattr(onceforall, name) is getattr(errors, name)
    assert name in onceforall.__all__


def test_every_error_in_a_page_exists():
    own_and_foreign = {*ERRORS, "ModuleNotFoundError", "NameError", "OSError"}
    assert set(re.findall(r"`(\w+Error)`", everything())) <= own_and_foreign


@page
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for target in LINK.findall(prose(page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert ROOT in linked.parents
        if anchor:
            assert anchor in anchors(linked), (
                f"{page.name} links to {target}, and its headings are {sorted(anchors(linked))}"
            )


def test_every_page_can_be_reached_from_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{path.name}" in readme, f"README.md does not link to {path.name}"


def test_the_picture_of_the_protocol_is_whole_and_needs_nothing_from_elsewhere():
    picture = ROOT / "docs" / "images" / "protocol.svg"
    text = picture.read_text(encoding="utf-8")
    root = ET.fromstring(text)
    said = " ".join(
        "".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")
    )
    for word in (
        "pre-commit",
        "COMMIT",
        "EndTxn",
        "DONE",
        "Crash before the decision",
        "Crash after the decision",
    ):
        assert word in said
    assert not re.search(r"href|url\((?!#)|<script|<image|<foreignObject", text)


def tracked_texts():
    """Markdown, pictures and configuration that are tracked, or will be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        return [*PAGES, *(ROOT / "docs").rglob("*.svg")]
    suffixes = {".md", ".svg", ".toml", ".mmd", ".dot", ".txt", ".html"}
    return [
        path
        for name in listed.stdout.splitlines()
        if (path := ROOT / name).suffix in suffixes and path.is_file()
    ]


def test_no_path_of_a_machine_and_no_registry_is_named():
    machine = re.compile(r"(?<![\w.])/(?:root|home|Users|work|tmp|private|mnt)/")
    registry = re.compile(
        r"pypi\.org|pythonhosted\.org|maven\.org|repo1\.|repo\.maven|artifactory|nexus",
        re.IGNORECASE,
    )
    texts = tracked_texts()
    assert len(texts) >= len(PAGES)
    for path in texts:
        text = path.read_text(encoding="utf-8")
        assert not machine.search(text), f"{path.relative_to(ROOT)}: {machine.search(text)}"
        assert not registry.search(text), f"{path.relative_to(ROOT)}: {registry.search(text)}"


MEASURED = re.compile(
    r"\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,40}\b|no violation|cells of [\d,]+"
    r"|[\d,]+ (?:cells|kills|SIGKILLs|records|violations|stuck queries|scenarios)\b"
)
"""A commit, or a figure of a run."""


@pytest.mark.parametrize(
    "page",
    [
        page
        for results in sorted((ROOT / "docs").glob("*-results.md"))
        if (page := results.with_name(results.name.replace("-results", ""))).is_file()
    ],
    ids=lambda path: path.name,
)
def test_what_a_run_came_to_stands_on_the_page_that_it_wrote_and_nowhere_else(page):
    """Typed by hand, it stays as it was when another run writes that page."""
    assert MEASURED.search("of commit `40667fb5e39e`")
    assert MEASURED.search("Four cells of 1,374")
    text = prose(page.read_text(encoding="utf-8"))
    assert [found[0] for found in MEASURED.finditer(text)] == []


def test_the_examples_in_the_docstring_of_the_package_run():
    results = doctest.testmod(onceforall)
    assert results.attempted > 0
    assert results.failed == 0


def test_every_page_is_on_the_site():
    """``make docs`` fails on a link or an anchor that leads nowhere; a page that nobody listed
    it would only mention."""
    listed = set(
        re.findall(
            r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= listed
    assert len(listed) > 40


def named_after_their_target():
    """The default names of our sinks that depend on what they write to, as docstrings say them."""
    for path in (ROOT / "src/onceforall/sinks").rglob("sink.py"):
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(each, ast.FunctionDef) and each.name == "default_name":
                yield from re.findall(r"``(\w+-<[^`]+>)``", ast.get_docstring(each) or "")


@pytest.mark.parametrize("name", sorted(named_after_their_target()))
def test_the_page_of_changes_says_that_a_new_target_without_a_name_is_another_sink(name):
    """What a start refuses with a batch in doubt must not be called safe there."""
    rows = [
        line
        for line in (ROOT / "docs/changing.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("|") and f"`{name}`" in line
    ]
    assert rows
    assert all("without `name=`" in row and "another sink" in row for row in rows)


def test_the_sinks_that_are_named_after_their_target_are_found():
    assert len(set(named_after_their_target())) == 5
