"""Reading recipes: what is understood, what is refused and with which words, and the way back to YAML."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from compress.distill.distilbert import DistilBertDistillation
from compress.distill.logits import LogitDistillation
from compress.prune.layers import LayerPruning
from compress.quantize.dynamic import DynamicQuantization
from compress.recipe import (
    Recipe,
    parse_recipe,
    recipe_from_plain,
    recipe_to_plain,
    recipe_to_yaml,
)
from compress.recipe.blocks import (
    EvaluateBlock,
    ExportBlock,
    FinetuneBlock,
    LatencyBlock,
    TargetBlock,
    TaskBlock,
    TeacherBlock,
)
from compress.student.student import Student
from eval.errors import UserError
from teachers.training.config import Training

WHOLE = """\
name: sst2-3l-int8
seed: 13
task: {kind: classification, data: "${COMPRESS_DATA:-data}/sst2", metric: accuracy}
teacher: {model: runs/sst2-teacher}
student: {from: teacher, layers: [0, 2, 5]}
training: {epochs: 3, learning_rate: 1.0e-4, batch_size: 32, group_by_length: true}
steps:
  - distill.logits: {temperature: 2.0, alpha: 0.9}
  - distill.distilbert: {epochs: 1, alpha_cos: 0}
  - quantize.dynamic
export:
  - onnx: {int8: true}
