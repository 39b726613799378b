"""``ablate: true``: the recipe again without each of its steps, and what each contributed in one report."""

import json

import pytest

from compress.artifact.artifact import load
from compress.engine.pipeline import run_recipe
from compress.recipe import parse_recipe
from eval.errors import UserError
from teachers.taskmodel import save_taskmodel
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task, tiny_taskmodel

RECIPE = """
name: chain
seed: 3
task: {{kind: classification, data: "{folder}/data"}}
teacher: {{model: "{folder}/teacher"}}
steps:
  - distill.labels: {{max_steps: 3, batch_size: 8, keep: last}}
  - prune.layers: {{count: 2}}
  - distill.logits: {{max_steps: 3, batch_size: 8, keep: last}}
export: [{{onnx: {{int8: true, agreement: 0.3}}}}]
evaluate: {{latency: null}}
ablate: true
"""


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    task = tiny_task("classification")
    write_data(task, tmp_path / "data")
    (tmp_path / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), tmp_path / "teacher")
    return parse_recipe(RECIPE.format(folder=tmp_path))


def test_every_step_is_left_out_once(recipe, tmp_path):
    done = run_recipe(recipe, tmp_path / "out")
    steps = ["distill.labels", "prune.layers", "distill.logits"]
    names = [result.name for result in done.results]
    for step in steps:
        assert {f"without {step}", f"without {step}, onnx", f"without {step}, onnx-int8"} <= set(names)
    without = {step: load(tmp_path / "out" / "without" / f"{n + 1}-{step}" / "model") for n, step in enumerate(steps)}
    for step, artifact in without.items():
        assert [record.technique for record in artifact.lineage[1:]] == [name for name in steps if name != step]
    sizes = {result.name: result.size.parameters for result in done.results}
    assert sizes["without prune.layers"] > sizes["chain"] == sizes["without distill.labels"]
    kept = load(tmp_path / "out" / "steps" / "2-prune.layers")
    assert without["distill.logits"].digest == kept.digest  # the steps before are those of the whole run
    seeds = [record.seed for record in without["distill.labels"].lineage[1:]]
    assert seeds == [4, 5]  # the steps after keep their seeds
    page = (tmp_path / "out" / "report.html").read_text()
    assert "without prune.layers" in page
    figures = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [figure["name"] for figure in figures] == names


def test_it_goes_on_where_it_stopped(recipe, tmp_path, monkeypatch):
    first = run_recipe(recipe, tmp_path / "out")
    monkeypatch.setattr("compress.engine.steps._apply", lambda *_: pytest.fail("a step ran again"))
    again = run_recipe(recipe, tmp_path / "out", resume=True)
    assert [r.scores for r in again.results] == [r.scores for r in first.results]


def test_what_cannot_run_without_a_step_is_said(recipe, tmp_path, monkeypatch):
    def impossible(*_args, **_kwargs):
        raise UserError("step 1 needs what was left out")

    monkeypatch.setattr("compress.engine.ablation.run", impossible)
    done = run_recipe(recipe, tmp_path / "out")
    assert not any(result.name.startswith("without") for result in done.results)
    assert "cannot run: step 1 needs what was left out" in done.page.read_text()


def test_it_needs_something_to_report(tmp_path):
    text = RECIPE.format(folder=tmp_path).replace("evaluate: {latency: null}\n", "")
    with pytest.raises(UserError, match="ablate: needs evaluate"):
        parse_recipe(text)
