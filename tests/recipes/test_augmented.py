"""Recipes whose steps learn from more than the task's own examples."""

import json
import re

import pytest

from compress.artifact.artifact import load
from compress.cli import main
from compress.recipe import parse_recipe, recipe_to_yaml
from eval.errors import UserError
from eval.task import TaskSpec
from teachers.taskmodel import save_taskmodel
from tests.tiny import tiny_task, tiny_taskmodel

RECIPE = """\
name: small
task: {{kind: {kind}, data: {place}/data, max_length: 32}}
teacher: {{model: {place}/teacher, finetune: {{max_steps: 2, batch_size: 8}}}}
student: {{from: teacher, layers: [0, 2]}}
augment: {augment}
training: {{max_steps: 3, batch_size: 8}}
steps:
  - distill.logits: {{alpha: {alpha}}}
evaluate: {{against: teacher, latency: null, baseline: true}}
"""
RULES = {
    "tinybert": "{{rule: tinybert, model: {place}/masked, copies: 2}}",
    "bilstm": "{{rule: bilstm, pos: 0, copies: 2, unlabelled: {place}/pool.txt}}",
    "unlabelled": "{{unlabelled: {place}/pool.txt}}",
    "tags": "{{rule: bilstm, tagger: data, copies: 2}}",
    "untagged": "{{unlabelled: {place}/pool.jsonl}}",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Data, teacher, masked-language model and unlabelled texts of a task; returns a function of the kind."""
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))

    def make(kind):
        task = tiny_task(kind)
        models = {"teacher": task.spec, "masked": TaskSpec(kind="masked-lm", metric="masked_accuracy")}
        for name, spec in models.items():
            (tmp_path / name).mkdir()
            save_taskmodel(tiny_taskmodel("bert", spec), tmp_path / name)
        (tmp_path / "data").mkdir()
        for name, split in task.splits.items():
            lines = "".join(json.dumps(dict(item)) + "\n" for item in split)
            (tmp_path / "data" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
        (tmp_path / "pool.txt").write_text("a warm room\nthe story was dull\n" * 5, encoding="utf-8")
        rows = [json.dumps({"tokens": ["a", "warm", "room", str(number)]}) for number in range(10)]
        (tmp_path / "pool.jsonl").write_text("\n".join(rows), encoding="utf-8")
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("classification", "tinybert"),
        pytest.param("classification", "bilstm", marks=pytest.mark.slow),
        pytest.param("regression", "bilstm", marks=pytest.mark.slow),
        ("classification", "unlabelled"),
        pytest.param("regression", "unlabelled", marks=pytest.mark.slow),
        ("tagging", "tags"),
        ("tagging", "untagged"),
    ],
)
def test_a_recipe_runs_and_resumes(kind, rule, place, capsys):
    here = place(kind)
    augment = RULES[rule].format(place=here)
    path = here / "recipe.yaml"
    path.write_text(RECIPE.format(kind=kind, place=here, augment=augment, alpha=0.7), encoding="utf-8")
    assert main(["check", str(path)]) == 0, capsys.readouterr().err
    assert not (here / "home" / "augmented").exists(), "a check draws nothing"
    capsys.readouterr()
    assert main(["plan", str(path), "--json"]) == 0, capsys.readouterr().err
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["steps"]}
    assert (
        rows["1. distill.logits"]["rows"]
        == {"tinybert": 120, "bilstm": 130, "unlabelled": 50, "tags": 120, "untagged": 50}[rule]
    )
    assert ("augment" in rows) == (rule == "tinybert")
    assert main(["run", str(path), "--out", str(here / "out")]) == 0, capsys.readouterr().err
    kept = list((here / "home").glob("augmented/*.jsonl"))
    assert len(kept) == (rule not in ("unlabelled", "untagged"))
    result = load(here / "out" / "model")
    baseline = load(here / "out" / "baseline")
    record, alone = result.lineage[-1], baseline.lineage[-1]
    assert record.data["train"] != alone.data["train"]
    assert len(list((here / "home").glob("teachers/*"))) == 1
    page = (here / "out" / "report.html").read_text(encoding="utf-8")
    note = re.search(r"The steps learned from (\d+) examples: the 40 of the task[^<]*", page)
    assert 40 < int(note[1]) <= rows["1. distill.logits"]["rows"]
    assert note[0].endswith("The model without teacher learned from the 40 labelled examples of the task alone.")
    assert "no teacher made 3 optimizer steps, as many as the result." in page
    capsys.readouterr()
    assert main(["run", str(path), "--out", str(here / "out"), "--resume"]) == 0, capsys.readouterr().err
    assert "already there" in capsys.readouterr().err
    assert load(here / "out" / "model").digest == result.digest


def test_a_baseline_makes_as_many_optimizer_steps_where_the_further_texts_are_several_windows_each(place, capsys):
    here = place("tagging")
    rows = [json.dumps({"tokens": ["a", "warm", "room"] * 20 + [str(number)]}) for number in range(10)]
    (here / "pool.jsonl").write_text("\n".join(rows), encoding="utf-8")
    text = RECIPE.format(kind="tagging", place=here, augment=RULES["untagged"].format(place=here), alpha=0.7)
    text = text.replace("training: {max_steps: 3, batch_size: 8}", "training: {epochs: 1, batch_size: 8}")
    (here / "recipe.yaml").write_text(text, encoding="utf-8")
    assert main(["run", str(here / "recipe.yaml"), "--out", str(here / "out")]) == 0, capsys.readouterr().err
    steps = [load(here / "out" / name).lineage[-1].facts["history"][-1]["step"] for name in ("model", "baseline")]
    assert steps[0] == steps[1] > (40 + 10) // 8 + 1, "ten texts of 61 words are more than ten inputs of 32 tokens"


def test_yaml_and_back():
    text = RECIPE.format(kind="classification", place="x", augment=RULES["tinybert"].format(place="x"), alpha=1)
    recipe = parse_recipe(text)
    assert recipe.augment.copies == 2
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe


@pytest.mark.parametrize(
    ("kind", "augment", "problem"),
    [
        ("qa", "{rule: bilstm, pos: 0}", "recipe:5: augment: qa is not augmented; its answers are places"),
        ("masked-lm", "{unlabelled: x}", "recipe:5: augment: masked-lm learns from plain text"),
        (
            "tagging",
            "{rule: bilstm, pos: 0, limit: 5}",
            "recipe:5: augment: limit: says how many unlabelled texts are read",
        ),
        ("regression", "{rule: bilstm, tagger: data}", "recipe:5: augment.tagger: only tagging data has tags"),
        ("regression", "{rule: tinybert}", "recipe:5: augment: model: tinybert needs a masked-language model"),
        ("regression", "{rule: easy}", "recipe:5: augment: rule: got 'easy', must be one of 'tinybert'"),
    ],
)
def test_what_is_refused_before_anything_is_read(kind, augment, problem):
    with pytest.raises(UserError) as caught:
        parse_recipe(RECIPE.format(kind=kind, place="x", augment=augment, alpha=1))
    assert any(problem in sentence for sentence in caught.value.problems), caught.value.problems


def test_texts_without_labels_need_a_teacher():
    text = "task: {kind: classification, data: x}\nstudent: {from: x}\naugment: {rule: bilstm, pos: 0}\n"
    with pytest.raises(UserError, match="augment: adds texts without labels, which a teacher must answer"):
        parse_recipe(text)
    parse_recipe(text.replace("rule: bilstm, pos: 0", "rule: tinybert, model: x"))
    with pytest.raises(UserError, match="augment: needs a task whose examples it adds to"):
        parse_recipe("teacher: {model: x}\naugment: {unlabelled: x}\n")


def test_a_check_finds_what_augment_lacks(place, capsys):
    here = place("classification")
    path = here / "recipe.yaml"
    augment = f"{{rule: tinybert, model: {here}/teacher}}"
    path.write_text(RECIPE.format(kind="classification", place=here, augment=augment, alpha=1), encoding="utf-8")
    assert main(["check", str(path)]) == 2
    assert "has no trained masked-language head" in capsys.readouterr().err
