"""``python -m benchmarks.footprint``: records which functions of the package run while batches
follow one another, in a small round of every measurement, and writes their names to
``functions.json`` beside this file; commit it.

Speed depends on these functions, so the digest of the published speed is made of them
(``evidence.digests.speed_digest``): of all that the workers call, and of what the driver calls from
a query's second batch on. A change of one of them voids the figures; what only a start, a repair or
a command runs doesn't. One that is called from now on is called by one that has changed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from benchmarks.footprint.recorder import FOLDER_VARIABLE
from benchmarks.settings import ROOT
from evidence.digests import FOOTPRINT, PACKAGE, functions_of

_SITE = Path(__file__).parent / "site"


def names_in(folder: Path) -> dict[str, list[str]]:
    """Return what processes have written there: the functions by module, without those that are
    parts of another one (lambdas, comprehensions).

    Raises:
        SystemExit: nothing was recorded of a driver, or nothing of a worker.
    """
    found: defaultdict[str, set[str]] = defaultdict(set)
    for line in _lines(folder.glob("*.txt")):
        module, _, name = line.partition(" ")
        if "<" not in name.rpartition(".")[2] and name != "<module>":
            found[module].add(name)
    for needed in ("driver/coordinator.py", "task/write_task.py"):
        if needed not in found:
            sys.exit(f"nothing of {needed} was recorded: nothing is written")
    return {module: sorted(names) for module, names in sorted(found.items())}


def only_functions(names: Mapping[str, Collection[str]]) -> dict[str, list[str]]:
    """Leave out the bodies of classes, which a worker runs when it imports their module."""
    found = {}
    for module, called in names.items():
        tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
        defined = {name for name, _ in functions_of(tree)}
        kept = sorted({name for name in called if name.split(".<locals>")[0] in defined})
        if kept:
            found[module] = kept
    return found


def main() -> int:
    """Record, and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="measurements")
    arguments = parser.parse_args()
    if not hasattr(main.__code__, "co_qualname"):
        sys.exit("only Python 3.11 and newer tell the qualified names of functions")
    with tempfile.TemporaryDirectory(prefix="onceforall-footprint-") as folder:
        functions = Path(folder, "functions")
        functions.mkdir()
        path = os.pathsep.join(filter(None, [str(_SITE), str(ROOT), os.environ.get("PYTHONPATH")]))
        command = [sys.executable, "-m", "benchmarks", "--quick", "--ours"]
        command += ["--folder", f"{folder}/results"]
        done = subprocess.run(
            [*command, *(["--only", *arguments.only] if arguments.only else [])],
            env={**os.environ, "PYTHONPATH": path, FOLDER_VARIABLE: str(functions)},
            check=False,
        )
        if done.returncode:
            print("a measurement failed: nothing is written", file=sys.stderr)
            return 1
        names = only_functions(names_in(functions))
    FOOTPRINT.write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(map(len, names.values()))} functions of {len(names)} modules: {FOOTPRINT}")
    return 0


def _lines(files: Iterable[Path]) -> Iterable[str]:
    for file in files:
        yield from file.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    sys.exit(main())
