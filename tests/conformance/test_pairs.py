"""Every ordered pair of techniques runs, or is refused by name before any work: on BERT, and slowly on all families."""

import re
from functools import cache
from pathlib import Path

import pytest

from compress.artifact.artifact import Artifact
from compress.engine.steps import run
from compress.pairs import legend, matrix, refusal
from compress.recipe import Recipe
from compress.registry import names
from eval.errors import UserError
from tests.conformance.battery import OTHER_KIND, REFUSED, check_result, inputs_for, instance, task_of
from tests.tiny import FAMILIES, tiny_taskmodel

ROOT = Path(__file__).parents[2]
PAIRS = [(a, b) for a in names() for b in names()]
SHARE = 23
"""One pair of so many that run does so by default, with each technique as the second; slow tests run the others.

Those refused always are.
"""


def quick(first, second):
    """Return a pair as a parameter, slow if it is left to the slow tests."""
    late = refusal(first, second) is None and (names().index(first) + names().index(second)) % SHARE
    return pytest.param(first, second, marks=pytest.mark.slow if late else ())


@pytest.mark.parametrize(("first", "second"), [quick(*pair) for pair in PAIRS])
def test_every_ordered_pair_runs_or_is_refused(first, second, signals):
    check_pair(first, second, "bert", signals)


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "bert"])
@pytest.mark.parametrize("first", names())
def test_every_ordered_pair_on_every_family(first, family, signals):
    for second in names():  # a test each would be 9,000 to collect whenever any test is run
        check_pair(first, second, family, signals)


def test_the_square_in_the_docs_is_this_one():
    told = (ROOT / "docs" / "combining.md").read_text(encoding="utf-8")
    assert "\n".join(matrix()) in told, "put what 'compress list --pairs' prints there"
    assert all(line in told for line in legend())


@cache
def source_for(family, spec):
    return Artifact.from_model(tiny_taskmodel(family, spec))


def check_pair(first, second, family, signals):
    task = task_of(first, second)
    source = source_for(family, task.spec)
    recipe = Recipe(steps=(instance(first), instance(second)))
    inputs = inputs_for(task, source, signals)
    refused = [name for name in (first, second) if family in REFUSED.get(name, ())]
    if refused:
        with pytest.raises(UserError, match="|".join(refused)):
            run(recipe, source, inputs, dry_run_first=False)
        return
    problem = refusal(first, second)
    if problem is not None:
        assert re.fullmatch(f"step 2, {second}: .*step 1, {first}.*; (put it before|take .*)", problem.sentence)
        with pytest.raises(UserError, match=re.escape(problem.sentence)):
            run(recipe, source, inputs)
        return
    try:
        result = run(recipe, source, inputs, dry_run_first=False)
    except UserError as error:  # the other of the two has nothing to learn from on this kind of task
        if first == second or task.spec.kind not in OTHER_KIND.values() or task.spec.kind not in str(error):
            raise
        return
    assert [record.technique for record in result.lineage] == ["source", first, second]
    check_result(result, task)
