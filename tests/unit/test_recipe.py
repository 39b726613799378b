"""Reading recipes: what is understood, what is refused and with which words, and the way back to YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compress.blocks import EvaluateBlock, ExportBlock, FinetuneBlock, LatencyBlock, OnnxBlock, TaskBlock, TeacherBlock
from compress.distill.distilbert import DistilBertDistillation
from compress.distill.logits import LogitDistillation
from compress.prune.layers import LayerPruning
from compress.quantize.dynamic import DynamicQuantization
from compress.recipe import (
    Recipe,
    parse_recipe,
    problems,
    read_recipe,
    recipe_from_plain,
    recipe_to_plain,
    recipe_to_yaml,
)
from compress.student import Student
from eval.errors import UserError
from teachers.config import Training

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
        export=(ExportBlock(onnx=OnnxBlock(int8=True)),),
        evaluate=EvaluateBlock(against="teacher", margin=0.01, latency=LatencyBlock(batch=(1, 8, 32), lengths="data")),
    )
    assert parse_recipe(WHOLE) == written
    assert parse_recipe(recipe_to_yaml(written)) == written


def test_training_of_the_recipe_stands_below_that_of_a_step_and_above_the_technique_s_own():
    recipe = parse_recipe(WHOLE)
    logits, distilbert, _ = recipe.steps
    assert logits.training == Training(epochs=3, learning_rate=1e-4)
    own = DistilBertDistillation().training
    assert (own.warmup, own.betas) == (0.05, (0.9, 0.98))
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
            ("steps.1.distill.distilbert.training.warmup=0", lambda r: r.steps[1].training.warmup, 0.0),
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


MISTAKES = """\
name: a/b
sed: 13
task: {kind: clasification, metrics: accuracy, max_length: 2}
student: {from: teacher, layers: [0, x]}
training: {epochs: true, schedule: liner, betas: [0.9]}
steps:
  - quantize.dynamic
  - distill.logits: {temprature: 2.0, alpha: high, epochs: -1, temperature: yes}
  - distil.logits:
  - distill.logits:
    alpha: 1
  - [a]
  - distill.logits: hello
export:
  - onnx: {int8: maybe}
  - tflite
