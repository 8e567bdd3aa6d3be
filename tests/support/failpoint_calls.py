"""Which failpoints the production code has, read from its syntax trees."""

import ast
from pathlib import Path

import onceforall
from onceforall.driver.coordinator import Coordinator
from onceforall.failpoints.points import ANSWERED, ASKED

SOURCE = Path(onceforall.__file__).parent


def modules():
    """Return the production modules by their paths relative to the package."""
    return {
        path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(SOURCE.rglob("*.py"))
    }


def decision_points():
    """Return the failpoints before and after each executor of a decision; their names are made
    from the table of executors."""
    names = [name for _, name in Coordinator._executors.values()]
    # The executor of StopRun always raises, so nothing comes after it.
    return {f"{name}.{when}" for name in names for when in ("before", "after")} - {"stop.after"}


def points_in(node):
    """Return the literal names of the failpoints in a syntax tree, those of ``around`` with both
    endings."""
    found = set()
    for call in ast.walk(node):
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Attribute)
            or not call.args
        ):
            continue
        if not isinstance(call.func.value, ast.Name) or call.func.value.id != "failpoints":
            continue
        if isinstance(call.args[0], ast.Constant):
            name = call.args[0].value
            endings = {"hit": ("",), "around": (ASKED, ANSWERED)}.get(call.func.attr, ())
            found |= {name + ending for ending in endings}
    return found


def all_points(sources):
    """Return every failpoint of the modules."""
    found = set(decision_points())
    for text in sources.values():
        found |= points_in(ast.parse(text))
    return found


def functions(text):
    """Return the functions and methods of a module by qualified name."""
    found = {}

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.FunctionDef):
                found[f"{prefix}{child.name}"] = child

    visit(ast.parse(text), "")
    return found
