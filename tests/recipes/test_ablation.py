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


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, a teacher, and what runs leave at home."""
    folder = tmp_path_factory.mktemp("ablation")
    task = tiny_task("classification")
    write_data(task, folder / "data")
    (folder / "teacher").mkdir()
    save_taskmodel(tiny_taskmodel("bert", task.spec), folder / "teacher")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRESS_HOME", str(folder / "home"))
        yield folder


@pytest.fixture(scope="module")
def recipe(place):
    return parse_recipe(RECIPE.format(folder=place))


@pytest.fixture(scope="module")
def ran(recipe, place):
    """The run of the recipe, and its folder."""
    return run_recipe(recipe, place / "out"), place / "out"


def test_every_step_is_left_out_once(ran):
    done, out = ran
    steps = ["distill.labels", "prune.layers", "distill.logits"]
    names = [result.name for result in done.results]
    for step in steps:
        assert {f"without {step}", f"without {step}, onnx", f"without {step}, onnx-int8"} <= set(names)
    without = {step: load(out / "without" / f"{n + 1}-{step}" / "model") for n, step in enumerate(steps)}
    for step, artifact in without.items():
        assert [record.technique for record in artifact.lineage[1:]] == [name for name in steps if name != step]
    sizes = {result.name: result.size.parameters for result in done.results}
    assert sizes["without prune.layers"] > sizes["chain"] == sizes["without distill.labels"]
    kept = load(out / "steps" / "2-prune.layers")
    assert without["distill.logits"].digest == kept.digest  # the steps before are those of the whole run
    seeds = [record.seed for record in without["distill.labels"].lineage[1:]]
    assert seeds == [4, 5]  # the steps after keep their seeds
    page = (out / "report.html").read_text()
    assert "without prune.layers" in page
    figures = json.loads((out / "results.json").read_text())
    assert [figure["name"] for figure in figures] == names


def test_it_goes_on_where_it_stopped(recipe, ran, monkeypatch):
    first, out = ran
    monkeypatch.setattr("compress.engine.steps.apply_step", lambda *_: pytest.fail("a step ran again"))
    again = run_recipe(recipe, out, resume=True)
    assert [r.scores for r in again.results] == [r.scores for r in first.results]


def test_what_cannot_run_without_a_step_is_said(recipe, tmp_path, monkeypatch):
    def impossible(*_args, **_kwargs):
        raise UserError("step 1 needs what was left out")

    monkeypatch.setattr("compress.engine.ablation.run", impossible)
    done = run_recipe(recipe.model_copy(update={"export": ()}), tmp_path / "out")
    assert not any(result.name.startswith("without") for result in done.results)
    assert "cannot run: step 1 needs what was left out" in done.page.read_text()


def test_it_needs_something_to_report(tmp_path):
    text = RECIPE.format(folder=tmp_path).replace("evaluate: {latency: null}\n", "")
    with pytest.raises(UserError, match="ablate: needs evaluate"):
        parse_recipe(text)