evaluate: {against: [1], margin: -1, latency: {batch: [], lengths: dat}}
evaluate: none
"""


def test_every_mistake_is_told_at_once_with_its_line():
    assert refused(MISTAKES) == (
        "recipe.yaml:1: name: 'a/b' must be up to 100 letters, digits, spaces or . + - _, with a letter or digit first",
        "recipe.yaml:2: unknown field 'sed'; did you mean 'seed'?",
        "recipe.yaml:3: task: kind: got 'clasification', "
        "must be one of 'classification', 'regression', 'tagging', 'qa', 'masked-lm'",
        "recipe.yaml:3: task: max_length: got 2, must be a whole number of at least 4",
        "recipe.yaml:3: task: unknown field 'metrics'; did you mean 'metric'?",
        "recipe.yaml:4: student: layers: got [0, 'x'], must be a whole number of at least 1 or a list of whole numbers",
        "recipe.yaml:5: training: schedule: got 'liner', must be one of 'linear', 'cosine', 'constant'",
        "recipe.yaml:5: training: betas: got [0.9], must be a list of 2 numbers",
        "recipe.yaml:5: training: epochs: got true or false, must be a number",
        "recipe.yaml:8: step 2, distill.logits: training.epochs: got -1, must be a number above 0 and at most 10000",
        "recipe.yaml:8: step 2, distill.logits: alpha: got 'high', must be a number between 0 and 1",
        "recipe.yaml:8: step 2, distill.logits: unknown field 'temprature'; did you mean 'temperature'?",
        "recipe.yaml:8: step 2, distill.logits: temperature: got true or false, must be a number",
        "recipe.yaml:9: step 3: unknown technique 'distil.logits'; did you mean 'distill.logits'?",
        "recipe.yaml:10: step 4: the fields of distill.logits must be indented further than its name",
        "recipe.yaml:12: step 5: got ['a'], must be one name with its fields, "
        "such as 'distill.logits: {temperature: 2.0}'",
        "recipe.yaml:13: step 6, distill.logits: got 'hello', "
        "must be a block with the fields training, temperature, alpha, loss",
        "recipe.yaml:15: export 1: onnx.int8: got 'maybe', must be true or false",
        "recipe.yaml:16: export 2: unknown format 'tflite'; allowed: onnx",
        "recipe.yaml:17: evaluate: against: got [1], must be text",
        "recipe.yaml:17: evaluate: margin: got -1, must be a number of at least 0",
        "recipe.yaml:17: evaluate: latency.batch: got [], must not be empty",
        "recipe.yaml:17: evaluate: latency.lengths: got 'dat', must be 'data' or a whole number of at least 1",
        "recipe.yaml:18: 'evaluate' is given twice, first in line 17",
    )


def test_a_place_on_a_line_of_its_own_is_that_line():
    text = "teacher:\n  model: t\ntask:\n  kind: regression\n  data: d\n  limit:\n    train: 0\n"
    assert refused(text) == ("recipe.yaml:7: task: limit.train: got 0, must be a whole number of at least 1",)


def test_text_where_yaml_reads_something_else_is_told_to_be_quoted():
    (found,) = refused("teacher: {model: t}\ntask: {kind: classification, data: d, labels: [no, maybe]}")
    assert found == "recipe.yaml:2: task: labels[0]: got false, must be text; put it in quotes"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "recipe.yaml: the recipe is empty; 'compress init' writes one to start from"),
        ("# nothing\n", "recipe.yaml: the recipe is empty"),
        ("- a\n- b\n", "recipe.yaml: got ['a', 'b'], a recipe must be a mapping such as 'seed: 13'"),
        ("just text", "recipe.yaml: got 'just text', a recipe must be a mapping"),
        ("teacher:\n\tmodel: t\n", "recipe.yaml:2: a tab stands where only spaces may; indent with spaces"),
        ("a: 1\n---\nb: 2\n", "recipe.yaml:2: a second document begins here"),
        ("seed: [1\nname: x\n", "recipe.yaml:2: not valid YAML: expected ',' or ']', but got ':'"),
        ("name: a\x00b", "recipe.yaml:1: the character U+0000 cannot stand in YAML"),
        ('name: "\\U99999999"', "recipe.yaml: not valid YAML: a number or an escape is out of range"),
        ("? [a]\n: 1\n", "recipe.yaml:1: a key must be text"),
        ("name: !!python/name:os.system x", "the tag '!!python/name:os.system' is not allowed here"),
        ("name: !mine x", "recipe.yaml:1: the tag '!mine' is not allowed here"),
        ("name: !!binary aGk=", "recipe.yaml:1: the tag '!!binary' is not allowed here"),
        ("seed: !!int ''", "recipe.yaml:1: '' is not an int"),
        ("seed: " + "9" * 5000, "recipe.yaml:1: '9999999999999999999999999999999999999999' is not an int"),
        ("seed: 1e400", "recipe.yaml:1: seed: got '1e400', must be a whole number"),
        ("seed: .nan", "recipe.yaml:1: seed: got nan, must be a whole number"),
        ("name: 2026-13-45", "recipe.yaml:1: there is no model; give a teacher, a student, or both"),
        ("a: &a\n  <<: *a\n", "recipe.yaml:1: nested deeper than 40 levels"),
        ("a: &a [*a]", "recipe.yaml:1: nested deeper than 40 levels"),
        ("[" * 5_000, "recipe.yaml: nested deeper than 40 levels"),
        ("a: {<<: 3}", "recipe.yaml:1: '<<' merges a mapping or a list of mappings"),
        ("#" * 1_000_001, "recipe.yaml: longer than 1,000,000 characters"),
    ],
)
def test_hostile_text_gives_one_plain_message(text, problem):
    assert problem in "\n".join(refused(text))


def test_an_alias_bomb_is_refused_before_it_grows():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "more than 10,000 values, aliases expanded" in refused("\n".join(lines))[0]
    merges = ["a0: &a0 {k: 1}"]
    merges += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}" for i in range(1, 10)]
    assert "more than 10,000 values, aliases expanded" in refused("\n".join(merges))[0]


def test_anchors_and_merges_work():
    text = """\
