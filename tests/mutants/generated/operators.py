"""What can be done to a module: every bug that a fixed list of operators makes of it, nobody having
chosen which.

The operators are those that published studies of mutation testing found to stand for real bugs
(statement deletion, boundaries, negation, see Just et al., "Are mutants a valid substitute for real
faults in software testing?", FSE 2014), and three of our own trade: lines in another order, an
exception swallowed, a lock left out.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

DROPPED = "statement dropped"
SWAPPED = "lines swapped"
BOUNDARY = "boundary moved"
NEGATED = "condition negated"
SWALLOWED = "exception swallowed"
OTHER_VARIABLE = "another variable of the type"
UNLOCKED = "lock left out"
JOINED = "and for or"
OTHER_END = "min for max, any for all"
OFF_BY_ONE = "off by one"

OPERATORS = (
    DROPPED,
    SWAPPED,
    BOUNDARY,
    NEGATED,
    SWALLOWED,
    OTHER_VARIABLE,
    UNLOCKED,
    JOINED,
    OTHER_END,
    OFF_BY_ONE,
)

_BOUNDARIES = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_OPPOSITES = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_ENDS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_PURE = "protocol/"
"""Where no call has an effect, and two values may be asked for in any order."""

_TELLS_ONLY = {
    "log": {"debug", "info", "warning", "error", "exception", "log", "warn"},
    "failpoints": {"hit"},
}
"""What decides nothing, by a word in the name of what has these methods: a logger's words, and a
failpoint's, which tests alone arm."""


@dataclass(frozen=True)
class Generated:
    """A bug that an operator made.

    Attributes:
        id: of a place in the text and what is done there; it survives changes elsewhere.
        file: below src/onceforall.
        line: of its beginning, from 1.
        lines: all lines that it touches.
        operator: one of ``OPERATORS``.
        within: the function or method.
        old: what stands there.
        new: what is put there.
        start: where it begins in the file's UTF-8 text, in bytes.
        checks: the tests that are tried, in their order: each an argument list of pytest.
        timeout_s: of one test.
    """

    id: str
    file: str
    line: int
    lines: tuple[int, ...]
    operator: str
    within: str
    old: str
    new: str
    start: int
    checks: tuple[str, ...] = ()
    timeout_s: int = 60

    every = False  # One check that fails is enough.

    def applied(self, source: Path) -> str:
        """Return the text of its file with the bug in it.

        Raises:
            ValueError: something else stands there.
        """
        text = (source / self.file).read_bytes()
        old = self.old.encode()
        if text[self.start : self.start + len(old)] != old:
            raise ValueError(f"{self.id}: {self.file} was changed meanwhile")
        return (text[: self.start] + self.new.encode() + text[self.start + len(old) :]).decode()


def bugs_of(source: Path, file: str) -> list[Generated]:
    """Return every bug that can be made of a module, in the order of its lines.

    Args:
        source: the folder of the package.
        file: below it.
    """
    text = (source / file).read_text(encoding="utf-8")
    tree = ast.dump(ast.parse(text))
    found = []
    count: Counter[tuple[str, str, str, str]] = Counter()
    for bug in sorted(
        _Module(text, pure=file.startswith(_PURE)).bugs(),
        key=lambda bug: (bug.start, bug.operator, bug.new),
    ):
        place = (bug.within, bug.operator, bug.old, bug.new)
        count[place] += 1
        words = "\0".join([file, *place, str(count[place])])
        mutated = (
            text.encode()[: bug.start] + bug.new.encode() + text.encode()[bug.start + len(bug.old.encode()) :]
        )  # fmt: skip
        if not _is_another_program(tree, mutated.decode()):
            continue
        line = text.encode()[: bug.start].count(b"\n") + 1
        found.append(
            Generated(
                hashlib.sha256(words.encode()).hexdigest()[:12],
                file,
                line,
                tuple(range(line, line + bug.old.count("\n") + 1)),
                bug.operator,
                bug.within,
                bug.old,
                bug.new,
                bug.start,
            )
        )
    return found


def _is_another_program(tree: str, mutated: str) -> bool:
    try:
        return tree != ast.dump(ast.parse(mutated))
    except SyntaxError:
        return False


@dataclass(frozen=True)
class _Bug:
    operator: str
    within: str
    old: str
    new: str
    start: int


