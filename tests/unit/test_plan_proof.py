"""What ``compress plan`` says of the examples that will report."""

from types import SimpleNamespace

from compress.engine.cost_plan import DISAGREEMENT, examples_that_report
from eval.data.loading import Task
from eval.data.roles import assign_roles
from eval.proof.paired_proportions import examples_needed
from eval.task import Examples, TaskSpec


def said(items, **block):
    evaluate = SimpleNamespace(**{"margin": 0.01, "against": "teacher", **block})
    task = Task(TaskSpec(kind="classification", labels=("a", "b")), {"validation": Examples(items)})
    return list(examples_that_report(SimpleNamespace(evaluate=evaluate), assign_roles(task)))


def test_what_the_margin_needs():
    (line,) = said([{"text": "t", "label": "a"}] * 872)
    assert "872 examples of validation show in four of five cases a margin of 0.022" in line
    assert f"the margin 0.01 needs {examples_needed(DISAGREEMENT, 0.01):,}" in line


def test_groups_are_told():
    first, second = said([{"text": "t", "label": "a", "group": str(place // 4)} for place in range(200)])
    assert "200 examples of validation in 50 groups" in first
    assert "show less than as many single ones" in second


def test_nothing_is_said_where_nothing_is_compared():
    assert said([{"text": "t", "label": "a"}], against="none") == []
    assert said([]) == []
