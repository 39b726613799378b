"""Nothing outside ``eval/kinds`` compares the name of a kind of task, or looks something up by it."""

import ast
import re

import pytest

from eval.kinds.kind_registry import OWN
from tests.house.test_house import ROOT, files, tree

ELSEWHERE = {"embedding", "qa", "retrieval"}
"""Names that other things have too: a table of a network, a part of a head, an extra of the distribution."""
ASKED = re.compile(r"(^|[._])(kind|task)s?$|_kind$")
"""Ends of expressions that hold the name of a kind."""
SPEC = re.compile(r"(spec|task|settings|answers|config|block)$")
"""Ends of expressions whose attribute ``kind`` is such a name."""


DATA = ROOT / "compress" / "testing" / "tiny.py"
"""Writes tiny examples of our own kinds, the data of tests; no other code needs to know which there are."""


def outside():
    paths = [*files(), *sorted((ROOT / "benchmarks").rglob("*.py"))]
    return [path for path in paths if path.relative_to(ROOT).parts[:2] != ("eval", "kinds") and path != DATA]


def names_in(*nodes):
    constants = (
        each for node in nodes if node is not None for each in ast.walk(node) if isinstance(each, ast.Constant)
    )
    return {each.value for each in constants} & set(OWN)


def is_name(node):
    return ASKED.search(ast.unparse(node)) is not None


def of_spec(node):
    """Whether an expression is the kind of a task, such as ``model.task.kind``."""
    return isinstance(node, ast.Attribute) and node.attr == "kind" and SPEC.search(ast.unparse(node.value)) is not None


def compares(node):
    """Whether a node compares the name of a kind, or looks something up by it."""
    match node:
        case ast.Compare():
            sides = [node.left, *node.comparators]
            found = names_in(*sides)
            return bool(found - ELSEWHERE) or (bool(found) and any(map(is_name, sides)))
        case ast.Match():
            return bool(names_in(*(case.pattern for case in node.cases)) - ELSEWHERE)
        case ast.Dict(keys=members) | ast.Tuple(elts=members) | ast.List(elts=members) | ast.Set(elts=members):
            found = names_in(*(member for member in members if isinstance(member, ast.Constant)))
            return len(found) > 1 or bool(found - ELSEWHERE)
        case ast.Subscript():
            return of_spec(node.slice)
        case ast.Call(func=ast.Attribute(attr="get")):
            return any(map(of_spec, node.args))
    return False


def comparisons(tree):
    """Yield the lines that compare the name of a kind."""
    return (node.lineno for node in ast.walk(tree) if compares(node))


def test_only_kinds_know_their_names():
    found = {path.relative_to(ROOT).as_posix(): [*comparisons(tree(path))] for path in outside()}
    assert len(found) > 300
    wrong = {name: lines for name, lines in found.items() if lines}
    assert wrong == {}, "compares the name of a kind; ask kind_of(name) for what is meant"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('task.kind == "qa"', True),
        ('spec.kind in ("classification", "regression")', True),
        ('"embedding" != kind', True),
        ('{"tagging": 1}', True),
        ("HEADS[model.task.kind]", True),
        ("HEADS.get(spec.kind, 3)", True),
        ('match kind:\n    case "tagging":\n        pass', True),
        ("kind_of(task.kind).vectors", False),
        ('TaskSpec(kind="masked-lm")', False),
        ('"embedding" in self.places', False),
        ('{"classifier": "classifier", "qa": "qa_outputs"}', False),
        ("LETTERS[problem.kind]", False),
        ("one.kind != other.kind", False),
    ],
)
def test_the_check_sees_comparisons_and_nothing_else(code, found):
    assert bool(list(comparisons(ast.parse(code)))) is found