class _Module:
    def __init__(self, text: str, *, pure: bool) -> None:
        self._pure = pure
        self._bytes = text.encode()
        self._lines = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._tree = ast.parse(text)

    def bugs(self) -> Iterator[_Bug]:
        """Walk through all functions; what runs at import is data, and is left alone."""
        yield from self._in_body(self._tree, "")

    def _in_body(self, node: ast.AST, name: str) -> Iterator[_Bug]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from self._in_function(child, f"{name}{child.name}")
                yield from self._in_body(child, f"{name}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                yield from self._in_body(child, f"{name}{child.name}.")
            elif not isinstance(child, ast.expr):
                yield from self._in_body(child, name)

    def _in_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Iterator[_Bug]:  # fmt: skip
        types = _types_of_parameters(function)
        for statement in function.body:
            nodes = list(_without_functions(statement))
            tests = {id(test) for node in nodes for test in _tests_of(node)}
            for node in nodes:
                for start, end, new, operator in self._of_node(node, types, id(node) in tests):
                    yield self._bug(name, operator, start, end, new)
        for body in _bodies(function):
            for start, end, new, operator in self._of_body(body):
                yield self._bug(name, operator, start, end, new)

    def _bug(self, within: str, operator: str, start: int, end: int, new: str) -> _Bug:
        return _Bug(operator, within, self._bytes[start:end].decode(), new, start)

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.stmt | ast.expr) -> str:
        start, end = self._span(node)
        return self._bytes[start:end].decode()

    def _of_node(
        self, node: ast.AST, types: dict[str, str], is_test: bool
    ) -> Iterator[tuple[int, int, str, str]]:
        for test in _tests_of(node):
            yield *self._span(test), f"not ({self._text(test)})", NEGATED
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = self._text(node.left), self._text(node.comparators[0])
            if (other := _BOUNDARIES.get(type(node.ops[0]))) is not None:
                yield *self._span(node), f"({left} {other} {right})", BOUNDARY
            elif not is_test and (other := _OPPOSITES.get(type(node.ops[0]))) is not None:
                yield *self._span(node), f"({left} {other} {right})", NEGATED
        elif isinstance(node, ast.BoolOp):
            word = " or " if isinstance(node.op, ast.And) else " and "
            parts = [f"({self._text(value)})" for value in node.values]
            yield *self._span(node), f"({word.join(parts)})", JOINED
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in _ENDS:
                yield *self._span(node.func), _ENDS[node.func.id], OTHER_END
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            if isinstance(node.right, ast.Constant) and node.right.value == 1:
                yield *self._span(node), f"({self._text(node.left)})", OFF_BY_ONE
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in types:
            for other in sorted(types):
                if other != node.id and types[other] == types[node.id]:
                    yield *self._span(node), other, OTHER_VARIABLE
        elif isinstance(node, ast.With) and _is_lock(node.items):
            yield self._span(node)[0], self._span_of(node.items), "if True", UNLOCKED
        elif isinstance(node, ast.Try):
            for handler in node.handlers:
                if not _does_nothing(handler.body):
                    yield (
                        self._span(handler.body[0])[0],
                        self._span(handler.body[-1])[1],
                        "pass",
                        SWALLOWED,
                    )

    def _span_of(self, items: Sequence[ast.withitem]) -> int:
        last = items[-1]
        return self._span(last.optional_vars or last.context_expr)[1]

    def _of_body(self, body: list[ast.stmt]) -> Iterator[tuple[int, int, str, str]]:
        for statement in body:
            if _can_be_dropped(statement):
                yield *self._span(statement), "pass", DROPPED
        for one, other in pairwise(body):
            if _can_be_swapped(one, other) and not (
                self._pure and _binds_names(one) and _binds_names(other)
            ):
                start, end = self._span(one)[0], self._span(other)[1]
                between = self._bytes[self._span(one)[1] : self._span(other)[0]].decode()
                yield start, end, self._text(other) + between + self._text(one), SWAPPED


def _types_of_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    arguments = [
        *function.args.posonlyargs,
        *function.args.args,
        *function.args.kwonlyargs,
    ]
    return {each.arg: ast.dump(each.annotation) for each in arguments if each.annotation}


def _without_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            yield from _without_functions(child)


def _tests_of(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _bodies(function: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in _without_functions(function):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                yield body


def _is_lock(items: Sequence[ast.withitem]) -> bool:
    words = ("lock", "mutex", "condition", "exclusive")
    return len(items) == 1 and any(
        word in ast.unparse(items[0].context_expr).lower() for word in words
    )


def _does_nothing(body: Sequence[ast.stmt]) -> bool:
    return all(isinstance(statement, ast.Pass) for statement in body)


def _can_be_dropped(statement: ast.stmt) -> bool:
    """Calls, raises, and what is put into an attribute or a container; a name that is never bound
    is no bug that anybody would ship."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call | ast.Await) and not _tells_only(
            statement.value
        )
    if isinstance(statement, ast.Assign):
        return not any(isinstance(target, ast.Name | ast.Tuple) for target in statement.targets)
    return isinstance(statement, ast.AugAssign | ast.Raise | ast.Delete | ast.Continue | ast.Break)


def _tells_only(value: ast.expr) -> bool:
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and isinstance((name := value.func.value), ast.Name)
        and any(
            word in name.id.lower() and value.func.attr in methods
            for word, methods in _TELLS_ONLY.items()
        )
    )


def _can_be_swapped(one: ast.stmt, other: ast.stmt) -> bool:
    """Both do something, and the second one needs no name that the first one binds."""
    if not all(isinstance(each, ast.Expr | ast.Assign | ast.AugAssign) for each in (one, other)):
        return False
    if not all(any(isinstance(node, ast.Call) for node in ast.walk(each)) for each in (one, other)):
        return False
    if any(isinstance(each, ast.Expr) and _tells_only(each.value) for each in (one, other)):
        return False
    return not (_bound(one) & _used(other)) and not (_bound(other) & _used(one))


def _binds_names(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and all(
        isinstance(target, ast.Name | ast.Tuple) for target in statement.targets
    )


def _bound(statement: ast.stmt) -> set[str]:
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _used(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
