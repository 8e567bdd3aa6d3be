"""Every step has a failpoint, and the catalogue has them all: read from the syntax trees, so
that a step without one can't be added."""

import ast
import re
from itertools import pairwise
from typing import get_args

import pytest

from onceforall.driver.coordinator import Coordinator
from onceforall.failpoints.catalogue import CATALOGUE, NEEDS, SINK_KINDS
from onceforall.protocol import decisions
from support import failpoint_calls

SOURCES = failpoint_calls.modules()
SINKS = {"kafka": "KafkaSink", "files": "FileSink", "postgres": "PostgresSink"}
CONTRACT = (
    "check",
    "begin_transaction",
    "invoke",
    "pre_commit",
    "discard",
    "confirm",
    "commit",
    "abort",
    "retire",
    "recover",
)
ON_DISK = ("commit_log/stores/local.py", "sinks/files/folders.py")
CHANGES = {"_sync", "_sync_folder", "sync_file", "sync_folder", "link", "unlink", "_make", "mkdir"}
ONE_OR_THE_OTHER = {"LocalStore._make"}  # changes one thing, in one of two ways
PREFIXES = {
    "kafka": ("kafka",),
    "file": ("files",),
    "postgres": tuple(k for k in SINK_KINDS if k.startswith("postgres")),
}


def differences(sources):
    """Return what only the source has, and what only the catalogue has."""
    return sorted(failpoint_calls.all_points(sources) ^ set(CATALOGUE))


def methods_without_a_failpoint(sources):
    """Return the methods of the contract that a sink implements without a failpoint."""
    found = []
    for package, name in SINKS.items():
        functions = failpoint_calls.functions(sources[f"sinks/{package}/sink.py"])
        found += [
            f"{name}.{m}"
            for m in CONTRACT
            if not failpoint_calls.points_in(functions[f"{name}.{m}"])
        ]
    return found


def changes_without_a_failpoint(sources):
    """Return where a function changes the disk, or syncs it, twice without a failpoint in
    between."""
    found = []
    for module in ON_DISK:
        for name, function in failpoint_calls.functions(sources[module]).items():
            if name in ONE_OR_THE_OTHER:
                continue
            changes = sorted(call.lineno for call in _calls(function) if _called(call) in CHANGES)
            points = sorted(call.lineno for call in _calls(function) if _called(call) == "hit")
            for one, two in pairwise(changes):
                if not any(one <= point <= two for point in points):
                    found.append(f"{module}:{name}:{one}-{two}")
    return found


def _calls(function):
    return [node for node in ast.walk(function) if isinstance(node, ast.Call)]


def _called(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


class TestTheSource:
    def test_the_catalogue_has_every_failpoint_and_no_other(self):
        assert len(CATALOGUE) > 200
        assert differences(SOURCES) == []

    def test_every_decision_has_an_executor_with_a_failpoint_before_and_behind_it(self):
        assert set(Coordinator._executors) == set(get_args(decisions.Decision))
        step = failpoint_calls.functions(SOURCES["driver/coordinator.py"])["Coordinator.step"]
        hits = [ast.unparse(call.args[0]) for call in _calls(step) if _called(call) == "hit"]
        assert hits == ["f'{name}.before'", "f'{name}.after'"]
        assert failpoint_calls.decision_points() <= set(CATALOGUE)

    def test_every_method_of_the_contract_has_a_failpoint_in_every_sink(self):
        assert methods_without_a_failpoint(SOURCES) == []

    def test_between_two_changes_on_a_disk_lies_a_failpoint(self):
        assert changes_without_a_failpoint(SOURCES) == []


class TestTheChecksThemselves:
    """Each of them fails when one failpoint is taken away."""

    def without(self, module, line):
        assert SOURCES[module].count(line) == 1, line
        return {**SOURCES, module: SOURCES[module].replace(line, "")}

    @pytest.mark.long
    def test_a_step_that_loses_its_failpoint_is_found(self):
        calls = [
            (module, call)
            for module, text in SOURCES.items()
            for call in re.findall(r'^ *failpoints\.hit\("[a-z_.]+"\)\n', text, re.MULTILINE)
            if sum(other.count(call.strip()) for other in SOURCES.values()) == 1
        ]
        assert len(calls) > 100
        points = {
            module: failpoint_calls.points_in(ast.parse(text)) for module, text in SOURCES.items()
        }
        for module, call in calls:
            left = failpoint_calls.points_in(
                ast.parse(SOURCES[module].replace(call, call.replace("failpoints.hit", "print")))
            )
            others = set().union(*(found for name, found in points.items() if name != module))
            assert set(CATALOGUE) - failpoint_calls.decision_points() - left - others, call

    @pytest.mark.long
    def test_a_method_without_a_failpoint_is_found(self):
        mutant = self.without("sinks/kafka/sink.py", '    @failpoints.around("kafka.retire")\n')
        assert methods_without_a_failpoint(mutant) == ["KafkaSink.retire"]
        assert differences(mutant) == ["kafka.retire.answered", "kafka.retire.asked"]

    @pytest.mark.parametrize("step", ["synced", "linked"])
    def test_a_change_without_a_failpoint_is_found(self, step):
        store = SOURCES["commit_log/stores/local.py"]
        (line,) = re.findall(
            rf'^ *failpoints\.hit\("store\.create\.{step}"\)\n', store, re.MULTILINE
        )
        assert changes_without_a_failpoint(self.without("commit_log/stores/local.py", line))


class TestTheCatalogue:
    @pytest.mark.parametrize("name", CATALOGUE)
    def test_it_says_for_each_where_it_is_and_what_it_needs(self, name):
        point = CATALOGUE[name]
        assert point.where in {"driver", "worker", "both"}
        assert point.first or point.recovery
        assert point.needs in NEEDS
        assert point.recovery_needs in NEEDS
        assert point.first or not point.needs
        assert point.recovery or not point.recovery_needs
        assert set(point.sinks) <= set(SINK_KINDS)

    @pytest.mark.parametrize("prefix", PREFIXES)
    def test_what_is_named_after_a_sink_is_reached_by_that_one(self, prefix):
        names = [name for name in CATALOGUE if name.startswith(f"{prefix}.")]
        assert names
        for name in names:
            assert CATALOGUE[name].sinks, name
            assert set(CATALOGUE[name].sinks) <= set(PREFIXES[prefix]), name

    def test_every_need_is_needed(self):
        assert {point.needs for point in CATALOGUE.values()} | {
            p.recovery_needs for p in CATALOGUE.values()
        } == set(NEEDS)
