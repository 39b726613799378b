"""What recipes are refused for, and with which words; hostile text included."""

from __future__ import annotations

import pytest

from compress.distill.logits import LogitDistillation
from compress.prune.layers import LayerPruning
from compress.quantize.dynamic import DynamicQuantization
from compress.recipe import Recipe, parse_recipe, problems, read_recipe
from compress.recipe.blocks import EvaluateBlock, FinetuneBlock, TaskBlock, TeacherBlock
from compress.student.student import Student
from eval.errors import UserError
from teachers.training.config import Training
from tests.unit.test_recipe import refused

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
        "must be one of 'classification', 'multilabel', 'regression', 'tagging', 'qa', 'qa-with-null', 'masked-lm', "
        "'causal-lm', 'seq2seq', 'embedding', 'multiple-choice', 'retrieval', 'reranking'",
        "recipe.yaml:3: task: max_length: got 2, must be a whole number of at least 4",
        "recipe.yaml:3: task: unknown field 'metrics'; did you mean 'metric'?",
        "recipe.yaml:4: student: layers: got [0, 'x'], must be a whole number of at least 1 or a list of whole numbers",
        "recipe.yaml:5: training: schedule: got 'liner', must be one of 'linear', 'cosine', 'constant', 'noam', "
        "'slanted_triangular'",
        "recipe.yaml:5: training: betas: got [0.9], must be a list of 2 numbers",
        "recipe.yaml:5: training: epochs: got true or false, must be a number",
        "recipe.yaml:8: step 2, distill.logits: training.epochs: got -1, must be a number above 0 and at most 10000",
        "recipe.yaml:8: step 2, distill.logits: alpha: got 'high', must be a number between 0 and 1 "
        "or a block with the fields from, to, shape",
        "recipe.yaml:8: step 2, distill.logits: unknown field 'temprature'; did you mean 'temperature'?",
        "recipe.yaml:8: step 2, distill.logits: temperature: got true or false, must be a number",
        "recipe.yaml:9: step 3: unknown technique 'distil.logits'; did you mean 'distill.logits'?",
        "recipe.yaml:10: step 4: the fields of 'distill.logits' must be indented further than its name",
        "recipe.yaml:12: step 5: got ['a'], must be one name with its fields, "
        "such as 'distill.logits: {temperature: 2.0}'",
        "recipe.yaml:13: step 6, distill.logits: got 'hello', "
        "must be a block with the fields training, temperature, alpha, loss",
        "recipe.yaml:15: export 1: onnx.int8: got 'maybe', must be true or false",
        "recipe.yaml:16: export 2: unknown format 'tflite'; "
        "allowed: executorch, fastest, generator, onnx, openvino, ort, triton, web",
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
        (
            "seed: [1\nname: x\n",
            "recipe.yaml:2: not valid YAML: expected ',' or ']', but got ':' (while parsing a flow sequence that "
            "begins in line 1)",
        ),
        ("name: a\x00b", "recipe.yaml:1: the character U+0000 cannot stand in YAML"),
        ('name: "\\U99999999"', "recipe.yaml: not valid YAML: a number or an escape is out of range"),
        ("? [a]\n: 1\n", "recipe.yaml:1: a key must be text"),
        ("name: !!python/name:os.system x", "the tag '!!python/name:os.system' is not allowed here"),
        ("name: !mine x", "recipe.yaml:1: the tag '!mine' is not allowed here"),
        ("name: !!binary aGk=", "recipe.yaml:1: the tag '!!binary' is not allowed here"),
        ("seed: !!int ''", "recipe.yaml:1: '' is not an int"),
        (
            "seed: " + "9" * 5000,
            "9999… is not an int",
        ),
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

    @pytest.mark.parametrize(
        ("scheme", "refused"),
        [({"exclude": ("*.layer.5.*",)}, True), ({"keep_float": "auto"}, True), ({"exclude": ("classifier",)}, False)],
    )
    def test_a_step_after_8_bits_that_name_layers(self, scheme, refused):
        steps = (DynamicQuantization(**scheme), LayerPruning(keep=(0, 2)))
        found = problems(Recipe(steps=steps), have={"calibration", "train"})
        sentence = (
            "step 2, prune.layers: comes after step 1, quantize.dynamic, which must be the last step; put it before"
        )
        assert found == [sentence] * refused

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
        ]

    def test_what_has_no_answers_is_not_evaluated(self):
        text = (
            "teacher: {model: t}\nsteps: [prune.layers: {count: 1}]\nevaluate: {baseline: true}\ntask: {data: d, kind: "
        )
        (found,) = refused(text + "masked-lm}")
        assert found.startswith("recipe.yaml:3: evaluate: a text without labels has no answers to score; leave the")
        (found,) = refused(text + "embedding}")
        assert found.startswith("recipe.yaml:3: evaluate.baseline: an embedding task has no labels to learn from")

    def test_an_index_is_of_vectors_that_are_searched(self):
        text = "teacher: {model: t}\nexport: [onnx]\nevaluate: {index: [{vectors: int8}, {vectors: int8}]}\n"
        text += "task: {data: d, kind: "
        assert refused(text + "reranking}") == (
            "recipe.yaml:3: evaluate.index: a reranking task searches no vectors; leave it out",
            "recipe.yaml:3: evaluate.index: int8: stands there twice; say it once",
        )
        (found,) = refused(text.replace("{vectors: int8}]", "{vectors: int8, rescore: int8}]") + "retrieval}")
        assert "int8 vectors are ranked by their products at once; leave it out" in found

    def test_perturbed_texts_and_attributions_need_a_reference(self):
        text = (
            "teacher: {model: t}\nsteps: [prune.layers: {count: 1}]\ntask: {data: d, kind: classification}\n"
            "evaluate: {stress: true, attributions: true, against: "
        )
        assert refused(text + "none}") == (
            "recipe.yaml:4: evaluate.stress: compares the result with a reference; name one as evaluate.against",
            "recipe.yaml:4: evaluate.attributions: compares the result with a reference; name one as evaluate.against",
        )
        assert parse_recipe(text + "teacher}").evaluate.attributions

    def test_they_carry_their_line_in_a_file(self):
        text = "teacher: {model: t}\nsteps:\n  - prune.layers: {keep: [0]}\n  - distill.logits\n"
        assert refused(text) == (
            "recipe.yaml:4: step 2, distill.logits: needs a task with training data, and there is none",
        )
