"""A sweep: which settings there are, which one wins, what is kept and said, and what is refused."""

import json
import statistics

import pytest

import teachers.finetuning.finetune
from compress.artifact.artifact import load
from compress.cli import main
from compress.engine.cost_plan import make_plan
from compress.recipe import parse_recipe, recipe_to_yaml
from compress.recipe.blocks import FinetuneBlock
from eval.data.loading import Task
from eval.errors import DivergedError, UserError
from teachers.finetuning.finetune import finetune
from teachers.finetuning.sweep import Sweep, Trial, checked, run_sweep, settings
from teachers.taskmodel import load_taskmodel, save_taskmodel
from teachers.training.config import Training
from teachers.training.scoring import scores
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel

BLOCK = Training(max_steps=4, batch_size=8)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))


@pytest.fixture
def task():
    return tiny_task(examples=40)


@pytest.fixture
def start(task):
    return lambda seed: tiny_taskmodel("bert", task.spec, seed=seed, num_hidden_layers=1)


def test_every_combination_in_order():
    found = settings(BLOCK, {"learning_rate": (1e-3, 1e-4), "seed": (1, 2), "epochs": (1.0, 2.0)})
    assert [(one["learning_rate"], one["epochs"]) for one, _ in found] == [(1e-3, 1), (1e-3, 2), (1e-4, 1), (1e-4, 2)]
    assert all(training == BLOCK.model_copy(update=setting) for setting, training in found)
    assert settings(BLOCK, {"seed": (1, 2)}) == [({}, BLOCK)]


def test_mean_spread_and_best_seed_by_hand():
    trial = Trial({}, {1: 0.5, 2: 0.8, 3: 0.8})
    assert trial.mean == pytest.approx(0.7)
    assert trial.spread == pytest.approx((0.06 / 2) ** 0.5)
    assert trial.best_seed == 2
    assert Trial({}, {1: 0.5}).spread is None
    diverged = Trial({}, {1: None, 2: 0.9})
    assert (diverged.mean, diverged.spread, diverged.best_seed) == (None, None, 2)


def test_the_best_mean_wins_and_all_is_written_down(task, start):
    values, block = {"learning_rate": [1e-6, 5e-3], "seed": [1, 2]}, Training(epochs=2, batch_size=4)
    found = run_sweep(start, task, block, values, name="mine")
    members = {
        (rate, seed): finetune(start(seed), task, block.model_copy(update={"learning_rate": rate}), seed=seed)
        for rate in (1e-6, 5e-3)
        for seed in (1, 2)
    }
    for trial in found.trials:
        for seed, score in trial.scores.items():
            model, _ = members[trial.setting["learning_rate"], seed]
            assert score == scores(model, task.validation)["accuracy"]
    assert found.best.mean == max(trial.mean for trial in found.trials)
    assert found.trials[0].mean < found.trials[1].mean, "1e-6 learns nothing"
    chosen = members[found.best.setting["learning_rate"], found.best.best_seed]
    assert (found.folder, found.teacher.digest, found.teacher.name) == (chosen[1], chosen[0].digest, "mine")
    facts = json.loads((found.folder / "teacher.json").read_text())
    assert facts["history"]
    assert facts["sweep"]["best"] == {"setting": {"learning_rate": 5e-3}, "seed": found.best.best_seed}
    scored = facts["sweep"]["trials"][1]
    assert scored["mean"] == statistics.fmean(scored["scores"].values())
    assert "optimistic" in facts["sweep"]["note"]


def test_members_are_found_again(task, start, monkeypatch):
    values = {"learning_rate": [1e-4, 1e-3]}
    first = run_sweep(start, task, BLOCK, values, seed=5)
    monkeypatch.setattr(teachers.finetuning.finetune, "train", lambda *_, **__: pytest.fail("trained again"))
    second = run_sweep(start, task, BLOCK, values, seed=5)
    assert second.facts() == first.facts()
    assert list(second.best.scores) == [5]


def test_a_setting_that_diverges_cannot_win(task, start, monkeypatch):
    def fails(model, examples, objective, training, **more):
        if training.learning_rate > 1e-3:
            raise DivergedError("too fast")
        return original(model, examples, objective, training, **more)

    original = teachers.finetuning.finetune.train
    monkeypatch.setattr(teachers.finetuning.finetune, "train", fails)
    found = run_sweep(start, task, BLOCK, {"learning_rate": [1e-2, 1e-6]})
    assert found.trials[0].scores == {13: None}
    assert found.best is found.trials[1]
    headings, rows = found.rows()
    assert headings == ["learning_rate", ">accuracy", ">spread", ">seed 13", ""]
    assert rows[0] == ["0.01", "-", "-", "-", ""]
    assert rows[1] == ["1e-06", f"{found.best.mean:.4f}", "-", f"{found.best.mean:.4f}", "best, seed 13"]
    with pytest.raises(DivergedError, match="every setting of the sweep diverged"):
        run_sweep(start, task, BLOCK, {"learning_rate": [1e-2, 1e-1]})