evaluate: {against: teacher, margin: 0.01, latency: {batch: [1, 8, 32], lengths: data}}
"""


def refused(text: str, *overrides: str) -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        parse_recipe(text, "recipe.yaml", overrides)
    return caught.value.problems


def test_yaml_and_python_give_the_same_recipe(monkeypatch):
    monkeypatch.delenv("COMPRESS_DATA", raising=False)
    written = Recipe(
        name="sst2-3l-int8",
        seed=13,
        task=TaskBlock(kind="classification", data="data/sst2", metric="accuracy"),
        teacher=TeacherBlock(model="runs/sst2-teacher"),
        student=Student(layers=(0, 2, 5)),
        training=Training(epochs=3, learning_rate=1e-4, batch_size=32, group_by_length=True),
        steps=(
            LogitDistillation(temperature=2.0, alpha=0.9),
            DistilBertDistillation(epochs=1, alpha_cos=0),
            DynamicQuantization(),
        ),
        export=(ExportBlock(onnx=TargetBlock(int8=True)),),
        evaluate=EvaluateBlock(against="teacher", margin=0.01, latency=LatencyBlock(batch=(1, 8, 32), lengths="data")),
    )
    assert parse_recipe(WHOLE) == written
    assert parse_recipe(recipe_to_yaml(written)) == written


def test_training_of_the_recipe_stands_below_that_of_a_step_and_above_the_technique_s_own():
    recipe = parse_recipe(WHOLE)
    logits, distilbert, _ = recipe.steps
    assert logits.training == Training(epochs=3, learning_rate=1e-4)
    own = DistilBertDistillation().training
    assert (own.warmup_steps, own.betas) == (0.05, (0.9, 0.98))
    assert distilbert.training == own.model_copy(update={"epochs": 1.0, "learning_rate": 1e-4, "batch_size": 32})


def test_steps_without_training_are_left_alone():
    assert Recipe(training=Training(epochs=9), steps=(LayerPruning(keep=(0,)),)).steps == (LayerPruning(keep=(0,)),)


def test_fields_of_training_may_stand_in_the_finetune_block():
    task = {"kind": "regression", "data": "d"}
    short = recipe_from_plain({"task": task, "teacher": {"model": "base", "finetune": {"epochs": 2, "seed": 4}}})
    assert short.teacher == TeacherBlock(model="base", finetune=FinetuneBlock(training=Training(epochs=2), seed=4))


def test_plain_values_keep_what_was_given_and_no_more():
    assert recipe_to_plain(parse_recipe(WHOLE))["steps"] == [
        {
            "distill.logits": {
                "training": {"epochs": 3.0, "learning_rate": 1e-4, "batch_size": 32, "group_by_length": True},
                "temperature": 2.0,
                "alpha": 0.9,
            }
        },
        {
            "distill.distilbert": {
                "training": {"epochs": 1.0, "learning_rate": 1e-4, "batch_size": 32, "group_by_length": True},
                "alpha_cos": 0.0,
            }
        },
        "quantize.dynamic",
    ]


def test_numbers_that_yaml_1_1_takes_for_text_are_numbers():
    assert parse_recipe("teacher: {model: t}\ntraining: {learning_rate: 1e-4}").training == Training(learning_rate=1e-4)


def test_keys_are_text_whatever_yaml_makes_of_them():
    task = parse_recipe(
        "teacher: {model: t}\ntask: {kind: regression, data: d, label_map: {0: a, yes: b, 1.50: c}}"
    ).task
    assert task is not None
    assert task.label_map == {"0": "a", "yes": "b", "1.50": "c"}


class TestVariables:
    def test_value_default_and_escape(self, monkeypatch):
        monkeypatch.setenv("HERE", "/there")
        monkeypatch.setenv("EMPTY", "")
        monkeypatch.delenv("NOWHERE", raising=False)
        text = 'teacher: {model: ["${HERE}/a", "${NOWHERE:-b}/${EMPTY:-c}", "$${HERE}$", "$HERE"]}'
        assert parse_recipe(text).teacher.models == ("/there/a", "b/c", "${HERE}$", "$HERE")

    def test_the_home_folder(self, monkeypatch):
        monkeypatch.setenv("HOME", "/home/of")
        text = 'teacher: {model: ["~/a", "b/~/c", "~x"]}\nstudent: {from: ~/d, layers: 2}'
        recipe = parse_recipe(text)
        assert recipe.teacher.models == ("/home/of/a", "b/~/c", "~x")
        assert recipe.student.from_ == "/home/of/d"

    def test_missing_and_malformed(self, monkeypatch):
        monkeypatch.delenv("NOWHERE", raising=False)
        found = refused('name: a\nteacher:\n  model: ["${NOWHERE}", "${a b}", "${"]')
        assert found == (
            "recipe.yaml:3: the environment variable NOWHERE is not set; set it, or write a default: ${NOWHERE:-…}",
            "recipe.yaml:3: '${a b}' is no variable; write ${NAME}, ${NAME:-default}, or $${ for a plain ${",
            "recipe.yaml:3: '${' is no variable; write ${NAME}, ${NAME:-default}, or $${ for a plain ${",
        )


class TestOverrides:
    @pytest.mark.parametrize(
        ("override", "read", "value"),
        [
            ("training.epochs=1", lambda r: r.steps[0].training.epochs, 1.0),
            ("steps.0.temperature=3", lambda r: r.steps[0].temperature, 3.0),
            ("steps.distill.logits.temperature=3", lambda r: r.steps[0].temperature, 3.0),
            ("steps.1.distill.distilbert.training.warmup_steps=0", lambda r: r.steps[1].training.warmup_steps, 0.0),
            ("export.0.onnx.int8=false", lambda r: r.export[0].onnx.int8, False),
            ("export.onnx.int8=false", lambda r: r.export[0].onnx.int8, False),
            ("teacher.finetune.epochs=2", lambda r: r.teacher.finetune.training.epochs, 2.0),
            ("student={layers: 1}", lambda r: r.student.layers, 1),
            ("evaluate=null", lambda r: r.evaluate, None),
            ("task.limit.train=20", lambda r: r.task.limit, {"train": 20}),
        ],
    )
    def test_one_value(self, override, read, value):
        assert read(parse_recipe(WHOLE, overrides=[override])) == value

    @pytest.mark.parametrize(
        ("override", "problem"),
        [
            ("epochs", "--set epochs: write path=value, such as training.epochs=1"),
            ("a..b=1", "--set a..b=1: write path=value, such as training.epochs=1"),
            ("seed=[", "--set seed=[: not valid YAML"),
            ("steps.7.alpha=1", "--set steps.7.alpha=1: steps has 3 items, counted from 0; there is no 7"),
            ("steps.distil.logits.alpha=1", "no 'distil.logits.alpha' in steps; did you mean 'distill.logits'?"),
            ("teacher.model.size=1", "--set teacher.model.size=1: teacher.model is a single value and has no fields"),
            ("training.epoch=1", "--set training.epoch=1: training: unknown field 'epoch'; did you mean 'epochs'?"),
            ("steps.2.bits=4", "--set steps.2.bits=4: step 3, quantize.dynamic: unknown field 'bits'"),
            (
                "steps.0.alpha=2",
                "--set steps.0.alpha=2: step 1, distill.logits: alpha: got 2, must be a number between",
            ),
        ],
    )
    def test_mistakes_name_the_override(self, override, problem):
        (found,) = refused(WHOLE, override)
        assert problem in found

    def test_a_name_that_stands_twice(self):
        (found,) = refused("teacher: {model: t}\nsteps: [prune.layers, prune.layers]", "steps.prune.layers.keep=[0]")
        assert found.endswith("prune.layers stands more than once in steps; write steps.0 or steps.1")


def test_unusual_characters_survive_the_way_to_yaml_and_back():
    labels = (
        "\x85",
        "\u2028",
        "\ufeff",
        "a\nb",
        "\t",
        "\x00",
        "好",
        "${A}",
        "$${",
        " x ",
        "",
        "null",
        "1e3",
        "<<",
        "=",
        "- a: b #",
    )
    recipe = Recipe(
        teacher=TeacherBlock(model="t"),
        task=TaskBlock(
            kind="classification", data="d", labels=labels, label_map=dict(zip(labels, labels, strict=True))
        ),
    )
    text = recipe_to_yaml(recipe)
    assert parse_recipe(text) == recipe
    assert "好" in text


texts = st.text(max_size=20)
trainings = st.builds(
    Training,
    epochs=st.floats(0.01, 100),
    learning_rate=st.floats(1e-8, 1),
    batch_size=st.integers(1, 512),
    schedule=st.sampled_from(["linear", "cosine", "constant"]),
    freeze=st.sampled_from([(), ("embeddings",), ("embeddings", "encoder")]),
    patience=st.none() | st.integers(1, 9),
)
steps = st.one_of(
    st.builds(
        LogitDistillation, temperature=st.floats(0.1, 100), loss=st.sampled_from(["kl", "mse"]), training=trainings
    ),
    st.builds(DistilBertDistillation, alpha_cos=st.floats(0, 9), epochs=st.integers(1, 9)),
    st.builds(
        LayerPruning,
        keep=st.lists(st.integers(0, 40), min_size=1, max_size=4, unique=True).map(lambda v: tuple(sorted(v))),
    ),
)
recipes = st.builds(
    Recipe,
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 .+_-]{0,20}", fullmatch=True),
    seed=st.integers(0, 2**32 - 1),
    task=st.builds(
        TaskBlock,
        kind=st.sampled_from(["classification", "tagging"]),
        data=texts,
        labels=st.none() | st.lists(texts, max_size=4).map(tuple),
        label_map=st.none() | st.dictionaries(texts, texts, max_size=3),
        class_weights=st.none() | st.just("balanced") | st.dictionaries(texts, st.floats(0, 10), max_size=3),
        limit=st.none() | st.dictionaries(texts, st.integers(1, 10**12), max_size=2),
    ),
    teacher=st.builds(
        TeacherBlock,
        model=texts.filter(bool) | st.lists(texts, min_size=2, max_size=3).map(tuple),
    ),
    student=st.none() | st.builds(Student, layers=st.integers(1, 12), activation=st.none() | texts),
    training=st.none() | trainings,
    steps=st.lists(steps, max_size=3).map(tuple),
    export=st.lists(st.builds(ExportBlock, onnx=st.builds(TargetBlock, int8=st.booleans())), max_size=2).map(tuple),
    evaluate=st.none() | st.builds(EvaluateBlock, against=texts, margin=st.floats(0, 1), split=texts),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(recipes)
def test_every_recipe_survives_the_way_to_yaml_and_back(recipe):
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe


def test_a_recipe_knows_its_lines_which_are_no_part_of_what_it_says():
    first = parse_recipe("student: {from: m}\nname: a\nsteps: [prune.layers: {count: 1}]\n", "one.yaml")
    second = parse_recipe("name: a\nstudent: {from: m}\nsteps: [prune.layers: {count: 1}]\n", "two.yaml")
    assert first.where(("steps", 0)) == "one.yaml:3: "
    assert first.model_copy(update={"seed": 2}).where(("student", "from")) == "one.yaml:1: "
    assert second.where(("name",)) == "two.yaml:1: "
    assert first == second
    assert Recipe().where(("name",)) == ""


def test_every_target_is_a_block_of_its_own():
    from compress.export.targets.target_options import OpenVinoBlock
    from compress.export.targets.target_registry import BUILT_IN
    from compress.recipe.blocks import ExportBlock, TargetBlock

    assert set(ExportBlock.model_fields) == set(BUILT_IN)
    recipe = parse_recipe("seed: 1\nteacher: {model: x}\nexport: [{openvino: {int8: true}}, ort]\n")
    assert [(block.target, block.settings) for block in recipe.export] == [
        ("openvino", OpenVinoBlock(int8=True)),
        ("ort", TargetBlock()),
    ]
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe
    for values in ({}, {"onnx": {}, "ort": {}}):
        with pytest.raises(ValueError, match="name one target, of onnx, ort, openvino, executorch, web"):
            ExportBlock.model_validate(values)


def test_steps_are_a_part_of_the_schema():
    plain = {
        "student": {"from": "m"},
        "steps": ["quantize.dynamic", {"distill.logits": {"temperature": 3, "epochs": 1}}],
    }
    recipe = Recipe.model_validate(plain)
    assert recipe.steps == (DynamicQuantization(), LogitDistillation(temperature=3, epochs=1))
    again = recipe.model_dump(mode="json", by_alias=True)["steps"]
    assert [list(step) for step in again] == [["quantize.dynamic"], ["distill.logits"]]
    assert again[1]["distill.logits"]["training"]["epochs"] == 1.0
    assert Recipe.model_validate({"steps": again}).steps == recipe.steps
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate({"steps": [{"distill.logits": {"temprature": 3, "epochs": -1}}, "distil.pkd"]})
    assert [error["msg"] for error in caught.value.errors()] == [
        "steps[0].distill.logits.training.epochs: got -1, must be a number above 0 and at most 10000",
        "steps[0].distill.logits: unknown field 'temprature'; did you mean 'temperature'?",
        "steps[1]: unknown technique 'distil.pkd'; did you mean 'distill.pkd'?",
    ]
    assert caught.value.errors()[0]["loc"] == ("steps", 0, "distill.logits", "epochs")