teacher: {model: t, finetune: &how {epochs: 2, batch_size: 8}}
task: {kind: regression, data: d}
training: {<<: *how, epochs: 5}
"""
    assert parse_recipe(text).training == Training(epochs=5, batch_size=8)


class TestFiles:
    def test_line_of_a_byte_that_is_not_utf_8(self, tmp_path):
        path = tmp_path / "recipe.yaml"
        path.write_bytes(b"name: a\nteacher: {model: \xff}\n")
        with pytest.raises(UserError, match=r"recipe.yaml:2: not UTF-8 text \(byte 0xff\); save it as UTF-8"):
            read_recipe(path)

    def test_byte_order_mark_and_windows_line_ends(self, tmp_path):
        path = tmp_path / "recipe.yaml"
        path.write_bytes(b"\xef\xbb\xbfname: a\r\nteacher: {model: t}\r\n")
        assert read_recipe(path).name == "a"

    def test_missing_file_and_folder(self, tmp_path):
        with pytest.raises(UserError, match=r"none.yaml: the recipe cannot be read \(No such file or directory\)"):
            read_recipe(tmp_path / "none.yaml")
        with pytest.raises(UserError, match=r"the recipe cannot be read \(it is a folder\)"):
            read_recipe(tmp_path)


class TestProblems:
    def test_training_after_freezing(self):
        recipe = Recipe(
            task=TaskBlock(kind="regression", data="d"),
            teacher=TeacherBlock(model="t"),
            steps=(DynamicQuantization(), LogitDistillation()),
        )
        assert problems(recipe) == [
            "step 2, distill.logits: trains, but step 1, quantize.dynamic, leaves weights that cannot be trained; "
            "put it before"
        ]

    def test_missing_inputs(self):
        recipe = Recipe(student=Student(from_="somewhere"), steps=(LogitDistillation(),))
        assert problems(recipe) == [
            "step 1, distill.logits: needs a teacher, and there is none",
            "step 1, distill.logits: needs a task with training data, and there is none",
        ]
        assert problems(recipe, have=("train", "teacher")) == []

    def test_blocks_that_need_other_blocks(self):
        assert problems(Recipe()) == ["there is no model; give a teacher, a student, or both"]
        assert problems(Recipe(student=Student(), evaluate=EvaluateBlock())) == [
            "student: is made from a teacher, and there is none; give from: a model folder or hub name",
            "evaluate: needs a task",
            "evaluate.against: there is no teacher; write 'none' or a model folder",
        ]
        assert problems(Recipe(teacher=TeacherBlock(model=("a", "b"), finetune=FinetuneBlock()))) == [
            "teacher.finetune: needs a task to fine-tune on",
            "teacher.finetune: takes one base, and model names several",
        ]

    def test_they_carry_their_line_in_a_file(self):
        text = "teacher: {model: t}\nsteps:\n  - prune.layers: {keep: [0]}\n  - distill.logits\n"
        assert refused(text) == (
            "recipe.yaml:4: step 2, distill.logits: needs a task with training data, and there is none",
        )


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
    export=st.lists(st.builds(ExportBlock, onnx=st.builds(OnnxBlock, int8=st.booleans())), max_size=2).map(tuple),
    evaluate=st.none() | st.builds(EvaluateBlock, against=texts, margin=st.floats(0, 1), split=texts),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(recipes)
def test_every_recipe_survives_the_way_to_yaml_and_back(recipe):
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe


def test_shipped_recipes_can_be_read():
    for path in sorted(Path("recipes").glob("*.yaml")):
        assert parse_recipe(path.read_text(encoding="utf-8"), str(path)).steps
