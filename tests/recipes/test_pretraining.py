"""Every shipped recipe that begins with text alone, run at tiny size through the command line."""

import json
from pathlib import Path

import pytest
import transformers

from compress.cli import main
from compress.recipe import read_recipe
from eval.task import TaskSpec
from teachers.pretraining.pretrain import RECORD
from teachers.taskmodel import save_taskmodel
from tests.tiny import tiny_taskmodel

RECIPES = sorted(
    path
    for path in (Path(__file__).parents[2] / "compress" / "recipes").glob("*.yaml")
    if "pretrain:" in path.read_text()
)
TEXT = "\n\n".join(
    "\n".join(f"The film in {place} was good. It is a warm room of Ann." for _ in range(8))
    for place in ("Paris", "Rome", "Oslo", "Lima")
)


REPEATING = (
    "pretrain-albert",
    "pretrain-bert",
    "pretrain-bert-longer",
    "pretrain-bert-wwm",
    "pretrain-ernie-longer",
    "pretrain-mass",
    "pretrain-roberta",
    "pretrain-spanbert",
    "pretrain-structbert",
)
"""Recipes whose objectives others have too, or tests/unit/test_pretraining.py; slow tests run them."""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Return the overrides that make a recipe tiny."""
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    for name in ("train", "validation"):
        (tmp_path / f"{name}.txt").write_text(TEXT, encoding="utf-8")
    (tmp_path / "list.txt").write_text("warm room\n", encoding="utf-8")
    pairs = [{"text_a": f"the film {i}", "text_b": word, "label": word} for i, word in enumerate(["good", "bad"] * 6)]
    dialogues = [{"turns": [f"where is room {i}?", "in Rome", "is it warm?", "yes"]} for i in range(6)]
    translations = [{"source": f"der Film {i} war gut", "target": f"the film {i} was good"} for i in range(12)]
    for name, rows in (("given", pairs), ("dialogues", dialogues), ("translations", translations)):
        (tmp_path / name).mkdir()
        for split in ("train", "validation"):
            (tmp_path / name / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    def overrides(path):
        network = "teacher.pretrain.network"
        recipe = read_recipe(path)
        values = [f"teacher.pretrain.text={tmp_path}"]
        if recipe.teacher.pretrain.network.from_ is None:
            sentinels = recipe.teacher.pretrain.tokenizer.kind == "t5"
            values += [f"teacher.pretrain.tokenizer.size={420 if sentinels else 300}"]
            values += [f"{network}.decoder_layers=1"] if recipe.teacher.pretrain.network.decoder_layers else []
            values += [f"{network}.{name}" for name in ("layers=2", "hidden_size=32", "heads=4", "max_positions=64")]
        else:
            spec = TaskSpec(kind="masked-lm", metric="masked_accuracy")
            save_taskmodel(
                tiny_taskmodel("ernie", spec, use_task_id=True, task_type_vocab_size=4), tmp_path / "earlier"
            )
            values.append(f"{network}.from={tmp_path / 'earlier'}")
        if recipe.teacher.pretrain.network.embedding_size is not None:
            values.append(f"{network}.embedding_size=16")
        for number, stage in enumerate(recipe.teacher.pretrain.stages):
            place = f"teacher.pretrain.stages.{number}"
            values += [f"{place}.length=32", f"{place}.training.max_steps=4", f"{place}.training.batch_size=4"]
            for name, task in stage.tasks.items():
                values += [
                    f"{place}.tasks.{name}.objectives.{one}.memory=8"
                    for one, own in task.objectives.given.items()
                    if own.remembers
                ]
                for source in ("given", "dialogues", "translations"):
                    if getattr(task, source):
                        values.append(f"{place}.tasks.{name}.{source}={tmp_path / source}")
                if task.objectives.mlm is not None and task.objectives.mlm.lists:
                    lists = f"{place}.tasks.{name}.objectives.mlm.lists"
                    values.append(f"{lists}=[{tmp_path / 'list.txt'}]")
        return [word for value in values for word in ("--set", value)]

    return overrides


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=pytest.mark.slow if path.stem in REPEATING else ()) for path in RECIPES],
)
def test_a_recipe_runs_whole(path, tiny, tmp_path, capsys):
    sets = tiny(path)
    assert main(["check", str(path), *sets]) == 0, capsys.readouterr().err
    assert not (tmp_path / "home").exists(), "a check trains nothing"
    out = tmp_path / "out"
    assert main(["teach", "--recipe", str(path), *sets, "--out", str(out)]) == 0, capsys.readouterr().err
    recipe = read_recipe(path, sets[1::2])
    stages = json.loads((out / RECORD).read_text())["stages"]
    assert len(stages) == len(recipe.teacher.pretrain.stages)
    assert all(stage["history"] for stage in stages)
    watched = {score.split(".")[0] for entry in stages[-1]["history"] for score in entry.get("scores", {})}
    tasks = set(recipe.teacher.pretrain.stages[-1].tasks)
    assert watched == tasks if len(tasks) > 1 else watched, "every task has validation text here"
    network = transformers.AutoModel.from_pretrained(out)
    further = recipe.teacher.pretrain.network.from_ is not None
    assert network.config.model_type == ("ernie" if further else recipe.teacher.pretrain.network.family)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert recipe.name in card
    assert "tokens a second" in card
    assert "<svg" in (out / "report.html").read_text(encoding="utf-8") or "data:image/svg" in (
        out / "report.html"
    ).read_text(encoding="utf-8")


def test_a_pretrained_network_is_the_base_of_a_fine_tuned_teacher(tiny, tmp_path, capsys):
    path = next(path for path in RECIPES if path.stem == "pretrain-bert")
    rows = [{"text": f"the {thing} is {word}", "label": word} for thing in ("film", "room") for word in ("good", "bad")]
    (tmp_path / "data").mkdir()
    for name in ("train", "validation"):
        (tmp_path / "data" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows * 4)), encoding="utf-8")
    more = [f"task={{kind: classification, data: {tmp_path / 'data'}}}", "teacher.finetune={max_steps: 3}"]
    sets = [*tiny(path), *(word for value in more for word in ("--set", value))]
    out = tmp_path / "out"
    assert main(["teach", "--recipe", str(path), *sets, "--out", str(out)]) == 0, capsys.readouterr().err
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    assert model.config.num_hidden_layers == 2
    assert sorted(model.config.label2id) == ["bad", "good"]


def test_a_plan_tells_the_work_of_every_stage(tiny, capsys):
    path = next(path for path in RECIPES if path.stem == "pretrain-ernie2")
    sets = tiny(path)
    assert main(["plan", str(path), *sets, "--json"]) == 0, capsys.readouterr().err
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [step["name"] for step in steps] == [f"teacher.pretrain {number}" for number in (1, 2, 3)]
    assert [step["updates"] for step in steps] == [4, 4, 4]
    assert all(step["seconds"] > 0 for step in steps)
    whole = [*sets, "--set", "teacher.pretrain.stages.0.training={epochs: 2, batch_size: 4}"]
    assert main(["plan", str(path), *whole, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"][0]["updates"] == pytest.approx(len(TEXT) / 4.5 / 32 / 2, abs=3)
