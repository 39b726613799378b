"""Several tasks in one recipe: what is trained, kept, found again and refused."""

import json

import pytest
import torch

from compress.artifact.artifact import load
from compress.cli import main
from compress.engine.several_tasks import load_tasks, losses_of, starts
from compress.recipe import parse_recipe, read_recipe, recipe_from_plain, recipe_to_plain, recipe_to_yaml
from eval.errors import UserError
from teachers.anatomy.encoder import base_encoder
from teachers.finetuning import multitask
from teachers.finetuning.multitask import finetune_together, share_encoders
from teachers.losses.catalogue import CosineRegression, LossBlock, MarginContrast
from teachers.taskmodel import load_taskmodel, save_taskmodel
from teachers.training.config import Training
from tests.tiny import FAMILIES, at_first, tiny_spec, tiny_task, tiny_taskmodel

SHORT = Training(max_steps=4, batch_size=8, learning_rate=1e-3)


def write(task, folder):
    folder.mkdir(parents=True)
    for name, examples in task.splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(dict(e)) + "\n" for e in examples))
    return str(folder)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A base, three tasks, and a recipe that names them."""
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    (tmp_path / "base").mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec("masked-lm")), tmp_path / "base")
    data = {
        "mood": write(tiny_task(examples=16), tmp_path / "mood"),
        "same": write(tiny_task("regression", pair=True, examples=16), tmp_path / "same"),
    }
    tasks = {
        "mood": {"kind": "classification", "data": data["mood"]},
        "same": {"kind": "regression", "data": data["same"]},
        "near": {"kind": "embedding", "data": data["same"], "loss": "margin"},
    }
    values = {
        "name": "several",
        "tasks": tasks,
        "teacher": {"model": str(tmp_path / "base"), "finetune": {"max_steps": 4, "batch_size": 8}},
    }
    (tmp_path / "recipe.yaml").write_text(recipe_to_yaml(recipe_from_plain(values)))
    return tmp_path


def encoders(folders):
    found = []
    for folder in folders:
        encoder = base_encoder(load_taskmodel(folder).model)
        found.append({n: t for n, t in encoder.state_dict().items() if not n.startswith("pooler.")})
    return found


def test_a_recipe_of_several_tasks_is_read_and_written(place):
    recipe = read_recipe(place / "recipe.yaml")
    assert list(recipe.tasks) == ["mood", "same", "near"]
    assert losses_of(recipe) == {"near": MarginContrast()}
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe
    assert recipe_to_plain(recipe)["tasks"]["near"]["loss"] == {"margin": {}}
    assert recipe.tasks["near"].loss == LossBlock(margin=MarginContrast())


def test_teach_gives_a_model_a_task_with_one_encoder_and_finds_them_again(place, capsys, monkeypatch):
    path = str(place / "recipe.yaml")
    assert main(["check", path]) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    assert "tasks.same: train 16, validation 16, test 16" in told
    assert "together: " in told
    assert main(["teach", "--recipe", path, "--out", str(place / "out")]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.count("teacher: ") == 3
    models = {name: load(place / "out" / name) for name in ("mood", "same", "near")}
    assert [model.task.kind for model in models.values()] == ["classification", "regression", "embedding"]
    first, *others = encoders([place / "out" / name for name in models])
    for other in others:
        assert other.keys() == first.keys()
        assert all(torch.equal(first[name], other[name]) for name in first)
    history = json.loads(next(place.glob("home/teachers/together-*/near/teacher.json")).read_text())["history"]
    assert set(history[0]["terms"]) == {"mood.task", "same.task", "near.margin"}
    assert {"mood.accuracy", "same.spearman", "near.spearman"} <= set(history[0]["scores"])

    def never(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(multitask, "learn", never)
    assert main(["teach", "--recipe", path]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.count("home/teachers/together-") == 3


def test_per_task_training_starts_from_the_shared_encoder(place):
    recipe = read_recipe(place / "recipe.yaml")
    tasks = load_tasks(recipe)

    def found(**how):
        models = starts(recipe, tasks, str(place / "base"), 13)
        return finetune_together(models, tasks, SHORT, losses=losses_of(recipe), **how)

    together, then = found(), found(per_task=Training(max_steps=2, batch_size=8))
    for name in tasks:
        assert then[name][1] != together[name][1]
        identity = json.loads((then[name][1] / "teacher.json").read_text())["identity"]
        assert identity["base"] == together[name][0].digest
    words = "embeddings.word_embeddings.weight"
    shared, *own = (found[words] for found in encoders([together["mood"][1], *(folder for _, folder in then.values())]))
    gaps = [float((shared - table).abs().max()) for table in own]
    assert all(0 < gap <= 2 * 5e-5 * 1.01 for gap in gaps), "two small updates away from the shared encoder"
    assert not torch.equal(own[0], own[1])


def test_data_loss_order_and_settings_tell_trainings_apart(place):
    recipe = read_recipe(place / "recipe.yaml")
    tasks = load_tasks(recipe)

    def folder(training=SHORT, losses=None, seed=13, names=("mood", "same", "near")):
        chosen = {name: tasks[name] for name in names}
        models = {name: starts(recipe, tasks, str(place / "base"), 13)[name] for name in names}
        return next(iter(finetune_together(models, chosen, training, losses=losses, seed=seed).values()))[1].parent

    other = SHORT.model_copy(update={"max_steps": 2})
    found = [
        folder(),
        folder(other),
        folder(losses={"near": CosineRegression()}),
        folder(seed=14),
        folder(names=("same", "mood", "near")),
    ]
    assert len(set(found)) == 5
    assert folder() == found[0]


def test_a_stopped_training_goes_on_to_the_same_weights(place, monkeypatch):
    recipe = read_recipe(place / "recipe.yaml")
    tasks = load_tasks(recipe)
    training = SHORT.model_copy(update={"checkpoint_seconds": 0.0})

    def taught(home):
        monkeypatch.setenv("COMPRESS_HOME", str(place / home))
        return finetune_together(starts(recipe, tasks, str(place / "base"), 13), tasks, training)

    whole = taught("whole")

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("teachers.training.loop._Loop._end_of_epoch", killed)  # after the last checkpoint but one
    with pytest.raises(KeyboardInterrupt):
        taught("stopped")
    monkeypatch.undo()
    (working,) = (place / "stopped" / "teachers").glob("together-*.working")
    assert (working / "checkpoint.safetensors").is_file()
    again = taught("stopped")
    assert not working.exists()
    assert {n: m.digest for n, (m, _) in again.items()} == {n: m.digest for n, (m, _) in whole.items()}


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert", "albert", "xlnet"))
def test_an_embedder_shares_the_encoder_of_a_classifier(family):
    models = {
        kind: tiny_taskmodel(family, tiny_spec(kind), seed=n) for n, kind in enumerate(("embedding", "classification"))
    }
    share_encoders(models)
    first, other = (dict(base_encoder(model.model).named_parameters()) for model in models.values())
    names = {name for name in other if not name.startswith("pooler.")}
    assert names
    assert all(other[name] is first[name] for name in names)


class TestMistakes:
    def test_what_does_not_go_with_several_tasks_is_told_at_once(self):
        text = """
