"""The layout: rooms that a newcomer finds by name, one direction between them, no file named like another."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.house.test_house import PACKAGES, ROOT, files, tree

MOST = 20
"""Modules of a folder."""
LARGER = {"compress/distill": 21}
"""Folders that hold more: each of these files is a technique, and its place is that of its name."""
NAMED_BY_A_USER = ("compress/commands", *(f"compress/{family}" for family in ("distill", "prune", "quantize", "share")))
"""Folders whose files are called like what a user writes: a command, or the last part of a technique's name."""
TOPS = (*PACKAGES, "benchmarks")


def modules():
    """Return dotted name -> file of every module of the project, packages by their own name."""
    found = {}
    for path in (path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(path, known):
    """Return the project's modules that a file imports, wherever the import stands."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(full if full in known else node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & known.keys()


def circles(arrows):
    """Return the groups of two or more nodes that reach each other, sorted."""
    reach = {}

    def reached(node):
        found, open_ = set(), [node]
        while open_:
            for after in arrows.get(open_.pop(), ()):
                if after not in found:
                    found.add(after)
                    open_.append(after)
        return found

    for node in arrows:
        reach[node] = reached(node)
    groups = {frozenset(other for other in reach[node] if node in reach.get(other, ())) for node in arrows}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def room_of(module, path):
    """Return the room of a module: the first two folders, or the module itself where it stands alone in a package."""
    folders = path.relative_to(ROOT).parent.parts
    return ".".join(folders[:2]) if len(folders) > 1 or path.stem == "__init__" else module


def test_no_circle_of_imports():
    known = modules()
    assert circles({name: imported(path, known) - {name} for name, path in known.items()}) == []


def test_no_room_imports_back_up():
    known, arrows = modules(), defaultdict(set)
    for name, path in known.items():
        room = room_of(name, path)
        arrows[room] |= {room_of(other, known[other]) for other in imported(path, known)} - {room}
    assert circles(arrows) == []


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in files()}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_folder_is_read_at_a_glance(folder):
    most = LARGER.get(folder.relative_to(ROOT).as_posix(), MOST)
    assert len([path for path in folder.glob("*.py") if path.name != "__init__.py"]) <= most


def test_a_file_is_not_called_like_another():
    named = [path for path in files() if path.name not in ("__init__.py", "__main__.py")]
    free = [path for path in named if str(path.parent.relative_to(ROOT)) not in NAMED_BY_A_USER]
    twice = {stem for stem, count in Counter(path.stem for path in free).items() if count > 1}
    assert twice == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_called_like_a_public_function_of_its_package(package):
    public = set(__import__(package).__all__)
    assert public & {path.stem for path in (ROOT / package).iterdir() if path.name != "__init__.py"} == set()


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_an_import_inside_a_function_counts(tmp_path):
    file = tmp_path / "late.py"
    file.write_text("def late():\n    from eval.errors import UserError\n    return UserError\n")
    assert imported(file, {"eval.errors": Path()}) == {"eval.errors"}
