"""No module imports one that imports it back, by whatever way; imports in functions and for type checkers count."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("compress", "teachers", "eval", "benchmarks", "demo")
KNOWN = [{"compress.recipe", "compress.recipe.checks"}]
"""Circles that are still there."""


def modules(root=ROOT):
    """Return the name of every module with its file; a package goes by its own name."""
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(text, known):
    """Yield the modules among ``known`` that a source imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield from [whole] if whole in known else [node.module] if node.module in known else []


def reached(start, graph):
    """Return what a module imports, directly or through others."""
    found, left = set(), [start]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


def circles(graph):
    """Return the groups of modules that import each other."""
    below = {module: reached(module, graph) for module in graph}
    groups = {
        frozenset(other for other in found if module in below[other])
        for module, found in below.items()
        if module in found
    }
    return sorted(map(sorted, groups))


def test_no_module_imports_itself_through_others():
    known = modules()
    graph = {name: set(imported(path.read_text(encoding="utf-8"), known)) - {name} for name, path in known.items()}
    assert len(graph) > 300, "the packages are not where they were"
    assert circles(graph) == sorted(map(sorted, KNOWN))


def test_circles_are_found():
    source = """
import a.b
from a import c
def late():
    from a.d import name
if TYPE_CHECKING:
    from a.e import Name
from elsewhere import x
"""
    assert set(imported(source, {"a", "a.b", "a.c", "a.d", "a.e"})) == {"a.b", "a.c", "a.d", "a.e"}
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"f"}, "f": {"e"}, "g": {"a", "f"}}
    assert circles(graph) == [["a", "b", "c"], ["e", "f"]]
