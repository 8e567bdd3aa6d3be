"""A digest of what a result measures: the modules that run in it, found by their imports, and
its own harness. A change elsewhere voids nothing, nor does one of comments and docstrings.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "onceforall"

QUERY = (
    "onceforall.driver.doors",
    "onceforall.operate.detaching",
    "onceforall.sinks.files",
    "onceforall.sinks.files.reading.mending",
    "onceforall.sinks.kafka",
    "onceforall.sinks.postgres",
    "onceforall.worker_daemon",
)
"""Where the code of a query begins that writes to each kind of sink, and is detached or mended."""

PROTOCOL = ("onceforall.driver.coordinator", "onceforall.commit_log", "onceforall.sink")
"""What of it a simulated run has."""


SCALE = ("onceforall.sinks.kafka", "onceforall.commit_log.envelope")
"""What the driver does with many Kafka transactions."""

STORES = ("onceforall.driver.coordinator", "onceforall.commit_log", "onceforall.spark.stores")
"""What decides how many requests a batch sends to the store of its log."""


def modules_of(roots: Iterable[str], package: Path = PACKAGE) -> list[Path]:
    """Return the files of a package that these modules import, and what those import, wherever the
    statement stands; sorted.

    Args:
        roots: names of modules or packages; a package without more is its ``__init__``.
        package: the folder of ``onceforall``.

    Raises:
        FileNotFoundError: a root isn't there.
    """
    return _closure(
        (_there(name, package) for name in roots), lambda name: _file_of(name, package), package
    )


def run_by(files: Iterable[Path], package: Path = PACKAGE, root: Path = ROOT) -> list[Path]:
    """Return these files and everything of the project that they import, and what that imports;
    with the ``conftest.py`` beside and above a test. Sorted.

    What another program of a test imports isn't seen unless the test imports it, too; nor is the
    ``__init__`` of a package in which a file lies, unless something imports that.

    Args:
        files: modules of the package or of ``tests``, which may be a test.
        package: the folder of ``onceforall``.
        root: of the checkout.
    """
    tests = root / "tests"
    beside = [
        folder / "conftest.py"
        for file in files
        if file.is_relative_to(tests)
        for folder in [file.parent, *file.parents]
        if folder.is_relative_to(tests) and (folder / "conftest.py").is_file()
    ]

    return _closure([*files, *beside], lambda name: _file_of_all(name, package, root))


def digest_of(files: Iterable[Path], root: Path = ROOT) -> str:
    """Return a digest of the names and contents of files below a folder; of Python what runs."""
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes() if file.suffix != ".py" else _running(file).encode()
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + content + b"\0")
    return digest.hexdigest()[:16]


@cache
def code_of(text: str) -> str:
    """Return the text of a module without its comments, its docstrings and its empty lines.

    The text rather than its syntax tree: every Python gives the same, so that results of different
    ones can be of the same code.
    """
    lines = text.splitlines(keepends=True)
    for first, end in sorted(_unread(text), reverse=True):
        kept = lines[first[0] - 1][: first[1]] + lines[end[0] - 1][end[1] :]
        lines[first[0] - 1 : end[0]] = [kept]
    return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())


def _running(file: Path) -> str:
    return code_of(file.read_text(encoding="utf-8"))


def query_digest() -> str:
    """Return the digest of what a query of the campaign and of the benchmarks runs."""
    return digest_of(modules_of(QUERY))


FOOTPRINT = ROOT / "benchmarks" / "footprint" / "functions.json"
"""The functions that run while batches follow one another, by module; see that folder."""


def speed_digest() -> str:
    """Return the digest of what a batch runs, once the query has started: the functions of
    `FOOTPRINT`, the other code of their modules, and that of the modules which these import.
    """
    functions: dict[str, list[str]] = json.loads(FOOTPRINT.read_text(encoding="utf-8"))
    names = {PACKAGE / module: set(found) for module, found in functions.items()}
    # A module that is gone has no code, and its name counts.
    there = [file for file in names if file.is_file()]
    imported = {
        found
        for file in there
        for name in _imports_of(file)
        if (found := _file_of(name, PACKAGE)) is not None
    }
    digest = hashlib.sha256("\0".join(sorted(functions)).encode())
    for file in sorted({*there, *imported}):
        code = without_others(file.read_text(encoding="utf-8"), names.get(file, set()))
        digest.update(f"{file.relative_to(ROOT).as_posix()}\0{code}\0".encode())
    return digest.hexdigest()[:16]


def without_others(text: str, functions: Collection[str]) -> str:
    """Return the code of a module without all functions and methods but these, without comments and
    docstrings. A function within one that stays, stays.

    Args:
        text: of the module.
        functions: qualified names (``Class.method``).
    """
    lines = text.splitlines(keepends=True)
    gone = [
        (min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.end_lineno)
        for name, node in functions_of(ast.parse(text))
        if name not in functions
    ]
    for first, last in sorted(gone, reverse=True):
        lines[first - 1 : last] = []
    return code_of("".join(lines))


def functions_of(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return the functions and methods of a syntax tree with their qualified names, without those
    within others.

    Args:
        node: the tree.
        prefix: of the names.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from functions_of(child, f"{prefix}{child.name}.")
        else:
            yield from functions_of(child, prefix)


def stores_digest() -> str:
    """Return the digest of what sends requests to the store of a commit log, and of what counts
    them.
    """
    harness = sorted((ROOT / "benchmarks" / "stores").glob("*.py"))
    return digest_of([*modules_of(STORES), *harness])


def profile_digest() -> str:
    """Return the digest of what a query runs, and of what profiles it."""
    return digest_of([*modules_of(QUERY), ROOT / "benchmarks" / "steps" / "profile_path.py"])


def scale_digest() -> str:
    """Return the digest of what the measurement of many transactions runs, itself included."""
    harness = sorted((ROOT / "benchmarks" / "scale").glob("*.py"))
    return digest_of([*modules_of(SCALE), *harness])


def protocol_digest() -> str:
    """Return the digest of what a simulated schedule runs, with the simulator itself but for its
    other explorer, and for what shows results.
    """
    simulator = [
        file
        for file in sorted((ROOT / "simulator").glob("*.py"))
        if not file.name.startswith(("exhaustive", "page"))
    ]
    return digest_of([*modules_of(PROTOCOL), *simulator])


VERSIONS = ("spark", "driver", "operators", "sources", "task")
"""The folders whose code meets PySpark: another version of it may need another line there."""


def versions_digest() -> str:
    """Return the digest of what meets PySpark, and of what runs the tests on its versions; those
    tests don't count, for a new one says nothing against what passed.
    """
    rooms = [file for name in VERSIONS for file in sorted((PACKAGE / name).rglob("*.py"))]
    return digest_of([*rooms, PACKAGE / "worker_daemon.py", ROOT / "tests" / "compat.sh"])


def _closure(
    roots: Iterable[Path], file_of: Callable[[str], Path | None], package: Path | None = None
) -> list[Path]:
    """Return files with what they import; with a package, also with its packages in which they
    lie, where these have code, but for its own ``__init__``, which only hands names on.
    """
    found: dict[Path, None] = {}
    waiting = [*roots]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        waiting += [file for name in _imports_of(path) if (file := file_of(name)) is not None]
        if package is not None:
            waiting += _packages_of(path, package)
    return sorted(found)


def _packages_of(file: Path, package: Path) -> Iterator[Path]:
    """The ``__init__.py`` with code of each package in which a module lies."""
    for folder in file.parents:
        init = folder / "__init__.py"
        if folder == package or not init.is_file():
            return
        if _running(init).strip():
            yield init


def _there(name: str, package: Path) -> Path:
    path = _file_of(name, package)
    if path is None:
        raise FileNotFoundError(f"there is no module {name} in {package}")
    return path


@cache
def _file_of_all(name: str, package: Path, root: Path) -> Path | None:
    """The file of a module of the package, of the tests or of another tool of the project."""
    if name.partition(".")[0] == package.name:
        return _file_of(name, package)
    bases = [folder.joinpath(*name.split(".")) for folder in (root / "tests", root)]
    files = [file for base in bases for file in (base.with_suffix(".py"), base / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def _file_of(name: str, package: Path) -> Path | None:
    parts = name.split(".")
    if parts[0] != package.name:
        return None
    base = package.joinpath(*parts[1:])
    return next(
        (
            file
            for file in (base.with_suffix(".py"), base / "__init__.py")
            if file.is_file() and file != package / "__init__.py"
        ),
        None,
    )


def _unread(text: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where comments stand, and strings that are whole statements."""
    before_a_statement = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    begins = True
    string: tokenize.TokenInfo | None = None
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start, token.end
            continue
        if token.type == tokenize.NEWLINE and string is not None:
            yield string.start, string.end
        string = token if begins and token.type == tokenize.STRING else None
        begins = token.type in before_a_statement or (begins and token.type == tokenize.NL)


def _imports_of(path: Path) -> tuple[str, ...]:
    return _imported(path.read_text(encoding="utf-8"))


@cache
def _imported(text: str) -> tuple[str, ...]:
    """The names that a file imports; of ``from a import b`` both a and a.b, for b may be a
    module.
    """
    names: list[str] = []
    for node in _statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            names += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(names)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Everything but what only a type checker reads."""
    if (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    ):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _statements(child)
