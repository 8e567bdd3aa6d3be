"""The blocks of code on the pages, as they stand there, and what puts real things in the place
of their hosts, paths and topics."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "examples").glob("*/README.md"),
    ]
)
PICTURES = {"text", "mermaid"}
"""What is no code: output, layouts of folders, settings, drawings."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FRAGMENT = re.compile(r"\A(?:#|--) fragment: \S")


@dataclass(frozen=True)
class Block:
    """One block: its page (as the repository knows it), the line of its fence, language and
    content."""

    page: str
    line: int
    language: str
    code: str

    @property
    def is_fragment(self):
        """Whether the block itself tells a reader that it can't be pasted as it is."""
        return _FRAGMENT.match(self.code) is not None

    def __str__(self):
        return f"{self.page}:{self.line}"


def text_of_tests(path):
    """The text of a file of tests, with that of a suite that it imports whole.

    Args:
        path: the file, below the checkout.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    suites = re.findall(r"^from (sinks\.\w+\.\w+) import \*", text, re.MULTILINE)
    others = [ROOT / "tests" / f"{suite.replace('.', '/')}.py" for suite in suites]
    return "\n".join([text, *(each.read_text(encoding="utf-8") for each in others)])


def blocks(page, *languages):
    """The blocks of a page in their order; those of some languages, or all."""
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    found = [
        Block(
            str(path.relative_to(ROOT)), text.count("\n", 0, match.start()) + 1, match[1], match[2]
        )
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


def all_blocks(*languages):
    return [block for page in PAGES for block in blocks(page, *languages)]


RUN_ELSEWHERE = {
    **{
        ("docs/kinesis.md", start): (
            "tests/sources/test_kinesis_page.py::test_the_programs_on_the_page_run_as_they_stand"
        )
        for start in (
            "from onceforall import sources\n",
            "import onceforall as ofa\n",
            "from pyspark.sql import functions as F\n",
        )
    },
    **{
        ("docs/pravega.md", start): (
            "tests/sources/test_pravega_page.py::test_the_programs_on_the_page_run_as_they_stand"
        )
        for start in ("from onceforall import sources\n", "import onceforall as ofa\n")
    },
    (
        "docs/source-suite.md",
        "# test_line_source.py\n",
    ): "tests/testing/test_source_suite.py::test_the_program_on_the_page_passes_as_it_stands",
    (
        "docs/connect.md",
        "from pyspark.sql import SparkSession\n",
    ): "tests/connect/test_page.py::test_the_query_on_the_page_writes_each_record_once",
    # By the beginning of the block: the test that takes it from the page and runs it.
    (
        "docs/start.md",
        "import sys\n",
    ): "tests/examples/test_window_counts.py::test_each_window_is_counted_once_though_the_driver_is_killed_in_between",
    (
        "docs/start.md",
        "from pyspark.sql import functions as f\n",
    ): "tests/examples/test_three_sinks.py::test_the_sums_in_the_table_are_those_of_the_input",
    (
        "docs/own-sink.md",
        "# json_file_sink.py\n",
    ): "tests/sinks/test_own_sink.py::test_the_test_on_the_page_passes_as_it_stands",
    (
        "docs/own-sink.md",
        "# test_json_file_sink.py\n",
    ): "tests/sinks/test_own_sink.py::test_the_test_on_the_page_passes_as_it_stands",
    (
        "docs/own-sink.md",
        "# query.py\n",
    ): "tests/integration/test_own_sink.py::test_the_query_on_the_page_survives_a_crash_between_decision_and_commit",
}


def elsewhere(block):
    """The test of another file that runs a block, or None."""
    return next(
        (
            test
            for (page, start), test in RUN_ELSEWHERE.items()
            if page == block.page and block.code.startswith(start)
        ),
        None,
    )


class Places:
    """The real things behind the placeholders of the pages, the same ones for the same words.

    Args:
        folder: what a page writes as ``/checkpoints/…``, ``/lake/…`` and so on lies below it.
        servers: of the Kafka cluster; None: a page that names one fails.
        topic: makes a topic and returns its name.
        database: the URL of a PostgreSQL database; None: a page that names one fails.
    """

    def __init__(self, folder, servers=None, topic=None, database=None):
        self.folder, self.servers, self._make, self.database, self.topics = (
            folder,
            servers,
            topic,
            database,
            {},
        )

    def path(self, written):
        """The real place of a path of the pages."""
        return self.folder / written.removeprefix("/")

    def topic(self, name):
        """The real topic of a name."""
        if name not in self.topics:
            self.topics[name] = self._make(partitions=2)
        return self.topics[name]

    def real(self, code):
        """The block's code, with real things."""
        topics = re.compile(r'(topic=|KafkaObserver\("broker:9092", )"([\w-]+)"')
        code = topics.sub(lambda found: f'{found[1]}"{self.topic(found[2])}"', code)
        servers = re.compile(r"\bbroker\d*:\d+(,broker\d*:\d+)*")
        code = servers.sub(lambda _: self._known(self.servers), code)
        if "postgresql://ads@db/ads" in code:
            # A password is given once: in the URL, or as the block gives it.
            url = (
                re.sub(r":[^:@/]+@", "@", self._known(self.database))
                if "password=" in code
                else self._known(self.database)
            )
            code = code.replace("postgresql://ads@db/ads", url)
        return re.sub(
            r"(?<![\w.])/(checkpoints|lake|run/secrets|volume|etc)/", rf"{self.folder}/\1/", code
        )

    @staticmethod
    def _known(thing):
        assert thing is not None, "the page names a server that its test doesn't have"
        return thing
