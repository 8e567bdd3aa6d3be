"""The commands on the pages: ours take the options that are written there, targets and extras
exist, and what is cheap is run."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
from confluent_kafka import Producer

from onceforall.cli import _parser
from support.pages import ROOT, all_blocks, blocks
from support.reading import held_back
from support.waiting import until

OF_KAFKA = {
    # Of Kafka's own distribution, which these tests don't have: with the options that were tried
    # with release 4.3.1.
    "kafka-topics.sh": {"--bootstrap-server", "--describe", "--topic", "--under-replicated-partitions"},
    "kafka-acls.sh": {
        "--bootstrap-server", "--add", "--allow-principal", "--operation", "--transactional-id", "--resource-pattern-type", "--topic", "--cluster",
    },
    "kafka-transactions.sh": {"--bootstrap-server", "--topic"},
}  # fmt: skip
ASSIGNMENT = re.compile(r"\w+=\S*")


def lines(block):
    """The commands of a block as lists of words; what a shell would put in place stays as it is
    written."""
    for line in block.code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and ASSIGNMENT.fullmatch(words[0]):
            words = words[1:]
        if words:
            yield words


COMMANDS = [(block, words) for block in all_blocks("sh", "bash") for words in lines(block)]


def options(words):
    return {word.partition("=")[0] for word in words if re.match(r"-\w|--\w", word)}


def judge_make(words, _):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(words[1:]) <= targets


def judge_pip(words, _):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    [found] = [re.fullmatch(r"onceforall(?:\[([\w,]+)\])?", word) for word in words[2:]]
    assert words[1] == "install"
    assert set((found[1] or "").split(",")) - {""} <= set(extras)


def judge_ours(words, _):
    _parser().parse_args(words[1:])


def judge_python(words, _):
    assert words[1] == "-m"
    described = subprocess.run(
        [sys.executable, *words[1:3], "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert options(words[3:]) <= set(re.findall(r"--[a-z-]+", described))


def judge_spark_submit(words, block):
    """Its jars are those of our command; the files are beside the page (for one in docs/: in the
    checkout), and know the arguments."""
    folder = ROOT if block.page.startswith("docs/") else (ROOT / block.page).parent
    rest = words[1:]
    if "--jars" in rest:
        at = rest.index("--jars")
        assert rest[at + 1] == "$(onceforall kafka jars)"
        rest = rest[:at] + rest[at + 2 :]
    if "--py-files" in rest:
        at = rest.index("--py-files")
        assert (folder / rest[at + 1]).is_file()
        rest = rest[:at] + rest[at + 2 :]
    script, *arguments = rest
    assert (folder / script).is_file()
    known = "\n".join(file.read_text() for file in (folder / script).parent.glob("*.py"))
    assert all(f'add_argument("{option}"' in known for option in options(arguments))


def judge_kafka_python(words, _):
    described = subprocess.run(
        [sys.executable, "-m", "kafka.admin", "transactions", words[words.index("transactions") + 1], "--help"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert words[:3] == ["kafka-python", "admin", "-b"]
    assert options(words[4:]) <= set(re.findall(r"--?[a-z-]+", described))


def judge_foreign(words, _):
    assert options(words[1:]) <= OF_KAFKA[words[0]]


def judge_export(words, _):
    assert all(ASSIGNMENT.fullmatch(word) for word in words[1:])


def judge_psql(words, _):
    # Its statement is run by test_statements.
    assert words[1].startswith("$")
    assert words[2] == "-c"


JUDGES = {
    "make": judge_make,
    "pip": judge_pip,
    "onceforall": judge_ours,
    "python": judge_python,
    "spark-submit": judge_spark_submit,
    "kafka-python": judge_kafka_python,
    "export": judge_export,
    "psql": judge_psql,
    **dict.fromkeys(OF_KAFKA, judge_foreign),
}


def test_there_are_commands_of_each_kind():
    assert {words[0] for _, words in COMMANDS} == set(JUDGES)


@pytest.mark.parametrize(
    ("block", "words"),
    COMMANDS,
    ids=lambda value: str(value) if not isinstance(value, list) else " ".join(value),
)
def test_a_command_on_a_page_exists_and_takes_these_arguments(block, words):
    assert words[0] in JUDGES, f"{block}: nobody knows how to check {words[0]!r}"
    JUDGES[words[0]](words, block)


def test_the_seed_on_the_page_of_the_simulator_is_replayed():
    [words] = [words for _, words in COMMANDS if "--replay" in words]
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4711" in done.stdout


def test_every_page_with_commands_is_looked_at():
    assert {block.page for block, _ in COMMANDS} == {
        block.page for block in all_blocks("sh", "bash")
    }
    assert blocks("README.md", "sh")


@pytest.mark.kafka
def test_an_open_transaction_is_shown_and_aborted_by_the_commands_of_the_page(broker, topic):
    shown, abort = [words for _, words in COMMANDS if words[0] == "kafka-python"]
    name = topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, "left behind")
    assert producer.flush(30) == 0

    def run(words, **real):
        real |= {
            "broker:9092": broker.bootstrap_servers,
            "attributed": name,
            "kafka-python": str(Path(sys.executable).with_name("kafka-python")),
        }
        command = [real.get(word, word) for word in words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def number(key):
        return re.search(rf"'{key}': (-?\d+)", run(shown))[1]

    assert number("current_transaction_start_offset") == "0"
    assert held_back(broker.bootstrap_servers, name) > 0
    run(abort, **{"4711": number("producer_id"), "0": "0"})
    until(lambda: held_back(broker.bootstrap_servers, name) == 0, 30, "the transaction is aborted")
    assert number("current_transaction_start_offset") == "-1"
