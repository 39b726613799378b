"""A metric that is a Python function: in scores and intervals, by its name in what is saved, and what cannot be."""

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from compress import load
from compress.artifact.artifact import Artifact
from compress.recipe.blocks import TaskBlock
from compress.terminal.models import task_for
from eval import TaskSpec, load_task, measure
from eval.data.arguments import specification
from eval.errors import UserError
from eval.metrics.own_metric import OwnMetric, named_metric
from eval.result import Result
from eval.scores import known_metric, score
from tests.tiny import tiny_task, tiny_taskmodel

FILMS = [
    {"text": f"{word} film", "label": "good" if word in ("warm", "fine") else "bad"}
    for word in ("warm", "dull", "fine", "bad")
]


def cost(y_true, y_pred):
    """Return minus the mean price of errors: a missed bad film costs five times a missed good one."""
    return -float(np.where(y_true == y_pred, 0, np.where(y_true == "bad", 5, 1)).mean())


class TestScores:
    def test_by_hand(self):
        task = load_task("classification", FILMS, metric=cost)
        answers = [{"label": label} for label in ("good", "good", "bad", "bad")]
        found = score(task.spec, answers, task.validation)
        assert list(found)[:2] == ["cost", "accuracy"]
        assert found["cost"] == -(5 + 1) / 4
        assert found["accuracy"] == 0.5

    @pytest.mark.parametrize(
        ("kind", "answers", "truths", "predictions"),
        [
            ("regression", [{"score": 0.5}], [{"label": 2.0}], (2.0, 0.5)),
            ("tagging", [{"tags": ["O", "B"]}], [{"tags": ["B", "B"]}], (["B", "B"], ["O", "B"])),
            (
                "qa",
                [{"text": "a"}],
                [{"answers": [{"text": "a b", "answer_start": 0}, {"text": "a", "answer_start": 0}]}],
                (["a b", "a"], "a"),
            ),
            ("multiple-choice", [{"label": 1}], [{"label": 0}], (0, 1)),
        ],
    )
    def test_what_it_gets(self, kind, answers, truths, predictions):
        seen = []

        def watched(y_true, y_pred):
            seen.append((y_true[0], y_pred[0]))
            return 1.0

        assert score(TaskSpec(kind=kind, metric=watched), answers, truths)["watched"] == 1.0
        assert seen == [predictions]

    def test_two_models_are_compared_by_it(self):
        task = tiny_task("classification", examples=40)
        task = replace(task, spec=task.spec.model_copy(update={"metric": OwnMetric(cost)}))
        model, other = (tiny_taskmodel("bert", task.spec, seed=seed) for seed in (1, 5))
        found = measure(model, task, against=other)
        compared = found.comparison
        assert compared.metric == "cost"
        assert compared.difference.value == pytest.approx(found.score - compared.reference_scores["cost"])
        assert compared.difference.low < compared.difference.value < compared.difference.high
        assert "cost" in str(found)


class TestNames:
    def test_it_is_its_name_and_keeps_the_function(self):
        spec = TaskSpec(kind="classification", labels=("bad", "good"), metric=cost)
        for other in (spec, copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)), spec.model_copy()):
            assert other.metric == "cost"
            assert other.metric.function is cost
        assert json.loads(spec.model_dump_json())["metric"] == "cost"
        assert spec == TaskSpec.model_validate_json(spec.model_dump_json())

    @pytest.mark.parametrize(
        ("kind", "metric", "message"),
        [
            ("classification", lambda y_true, y_pred: 0.0, "the function has no name for reports"),
            ("embedding", cost, "embedding has no predictions that a function could get"),
            ("classification", OwnMetric(cost, "macro_f1"), "'macro_f1' is a metric of classification already"),
        ],
    )
    def test_what_is_refused(self, kind, metric, message):
        with pytest.raises(UserError, match=message):
            specification(kind, OwnMetric(metric) if not isinstance(metric, str) else metric)

    def test_a_function_that_fails_is_named(self):
        def broken(y_true, y_pred):
            raise ValueError("y_true must be numbers")

        task = load_task("classification", FILMS, metric=broken)
        with pytest.raises(
            UserError, match=r"metric: broken: the function failed on 4 examples \(ValueError: y_true mu"
        ):
            score(task.spec, [{"label": "bad"}] * 4, task.validation)


class TestFolders:
    def test_a_saved_model_has_the_name_and_is_measured_with_the_function_again(self, tmp_path, caplog):
        task = tiny_task("classification")
        task = replace(task, spec=task.spec.model_copy(update={"metric": OwnMetric(cost)}))
        folder = Artifact.from_model(tiny_taskmodel("bert", task.spec)).save(tmp_path / "model")
        assert json.loads((folder / "task.json").read_text())["metric"] == "cost"
        loaded = load(folder)
        alone = replace(task, spec=loaded.task)
        with pytest.raises(UserError, match=r"has no metric 'cost'.*or give a function of your own itself"):
            measure(loaded, alone)
        again = measure(loaded, alone, metric=cost)
        assert again.scores == measure(loaded, task).scores
        again.save(tmp_path / "result")
        assert Result.load(tmp_path / "result").metric == "cost"
        assert known_metric(loaded.task) is None
        assert "'cost' is a function of whoever made the model; accuracy is taken" in caplog.text

    def test_a_module_is_named_by_the_user_alone(self, tmp_path, monkeypatch):
        (tmp_path / "our_metrics.py").write_text("def zero(y_true, y_pred):\n    return 0.0\n\nNONE = None\n")
        monkeypatch.syspath_prepend(tmp_path)
        data = tmp_path / "films.json"
        data.write_text(json.dumps(FILMS))
        task = TaskBlock(kind="classification", data=str(data), metric="our_metrics:zero").load(seed=1)
        assert task.spec.metric == "our_metrics:zero"
        assert score(task.spec, [{"label": "bad"}] * 4, task.validation)["our_metrics:zero"] == 0.0
        assert task_for(task.spec, str(data), metric="our_metrics:zero").spec.metric.function([], []) == 0.0
        said = TaskSpec.model_validate_json(task.spec.model_dump_json())
        assert type(said.metric) is str
        assert task_for(said, str(data)).spec.metric == "accuracy"
        for name, message in (("our_metrics:one", "has no attribute 'one'"), ("our_metrics:NONE", "is no function")):
            with pytest.raises(UserError, match=message):
                named_metric(name)
        with pytest.raises(UserError, match="metric: no_such:zero: cannot be imported"):
            named_metric("no_such:zero")