def test_what_cannot_be_swept(task, start):
    with pytest.raises(UserError) as caught:
        checked(
            {"learning_rat": [1e-3], "epochs": [-1, 2], "seed": [1, True], "batch_size": [], "warmup_steps": [0, 0.0]}
        )
    assert list(caught.value.problems) == [
        "sweep: unknown field 'learning_rat'; did you mean 'learning_rate'?",
        "sweep.epochs: got -1; input should be greater than 0",
        "sweep.seed: got True; must be a whole number from 0 to 4294967295",
        "sweep.seed: got [1, True]; each value must stand there once",
        "sweep.batch_size: must name at least one value",
        "sweep.warmup_steps: got [0, 0.0]; each value must stand there once",
    ]
    with pytest.raises(UserError, match="sweep: is empty"):
        checked({})
    blind = Task(task.spec, {"train": task.train}, "here")
    with pytest.raises(UserError, match="here: a sweep chooses by scores, and there are no examples with labels"):
        run_sweep(start, blind, BLOCK, {"epochs": [1, 2]})


RECIPE = """\
name: swept
task: {{kind: classification, data: {data}}}
teacher:
  model: {base}
  finetune: {{max_steps: 2, batch_size: 8, sweep: {{learning_rate: [1.0e-6, 1.0e-3], seed: [1, 2]}}}}
"""


@pytest.fixture
def recipe(tmp_path, task):
    (tmp_path / "data").mkdir()
    for name, split in task.splits.items():
        lines = "".join(json.dumps(dict(item)) + "\n" for item in split)
        (tmp_path / "data" / f"{name}.jsonl").write_text(lines)
    (tmp_path / "base").mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec()), tmp_path / "base")
    return RECIPE.format(data=tmp_path / "data", base=tmp_path / "base")


def test_a_recipe_with_a_sweep(recipe, tmp_path, capsys):
    path, out = tmp_path / "recipe.yaml", tmp_path / "out"
    path.write_text(recipe)
    parsed = parse_recipe(recipe)
    assert parse_recipe(recipe_to_yaml(parsed)) == parsed
    block = parsed.teacher.finetune
    assert [(training.learning_rate, seed) for training, seed in block.runs(7)] == [
        *((1e-6, 1), (1e-6, 2), (1e-3, 1), (1e-3, 2))
    ]
    assert FinetuneBlock(epochs=2).runs(7) == [(Training(epochs=2), 7)]
    (row,) = make_plan(parsed).steps
    assert (row.name, row.updates) == ("teacher.finetune", 8)
    assert main(["teach", "--recipe", str(path), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("learning_rate", "accuracy", "spread", "seed 1", "seed 2", "best, seed"))
    assert "its own is optimistic" in said
    kept = json.loads((out / "teacher.json").read_text())["sweep"]["best"]
    training = block.training.model_copy(update=kept["setting"])
    base = load_taskmodel(tmp_path / "base", parsed.task.load(13).spec, seed=kept["seed"])
    assert base.digest == load_taskmodel(tmp_path / "base").digest
    plain, _ = finetune(str(tmp_path / "base"), parsed.task.load(13), training, seed=kept["seed"])
    assert load(out).digest == plain.digest


def test_mistakes_of_the_block(recipe, tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe)
    for change, said in [
        ("learning_rate=1.0e-4", "learning_rate: stands here and under sweep; say it once"),
        ("sweep.seed=null", "sweep.seed: got nothing, must be"),
        ("sweep.epochs=[0]", "finetune.sweep: epochs: got 0; input should be greater than 0"),
        ("seed=[1, 2]", "seed: stands here and under sweep; say it once"),
    ]:
        assert main(["check", str(path), "--set", f"teacher.finetune.{change}"]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(ValueError, match="several seeds of a sweep stand in it"):
        FinetuneBlock(seed=(1, 2), sweep={"epochs": (1, 2)})


def test_equal_means_take_the_first():
    trials = (Trial({"epochs": 1.0}, {1: 0.5, 2: 0.7}), Trial({"epochs": 2.0}, {1: 0.6, 2: 0.6}))
    assert trials[0].mean == trials[1].mean
    rows = Sweep(None, None, "accuracy", trials, trials[0]).rows()[1]
    assert [row[-1] for row in rows] == ["best, seed 2", ""]
