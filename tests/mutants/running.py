"""Runs checks on a copy of the package, with or without a bug in it.

The copy lies in a temporary folder that stands first in ``PYTHONPATH``, so that it is imported
instead of the installed package, by pytest
and by every process that its tests start: drivers, Spark's Python workers, the actors of the
conformance suite. A ``sitecustomize`` beside it
writes down from where each of those processes imports the package; a check in which another copy
was imported proves nothing, and is reported as broken.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mutants.catalogue import ROOT, SOURCE, Mutant
from mutants.forked_pytest import forker

CAUGHT, SURVIVED, BROKEN = "caught", "survived", "broken"

_NO_VERDICT = {"ImportError", "SyntaxError", "NameError", "FixtureLookupError", "collection"}
"""A check that fails by one of these says that the mutant is no program, or the check none; not
that the bug was noticed."""

_TIMED_OUT = "Failed: Timeout"
"""A check that hangs is none: on a busy machine it would notice anything."""

_NO_VERDICT_IN_THE_COPY = {"AttributeError", "TypeError"}
"""Likewise, where it is the mutant that raised it and not the test that got a strange answer."""

_JUDGING = {"AssertionError", "OnceForAllError", "PySparkException"}
"""By these a test can notice a bug while it prepares."""

_MACHINES = {
    errno.EADDRINUSE,
    errno.EADDRNOTAVAIL,
    errno.EAGAIN,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOSPC,
}
"""A machine without room, memory or ports fails any check; a test that says so itself, by ``raise``,
is meant."""

_RAN_OUT = "AssertionError: not within "
"""What ``support.waiting.until`` says when a state never came: by a bug, or on a machine that was
busy just then. Such a check is tried twice."""

_GRACE_S = 60
_BASELINE_LIMIT_S = 1800
_WATCH = '''\
"""Writes down from where a process imports the package."""
import sys
from importlib.machinery import PathFinder
from pathlib import Path


class _Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "onceforall":
            found = PathFinder.find_spec(name)
            words = [word for word in sys.orig_argv[1:] if not word.startswith("-")]
            program = "-c" if "-c" in sys.orig_argv[:4] else Path(words[0]).name if words else "-"
            with Path(__file__).with_name("imports.log").open("a") as log:
                log.write(f"{found and found.origin}\\t{program}\\n")


sys.meta_path.insert(0, _Watch)
'''


@dataclass(frozen=True)
class Verdict:
    """What a mutant, or a run of checks, came to.

    Attributes:
        status: ``caught``, ``survived`` or ``broken``.
        caught_by: the node id of the test that failed; of a mutant all of whose checks must fail,
            the first.
        words: by what it failed, or what is broken.
        seconds: how long it took.
        importers: which programs imported the copy.
        also: the other tests that failed, where all checks must.
    """

    status: str
    caught_by: str | None
    words: str
    seconds: float
    importers: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


class Workshop:
    """A folder with a copy of the package as it was when the run began, from which mutated
    copies are made."""

    def __init__(
        self, folder: Path, source: Path = SOURCE, environment: Mapping[str, str] | None = None
    ) -> None:
        """Copy the package; what is edited meanwhile changes nothing.

        Args:
            folder: an empty one.
            source: the package's folder.
            environment: variables for pytest, and so for all that it starts; those of
                ``servers.started``.
        """
        self._folder = folder
        self._environment = dict(environment or {})
        self.package = folder / "original" / "onceforall"
        # With what was compiled there before: a copy keeps the times by which that is known to be
        # current.
        shutil.copytree(source, self.package, ignore=shutil.ignore_patterns("*.pyc.*"))
        (self.package.parent / "sitecustomize.py").write_text(_WATCH, encoding="utf-8")

    def mutated(self, mutant: Mutant) -> Path:
        """Return the folder of a copy with the bug in it.

        Raises:
            ValueError: it can't be planted.
        """
        text = mutant.applied(self.package)
        copy = self._folder / mutant.id
        shutil.copytree(self.package.parent, copy)
        changed = copy / "onceforall" / mutant.file
        changed.write_text(text, encoding="utf-8")
        for compiled in (changed.parent / "__pycache__").glob(f"{changed.stem}.*.pyc"):
            compiled.unlink()
        return copy

    def judge(self, mutant: Mutant) -> Verdict:
        """Plant a bug and try its checks: until one fails, or all of them where each must."""
        started = time.monotonic()
        try:
            copy = self.mutated(mutant)
        except ValueError as error:
            return Verdict(BROKEN, None, str(error), 0.0)
        try:
            verdict = (self._run_all if mutant.every else self._run_until_one_fails)(copy, mutant)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        return replace(verdict, seconds=time.monotonic() - started)

    def failing_without_a_bug(self, nodes: Sequence[str], timeout_s: int) -> dict[str, str]:
        """Run tests on the unchanged copy, and return those that fail there, or did not run, with
        the reason.

        Args:
            nodes: node ids.
            timeout_s: of one test.
        """
        copy = Path(tempfile.mkdtemp(prefix="unchanged-", dir=self._folder))
        shutil.copytree(self.package.parent, copy, dirs_exist_ok=True)
        reported = _pytest(
            copy,
            list(nodes),
            self._environment,
            timeout_s,
            max(_BASELINE_LIMIT_S, timeout_s * len(nodes)),
            stop=False,
        )
        shutil.rmtree(copy, ignore_errors=True)
        wrong = {
            each["node"]: f"{each['kinds'][0]}: {each['text']}"
            for each in reported.entries
            if each["failed"]
        }
        passed = {each["node"] for each in reported.entries if not each["failed"]}
        return {
            **{node: reported.trouble or "it did not run" for node in nodes if node not in passed},
            **wrong,
        }

    def _run_until_one_fails(self, copy: Path, mutant: Mutant) -> Verdict:
        verdict = Verdict(BROKEN, None, "it has no checks", 0.0)
        for check in mutant.checks:
            verdict = self._run(copy, check, mutant.timeout_s)
            if verdict.status != SURVIVED:
                break
        return verdict

    def _run_all(self, copy: Path, mutant: Mutant) -> Verdict:
        """Run all checks at once: what such tests share takes long to start."""
        limit_s = mutant.timeout_s * len(mutant.checks)
        reported = _pytest(
            copy, list(mutant.checks), self._environment, mutant.timeout_s, limit_s, stop=False
        )
        return _of_every(reported, mutant.checks)

    def _run(self, copy: Path, check: str, timeout_s: int) -> Verdict:
        started = time.monotonic()
        arguments = shlex.split(check)
        reported = _pytest(copy, arguments, self._environment, timeout_s, 3 * timeout_s, stop=True)
        status, node, words = _verdict(reported, arguments)
        if status == CAUGHT and words.startswith(_RAN_OUT):
            reported = _pytest(
                copy, arguments, self._environment, timeout_s, 3 * timeout_s, stop=True
            )
            again, node, more = _verdict(reported, arguments)
            if again != CAUGHT:
                status, node, words = BROKEN, None, f"{words}; a second time: {more}"
        return Verdict(status, node, words, time.monotonic() - started, reported.importers)


@dataclass(frozen=True)
class _Reported:
    code: int | None
    entries: tuple[dict[str, Any], ...]
    importers: tuple[str, ...]
    trouble: str | None


def _pytest(
    copy: Path,
    arguments: list[str],
    variables: Mapping[str, str],
    timeout_s: int,
    limit_s: int,
    *,
    stop: bool,
) -> _Reported:
    report, output = copy / "report.jsonl", copy / "output.txt"
    for stale in (report, copy / "imports.log"):
        stale.unlink(missing_ok=True)
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": os.pathsep.join([str(copy), str(ROOT / "tests")]),
        "MUTANT_REPORT": str(report),
        # Of a mutant's failing example nobody else is to hear.
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "hypothesis"),
    }
    command = ["-q", "--tb=short", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT)]
    command += ["-p", "mutants.recording", "-p", "mutants.servers", "-p", "no:cacheprovider"]
    command += [f"--timeout={timeout_s}", "--hypothesis-seed=0"]
    command += [*(["-x"] if stop else []), *arguments]
    code = forker().start(command, ROOT, environment, output).wait(limit_s + _GRACE_S)
    entries = (
        [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    )
    origins, importers = _imports(copy)
    trouble = None
    if code is None:
        trouble = f"pytest hung for {limit_s + _GRACE_S} s"
    elif code not in {0, 1}:
        trouble = f"pytest ended with {code}: {_last_line(output)}"
    elif code == 1 and not any(entry["failed"] for entry in entries):
        # As after an error of pytest's own: what would have come is unknown.
        trouble = f"pytest ended with 1 though no test failed: {_last_line(output)}"
    elif origins != {str(copy / "onceforall" / "__init__.py")}:
        trouble = f"the package was imported from {sorted(origins)}"
    return _Reported(code, tuple(entries), importers, trouble)


def _imports(copy: Path) -> tuple[set[str], tuple[str, ...]]:
    log = copy / "imports.log"
    pairs = [line.partition("\t") for line in log.read_text().splitlines()] if log.exists() else []
    return {origin for origin, _, _ in pairs}, tuple(sorted({program for _, _, program in pairs}))


def _last_line(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    # Where a module can't be imported, the last line only counts.
    errors = [line for line in lines if line.startswith("E ")]
    return (errors or lines)[-1][:300] if lines else "no output"


def _of_every(reported: _Reported, checks: Sequence[str]) -> Verdict:
    """Return what the checks came to, each of which must fail: those that don't are named."""
    found = {
        check: _verdict(replace(reported, entries=_entries_of(reported, check)), [check])
        for check in checks
    }
    for status in (BROKEN, SURVIVED):
        others = [f"{check}: {words}" for check, (one, _, words) in found.items() if one == status]
        if others:
            return Verdict(status, None, "; ".join(others), 0.0)
    nodes = [node for _, node, _ in found.values() if node is not None]
    words = found[checks[0]][2]
    return Verdict(CAUGHT, nodes[0], words, 0.0, reported.importers, tuple(nodes[1:]))