task: {kind: classification, data: d}
tasks: {a: {kind: classification, data: d}, b: {kind: regression, data: d}}
teacher: {model: t, finetune: {loss: margin}}
steps: [distill.labels]
evaluate: {against: teacher}
"""
        with pytest.raises(UserError) as caught:
            parse_recipe(text)
        told = "\n".join(caught.value.problems)
        for name in ("task", "steps", "evaluate"):
            assert f"{name}: cannot stand beside tasks" in told
        assert "teacher.finetune.loss: with several tasks each says its own" in told
        assert "recipe:5: steps" in told

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ("tasks: {a: {kind: qa, data: d}}\nteacher: {model: t, finetune: {}}", "tasks"),
            ("tasks: {a: {kind: q, data: d}, b: {kind: qa, data: d}}\nteacher: {model: t}", r"tasks.a.kind: got 'q'"),
            ("tasks: {a: {kind: qa, data: d}, b: {kind: qa, data: d}}\nteacher: {model: t}", "with a finetune block"),
            ("tasks: {a/b: {kind: qa, data: d}, b: {kind: qa, data: d}}\nteacher: {model: t, finetune: {}}", "a/b"),
            (
                "task: {kind: qa, data: d}\nteacher: {model: t, finetune: {per_task: {epochs: 1}}}",
                "is for several tasks",
            ),
            ("task: {kind: qa, data: d}\nteacher: {model: t, finetune: {loss: rank}}", "'rank'"),
        ],
    )
    def test_blocks_that_do_not_fit(self, text, match):
        with pytest.raises(UserError, match=match):
            parse_recipe(text)

    def test_the_data_of_all_tasks_is_looked_at(self, place, capsys):
        sets = ["--set", "tasks.mood.data=nowhere", "--set", "tasks.same.metric=accuracy"]
        assert main(["check", str(place / "recipe.yaml"), *sets]) == 2
        told = capsys.readouterr().err
        assert "tasks.mood: " in told
        assert "tasks.same: metric: regression has no metric 'accuracy'" in told

    def test_a_loss_that_does_not_fit_its_task_is_told_with_it(self, place, capsys):
        assert main(["check", str(place / "recipe.yaml"), "--set", "tasks.mood.loss=ranking"]) == 2
        assert "tasks.mood: loss: ranking: needs pairs of texts" in capsys.readouterr().err

    def test_they_cannot_be_run(self, place, capsys):
        assert main(["run", str(place / "recipe.yaml"), "--out", str(place / "run")]) == 2
        assert "run 'compress teach --recipe' with this recipe" in capsys.readouterr().err
        assert not (place / "run").exists()
