"""One broker and one PostgreSQL server for a whole run of the mutants: most of a check's time would
go into starting its own.

They are those of the fixtures ``broker`` and ``postgres`` of tests/conftest.py, which a test may
not kill or freeze; the topics and databases of each test are its own. The runner starts them, by
the package as it is installed, and tells pytest by two environment variables.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mutants.catalogue import ROOT, Mutant

KAFKA, POSTGRES = "MUTANT_KAFKA", "MUTANT_POSTGRES"

_FIXTURES = {"broker": KAFKA, "postgres": POSTGRES}


@contextmanager
def started(mutants: Iterable[Mutant]) -> Iterator[dict[str, str]]:
    """Start the servers that the checks of these mutants need, and yield what tells pytest where
    they are."""
    files = {
        ROOT / check.split("::")[0].split(" ")[0] for mutant in mutants for check in mutant.checks
    }
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    environment: dict[str, str] = {}
    with ExitStack() as stack:
        if any("mark.kafka" in text for text in texts):
            from onceforall.embedded import EmbeddedKafka

            environment[KAFKA] = json.dumps(stack.enter_context(EmbeddedKafka()).port)
        if any("mark.postgres" in text for text in texts):
            from onceforall.embedded import EmbeddedPostgres

            server = stack.enter_context(
                EmbeddedPostgres(settings={"max_prepared_transactions": 40})
            )
            environment[POSTGRES] = json.dumps([server.port, server.password, str(server.data_dir)])
        yield environment


def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> object | None:
    """Give the running server to a fixture of tests/conftest.py that would start one (a hook of
    pytest's)."""
    told = os.environ.get(_FIXTURES.get(fixturedef.argname, ""))
    if told is None or fixturedef.scope != "session" or fixturedef.baseid != "tests":
        return None
    server = (
        _kafka(json.loads(told)) if fixturedef.argname == "broker" else _postgres(*json.loads(told))
    )
    fixturedef.cached_result = (server, None, None)
    return server


def _kafka(port: int) -> object:
    from onceforall.embedded import EmbeddedKafka

    class Running(EmbeddedKafka):
        def _running_process(self) -> Any:
            return None

    return Running(port=port)


def _postgres(port: int, password: str, data_dir: str) -> object:
    from onceforall.embedded import EmbeddedPostgres

    folder = Path(data_dir)

    class Running(EmbeddedPostgres):
        data_dir = folder

    server = Running(port=port)
    server._password = password
    return server
