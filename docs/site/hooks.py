"""What the documentation's site has beside the pages in docs/: pages of the repository's root,
the API's reference, and links that fit.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
FROM_THE_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/ad_events/README.md": "examples/ad_events.md",
    "examples/cluster/README.md": "examples/cluster.md",
    "examples/kinesis_chain/README.md": "examples/kinesis_chain.md",
    "examples/pravega_chain/README.md": "examples/pravega_chain.md",
    "examples/window_counts/README.md": "examples/window_counts.md",
}
"""Pages outside of docs/, and what they are called on the site."""

REFERENCE = {
    "reference/doors.md": (
        "Start a query",
        [
            "onceforall.driver.doors.write_stream",
            "onceforall.driver.doors.exactly_once",
            "onceforall.driver.transaction.BatchTransaction",
            "onceforall.driver.failures.error_of",
            "onceforall.driver.exit_codes.exit_code",
            "onceforall.driver.exit_codes.ExitCode",
            "onceforall.driver.progress.progress_of",
            "onceforall.driver.stopping.stop_on_sigterm",
            "onceforall.operate.detaching.detach",
            "onceforall.operate.cluster.check_cluster",
        ],
    ),
    "reference/sinks.md": (
        "Sinks and readers",
        [
            "onceforall.sinks.kafka.sink.KafkaSink",
            "onceforall.sinks.files.sink.FileSink",
            "onceforall.sinks.postgres.sink.PostgresSink",
            "onceforall.sinks.kinesis.sink.KinesisSink",
            "onceforall.sinks.pravega.sink.PravegaSink",
            "onceforall.sinks.files.reading.committed_files.read_files",
            "onceforall.sinks.files.reading.committed_files.CommittedFiles",
        ],
    ),
    "reference/own-sinks.md": (
        "The contract of a sink",
        ["onceforall.sink", "onceforall.testing.conformance"],
    ),
    "reference/sources.md": ("Sources", ["onceforall.sources", "onceforall.testing.sources"]),
    "reference/operators.md": ("Operators", ["onceforall.operators"]),
    "reference/errors.md": ("Errors", ["onceforall.errors"]),
}

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that don't lie in docs/."""
    for source, name in FROM_THE_ROOT.items():
        files.append(
            File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8"))
        )
    for name, (title, objects) in REFERENCE.items():
        text = f"# {title}\n\n" + "\n".join(f"::: {each}\n{_options(each)}" for each in objects)
        files.append(File.generated(config, name, content=text))
    return files


def _options(name: str) -> str:
    # What a user of a sink gives is its arguments; its methods are the contract's, which has a page
    # of its own.
    return "    options:\n      members: false\n" if name.endswith("Sink") else ""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001  mkdocs gives all by name
    """Make links fit the site: those to files that aren't on it become the file's name in the
    repository.
    """
    here = page.file.src_uri
    there = next((source for source, name in FROM_THE_ROOT.items() if name == here), f"docs/{here}")

    def fitting(match: re.Match[str]) -> str:
        image, text, target, anchor = match[1], match[2], match[3], match[4] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(there), target))
        name = FROM_THE_ROOT.get(path) or (
            path.removeprefix("docs/") if path.startswith("docs/") else None
        )
        if name is not None and files.get_file_from_path(name) is not None:
            return f"{image}[{text}]({posixpath.relpath(name, posixpath.dirname(here) or '.')}{anchor})"  # noqa: E501
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{there} links to {target}, which doesn't exist")
        return text if text.strip("`").endswith(posixpath.basename(path)) else f"{text} (`{path}`)"

    # Not in code: what is shown there is to be copied.
    parts = re.split(r"(^```.*?^```|`[^`\n]*`(?!\]))", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if index % 2 else LINK.sub(fitting, part) for index, part in enumerate(parts)
    )