def _entries_of(reported: _Reported, check: str) -> tuple[dict[str, Any], ...]:
    """Return what was reported of a check that is a node id, with or without parameters."""
    return tuple(
        entry
        for entry in reported.entries
        if entry["node"] == check or entry["node"].startswith((f"{check}[", f"{check}::"))
    )


def _verdict(reported: _Reported, arguments: list[str]) -> tuple[str, str | None, str]:
    failed = [entry for entry in reported.entries if entry["failed"]]
    # A copy whose check could not be collected has no first failure of a test, so trouble comes
    # first.
    if reported.trouble is not None:
        return BROKEN, None, reported.trouble
    if not reported.entries:
        return BROKEN, None, f"no test was run by {shlex.join(arguments)}"
    if not failed:
        return SURVIVED, None, f"{len(reported.entries)} tests passed"
    first = failed[0]
    words = f"{first['kinds'][0]}: {first['text']}"
    no_verdict = _NO_VERDICT | (_NO_VERDICT_IN_THE_COPY if _is_copys(first) else set())
    unfit = no_verdict.intersection(first["kinds"])
    if _is_of_the_environment(first):
        return BROKEN, None, f"{first['node']} by what it ran on: {words}"
    return (BROKEN if unfit or words.startswith(_TIMED_OUT) else CAUGHT), first["node"], words


def _is_of_the_environment(entry: Mapping[str, Any]) -> bool:
    """Return whether a test failed by what it ran on: a server that did not start, or a machine
    that had no more to give; where it only prepared, by anything but an assertion, the changed
    code, an error of onceforall's, or what Spark says of a query."""
    kinds = set(entry["kinds"])
    if "EmbeddedServerError" in kinds:
        return True
    is_meant = entry["by"].startswith("raise")
    if not is_meant and ("MemoryError" in kinds or entry.get("error_number") in _MACHINES):
        return True
    is_judged = _JUDGING & kinds or (_is_copys(entry) and "/embedded/" not in entry["where"])
    return entry["phase"] == "setup" and not is_judged


def _is_copys(entry: Mapping[str, Any]) -> bool:
    return "/onceforall/" in entry["where"] and not entry["where"].startswith(str(ROOT))
