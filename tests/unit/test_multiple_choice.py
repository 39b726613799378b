"""Multiple choice: the published formats, choices as rows, their loss, and a model from training to prediction."""

import csv
import json
import math

import numpy as np
import pytest
import torch
import transformers

from compress.augment.block import AugmentBlock
from compress.cli import main
from compress.distill.bilstm import BiLstmDistillation
from compress.distill.components.distillation_losses import kl_divergence, paired_logits
from compress.distill.logits import LogitDistillation
from compress.engine.steps import problems
from compress.export import export_onnx, export_web
from compress.export.check.gate import compare
from compress.export.runtime.answering import ExportError, Runtime
from compress.export.runtime.given_example import example as read_line
from compress.recipe.blocks import TaskBlock
from compress.recipe.checks import augment_problems
from compress.sample_loss import SampleLoss
from compress.technique import Inputs
from eval.data.loading import load_task
from eval.errors import UserError
from eval.files.rows import Row
from eval.inference import predict
from eval.kinds.choice_formats import choice_rows, filled
from eval.kinds.multiple_choice import IMPOSSIBLE, joined_choices
from eval.measurement import measure
from eval.task import Examples
from teachers import task_settings
from teachers.losses.task_loss import TaskLoss, task_loss
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import build_taskmodel, load_taskmodel, save_taskmodel
from teachers.training.config import Training
from teachers.training.loop import train
from teachers.training.scoring import rows_of, scores
from tests.tiny import FAMILIES, tiny_config, tiny_spec, tiny_task, tiny_taskmodel, tiny_tokenizer

SPEC = tiny_spec("multiple-choice")
UNEVEN = Examples(
    [
        {"text": "ann likes it .", "choices": ["the film is bad", "the film is good"], "label": 1},
        {"text": "bob lives in rome .", "choices": ["a", "the", "it is quite good"], "label": 0},
        {"text": "emma", "choices": ["not", "good and very happy and warm", "bad", "dull"]},
    ]
)
SWAG = {
    "sent1": "He opens the hood.",
    "sent2": "He",
    "startphrase": "He opens the hood. He",
    **{f"ending{i}": text for i, text in enumerate(("sings.", "looks at the engine.", "sleeps.", "is blue."))},
}
RACE = {
    "article": "Tom has a red cat.",
    "questions": ["What is red?", "Tom has a _ cat."],
    "options": [["The dog", "The cat"], ["red", "blue"]],
    "answers": ["B", "A"],
    "id": "middle1.txt",
}
ASKED = [
    {"text": RACE["article"], "choices": ["What is red? The dog", "What is red? The cat"], "label": 1},
    {"text": RACE["article"], "choices": ["Tom has a red cat.", "Tom has a blue cat."], "label": 0},
]


@pytest.fixture(scope="module")
def task():
    return tiny_task("multiple-choice", examples=24)


@pytest.fixture(scope="module")
def trained(task):
    model = tiny_taskmodel("bert", task.spec, seed=1)
    history = train(model, task.train, training=Training(epochs=6, learning_rate=5e-3, batch_size=6))
    return model, history


def load(folder, name, text, **options):
    (folder / name).write_text(text, encoding="utf-8")
    return load_task("multiple-choice", data=folder, **options)


# ---- data


def test_swag_as_csv(tmp_path):
    with (tmp_path / "train.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*SWAG, "label"])
        writer.writeheader()
        writer.writerow(SWAG | {"label": 1})
    found = load_task("multiple-choice", data=tmp_path)
    expected = ["He sings.", "He looks at the engine.", "He sleeps.", "He is blue."]
    assert [dict(one) for one in found.train] == [{"text": "He opens the hood.", "choices": expected, "label": 1}]
    assert (found.spec.kind, found.spec.metric, found.spec.labels) == ("multiple-choice", "accuracy", ())
    assert found.spec.truncation == "only_first"


def test_swag_as_lines_with_and_without_labels(tmp_path):
    whole = {key: value for key, value in SWAG.items() if not key.startswith("sent")}
    load(tmp_path, "test.jsonl", json.dumps(SWAG | {"label": -1}) + "\n")
    found = load(tmp_path, "train.jsonl", json.dumps(whole | {"label": "3"}) + "\n")
    assert dict(found.test[0]) == {"text": SWAG["sent1"], "choices": [f"He {SWAG[f'ending{i}']}" for i in range(4)]}
    endings = [SWAG[f"ending{i}"] for i in range(4)]
    assert dict(found.train[0]) == {"text": SWAG["startphrase"], "choices": endings, "label": 3}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.jsonl", json.dumps(RACE)),
        ("train.json", json.dumps(RACE, indent=1)),
        ("train.json", json.dumps([RACE], indent=1)),
        (
            "train.jsonl",
            "\n".join(
                json.dumps({"article": RACE["article"], "question": q, "options": o, "answer": a})
                for q, o, a in zip(RACE["questions"], RACE["options"], RACE["answers"], strict=True)
            ),
        ),
    ],
    ids=["lines", "article", "array", "questions"],
)
def test_race(tmp_path, name, text):
    read = load(tmp_path, name, text).train
    assert [{key: one[key] for key in one if key != "group"} for one in read] == ASKED
    assert len({one["group"] for one in read}) == 1  # questions about one article


def test_a_blank_takes_the_option():
    assert filled("He is _ and ___ .", r"\1") == r"He is \1 and \1 ."
    assert filled("Why?", "Because.") == "Why? Because."


def test_bad_items_are_named_together_with_their_place(tmp_path):
    rows = [
        {"text": "t", "choices": ["a", "b"], "label": 2},
        {"text": "t", "choices": ["a"], "label": 0},
        {"text": "t", "choices": ["a", "b"], "label": "yes"},
        RACE | {"answers": ["A"]},
        RACE | {"answers": ["A", "D"]},
        {"text": "t", "choices": ["a", "b"], "label": "B"},
    ]
    with pytest.raises(UserError) as caught:
        load(tmp_path, "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    place = str(tmp_path / "train.jsonl")
    allowed = "'label' must be the place of one of the 2 choices, 0 to 1 or a letter from A, not"
    assert list(caught.value.problems) == [
        f"{place}:1: {allowed} 2",
        f"{place}:2: 'choices' must be a list of two strings or more, not ['a']",
        f"{place}:3: {allowed} 'yes'",
        f"{place}:4: questions, options and answers must be lists with one item a question",
        f"{place}:5: question 2: {allowed} 3",
    ]


def test_columns_that_are_named_are_taken_as_they_are(tmp_path):
    row = {"article": "t", "ending0": ["x", "y"], "label": 1}
    found = load(tmp_path, "train.jsonl", json.dumps(row), columns={"text": "article", "choices": "ending0"})
    assert dict(found.train[0]) == {"text": "t", "choices": ["x", "y"], "label": 1}
    assert list(choice_rows([Row("here", problem="broken")])) == [Row("here", problem="broken")]


# ---- choices as rows


def test_every_choice_is_read_with_its_text_and_the_text_is_cut_first():
    model = tiny_taskmodel("bert", SPEC.model_copy(update={"truncation": "only_first", "max_length": 12}))
    item = {"text": "the film was very good and warm and bright", "choices": ["it is good", "a very dull song in rome"]}
    features = model.encoder.encode([item, UNEVEN[0]])
    assert [feature.example for feature in features] == [0, 0, 1, 1]
    texts = [model.tokenizer.decode(feature.ids) for feature in features]
    assert texts[:2] == [
        "[CLS] the film was very good and [SEP] it is good [SEP]",
        "[CLS] the film was [SEP] a very dull song in rome [SEP]",
    ]
    assert [feature.type_ids.count(1) for feature in features[:2]] == [4, 7]
    endless = {"text": "good", "choices": ["bad " * 20, "a"]}
    assert [len(feature.ids) for feature in model.encoder.encode([endless])] == [12, 5]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gpt2"])
def test_scores_and_loss_are_those_of_the_stock_network(family, task):
    model = tiny_taskmodel(family, task.spec)
    assert type(model.model).__name__.endswith("ForMultipleChoice")
    batch = rows_of(model, task.train[:4], 0).batch([2, 0, 3])
    assert batch.inputs["input_ids"].shape[0] == 9
    assert batch.rows.tolist() == [6, 7, 8, 0, 1, 2, 9, 10, 11]
    stock = {name: tensor.reshape(3, 3, -1) for name, tensor in batch.inputs.items()}
    with torch.no_grad():
        expected = model.model(**stock, labels=batch.targets["labels"])
        rows = model.model(**batch.inputs).logits
    assert rows.shape == (9, 1)
    torch.testing.assert_close(joined_choices(rows, batch.targets["choices"]), expected.logits)
    torch.testing.assert_close(task_loss(model.task, rows, batch), expected.loss)


def test_the_loss_by_hand_where_examples_differ_in_their_choices():
    model = tiny_taskmodel("bert", SPEC)
    rows = rows_of(model, UNEVEN, 0)
    assert (len(rows), rows.lengths) == (3, [max(rows.tokens[:2]), max(rows.tokens[2:5]), max(rows.tokens[5:])])
    batch = rows.batch([0, 1, 2])
    logits = torch.tensor([1.0, 2.0, 0.5, 0.0, -1.0, 3.0, 1.0, 1.0, 1.0])[:, None]
    first = math.log(math.exp(1) + math.exp(2)) - 2
    second = math.log(math.exp(0.5) + 1 + math.exp(-1)) - 0.5
    assert float(task_loss(SPEC, logits, batch)) == pytest.approx((first + second) / 2), "the third has no label"
    joined = joined_choices(logits, batch.targets["choices"])
    assert joined[0].tolist() == [1.0, 2.0, pytest.approx(IMPOSSIBLE), pytest.approx(IMPOSSIBLE)]
    ((own, other),) = paired_logits(SPEC, logits, 2 * logits, batch)
    teacher, student = [1 / (1 + math.exp(2)), 1 / (1 + math.exp(-2))], [1 / (1 + math.e), 1 / (1 + 1 / math.e)]
    by_hand = sum(p * math.log(p / q) for p, q in zip(teacher, student, strict=True))
    assert float(kl_divergence(own[:1], other[:1])) == pytest.approx(by_hand, rel=1e-5)
    assert float(kl_divergence(own, own, temperature=0.01)) == 0.0


def test_a_batch_is_cut_between_examples():
    model = tiny_taskmodel("bert", SPEC)
    rows = rows_of(model, UNEVEN, 0)
    batch = rows.batch([2, 0, 1])
    assert len(batch) == 3
    pieces = [batch.part(0, 2), batch.part(2, 3)]
    assert [len(piece) for piece in pieces] == [2, 1]
    assert [piece.rows.tolist() for piece in pieces] == [[5, 6, 7, 8, 0, 1], [2, 3, 4]]
    assert [piece.targets["choices"].tolist() for piece in pieces] == [[4, 2], [3]]
    assert [piece.mask.shape[0] for piece in pieces] == [6, 3]
    with torch.no_grad():
        logits = model.model(**batch.inputs).logits
    parts = zip(logits.split([4, 2, 3]), [batch.part(i, i + 1) for i in range(3)], strict=True)
    alone = [task_loss(SPEC, own, piece) for own, piece in parts]
    sample = SampleLoss(model, TaskLoss().bind(model, rows), [rows.batch([2]), rows.batch([0, 1])])
    torch.testing.assert_close((sample.of(0) + sample.of(1)).detach(), torch.stack(alone).sum() / 2)
    assert float(alone[0]) == 0.0  # it has no label, so two are counted


def test_accumulation_leaves_the_update_as_it_is(task):
    found = []
    for accumulation in (1, 4):
        model = tiny_taskmodel("bert", task.spec, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        block = Training(max_steps=2, batch_size=8, gradient_accumulation_steps=accumulation, learning_rate=1e-3)
        found.append((train(model, task.train, training=block)[-1]["loss"], model.model.classifier.weight.detach()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=1e-5)


# ---- learning


def test_it_learns_and_a_student_learns_from_it(trained, task, tmp_path):
    model, history = trained
    assert history[-1]["loss"] < 0.2 < history[0]["loss"]
    assert scores(model, task.test) == {"accuracy": 1.0}
    student = tiny_taskmodel("bert", task.spec, seed=5, num_hidden_layers=1)
    unlabelled = Examples([{key: one[key] for key in ("text", "choices")} for one in task.train], "unlabelled")
    teacher = ModelTeacher(model, cache=tmp_path)
    objective = LogitDistillation(alpha=1.0).make_objective(Inputs(train=unlabelled, teacher=teacher))
    block = Training(epochs=8, learning_rate=5e-3, batch_size=6)
    train(student, unlabelled, objective, block)
    assert scores(student, task.test)["accuracy"] > 0.9
    (cache,) = tmp_path.iterdir()
    kept = np.load(cache / "logits.npy")
    expected = np.concatenate(predict(model, unlabelled).logits)
    np.testing.assert_allclose(kept, expected, atol=1e-5)


def test_an_ensemble_takes_the_mean_score(task):
    models = [tiny_taskmodel(family, task.spec, seed=seed) for seed, family in enumerate(("bert", "roberta"))]
    together = EnsembleTeacher.of(models)
    found, apart = predict(together, task.test), [predict(model, task.test).logits for model in models]
    for logits, one, other in zip(found.logits, *apart, strict=True):
        np.testing.assert_allclose(logits, (one + other) / 2, atol=1e-5)
    answer = found.answers[0]
    probabilities = np.exp(found.logits[0]) / np.exp(found.logits[0]).sum()
    assert answer == {"label": int(probabilities.argmax()), "probability": pytest.approx(float(probabilities.max()))}


def test_it_is_measured(trained, task):
    result = measure(trained[0], task, against=tiny_taskmodel("bert", task.spec))
    assert result.scores["accuracy"] > 0.9 > result.comparison.reference_scores["accuracy"]
    assert 0 <= result.calibration_error < 0.5
    assert set(result.comparison.agreement) == {"labels"}
    assert result.size.macs == tiny_taskmodel("bert", task.spec, seed=7).size().macs > 0


# ---- saving and exporting


def test_stock_transformers_loads_it(trained, task, tmp_path):
    model = trained[0]
    save_taskmodel(model, tmp_path)
    stock = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    item = task.test[0]
    texts = [[item["text"], choice] for choice in item["choices"]]
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = stock(**{name: tensor[None] for name, tensor in inputs.items()}).logits[0].numpy()
    np.testing.assert_allclose(logits, predict(model, [item]).logits[0], atol=1e-5)
    (tmp_path / "task.json").unlink()
    again = load_taskmodel(tmp_path)
    assert (again.task.kind, again.task.truncation) == ("multiple-choice", "only_first")
    assert again.digest == model.digest


@pytest.mark.parametrize("int8", [False, True])
def test_an_export_answers_as_the_model(trained, task, tmp_path, int8, capsys):
    model, folder = trained[0], tmp_path / "out"
    report = export_onnx(model, folder, int8=int8, examples=task.validation)
    assert report.gate.agreement == 1.0
    answers = predict(model, task.test).answers
    assert [one["label"] for one in Runtime(folder).predict(task.test).answers] == [one["label"] for one in answers]
    assert "A line is a text and its choices with tabs between them" in (folder / "README.md").read_text()
    item = task.test[0]
    lines = ["\t".join([item["text"], *item["choices"]]), json.dumps(dict(item))]
    assert main(["predict", str(folder), *lines]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second
    assert first["label"] == answers[0]["label"] == item["label"]
    assert first["probability"] == pytest.approx(answers[0]["probability"], abs=0.05 if int8 else 1e-5)


def test_the_gate_compares_choices_not_scores(task):
    one = tiny_taskmodel("bert", task.spec, seed=1)
    other = tiny_taskmodel("bert", task.spec, seed=2)
    found, expected = (predict(model, task.validation).answers for model in (other, one))
    alike = np.mean([a["label"] == b["label"] for a, b in zip(found, expected, strict=True)])
    assert 0 < alike < 1
    assert compare(other, one, task.validation, tolerance=None, agreement=0.0).agreement == pytest.approx(alike)


def test_lines_and_objects_that_are_no_example():
    for item, said in [
        ("a text\tone choice", "expected text, one tab, and choices"),
        ({"text": "t", "choices": ["a"]}, "choices must be a list of 2 texts or more, got 1"),
        ({"text": "t", "choices": "ab"}, "choices must be a list of texts, got str"),
        ({"text": "t"}, "lacks choices"),
    ]:
        with pytest.raises(ExportError, match=said):
            read_line(item, "multiple-choice", True)


# ---- what is refused


def test_what_cannot_do_it_says_so(task, tmp_path, monkeypatch):
    model = tiny_taskmodel("bert", task.spec)
    found = problems([BiLstmDistillation()], model, Inputs(train=task.train, teacher=ModelTeacher(model)))
    assert any("cannot do multiple-choice with a BiLSTM" in one for one in found)
    with pytest.raises(UserError, match="its page takes one text or two, not a list of choices"):
        export_web(model, tmp_path / "web")
    block = AugmentBlock(rule="bilstm", tagger="en_core_web_sm")
    found = list(augment_problems(block, TaskBlock(kind="multiple-choice", data="d"), {"task", "teacher"}))
    said = "augment: multiple-choice is not augmented; other words may make another choice right"
    assert found == [(("augment",), said)]
    monkeypatch.delitem(task_settings.modeling_auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES, "distilbert")
    with pytest.raises(UserError, match="distilbert has no head for multiple-choice; those that have: bert, roberta"):
        build_taskmodel(tiny_config("distilbert"), tiny_tokenizer("distilbert"), task.spec)
