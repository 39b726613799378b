"""Questions that may have no answer: scores and thresholds as SQuAD 2.0's script has them, null scores by hand."""

import json

import numpy as np
import pytest

from compress import Artifact, Inputs, Recipe, load, run
from compress.distill.labels import LabelTraining
from compress.distill.logits import LogitDistillation
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from eval.data.loading import load_task
from eval.encoder_settings import EncoderSettings
from eval.encoding import Feature
from eval.errors import UserError
from eval.inference import predict
from eval.kinds.kind_registry import kind_of
from eval.measurement import measure
from eval.metrics.answer_overlap import exact_match, token_f1
from eval.metrics.null_threshold import best_null_threshold
from eval.scores import score
from eval.task import TaskSpec
from teachers.data.encoded_dataset import EncodedDataset
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.config import Training
from tests.tiny import tiny_task, tiny_taskmodel
from tests.unit.test_runtime import program

KIND = kind_of("qa-with-null")
SPEC = TaskSpec(kind="qa-with-null", metric="f1")
GOLD = [["Denver Broncos", "the Broncos"], ["1976"], [], [], ["the", "a cat"]]
SAID = ["Broncos", "", "", "in Rome", ""]
BY_HAND = {
    "f1": (1 + 0 + 1 + 0 + 0) / 5,
    "exact_match": (1 + 0 + 1 + 0 + 0) / 5,
    "has_answer_f1": 1 / 3,
    "has_answer_exact_match": 1 / 3,
    "no_answer_f1": 1 / 2,
    "no_answer_exact_match": 1 / 2,
}


def examples_of(gold):
    return [{"answers": [{"text": text, "answer_start": 0} for text in texts]} for texts in gold]


def test_scores_by_hand():
    """Articles are left out, so "the Broncos" is "broncos"; expected answers without a word are passed over."""
    found = score(SPEC, [{"text": text} for text in SAID], examples_of(GOLD))
    assert found == pytest.approx(BY_HAND)
    half = score(SPEC, [{"text": "Denver"}], examples_of(GOLD[:1]))
    assert (half["f1"], half["exact_match"], half["no_answer_f1"]) == (pytest.approx(2 / 3), 0.0, 0.0)


def official_threshold(margins, spans, has_answer):
    """``find_best_thresh`` of evaluate-v2.0.py: questions are answered one after the other, by their margins."""
    current = best = float(sum(not has for has in has_answer))
    threshold = -np.inf
    for place in np.argsort(margins, kind="stable"):
        current += spans[place] if has_answer[place] else -1
        if current > best:
            best, threshold = current, margins[place]
    return best, threshold


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_scores_as_the_official_search(seed):
    generator = np.random.default_rng(seed)
    has_answer = generator.random(40) < 0.5
    margins = generator.normal(size=40) - 2 * has_answer + 1.5
    spans = np.where(has_answer, generator.random(40).round(1), 0.0)
    best, _ = official_threshold(margins, spans, has_answer)
    threshold = best_null_threshold(margins, spans, (~has_answer).astype(float))
    assert np.where(margins > threshold, ~has_answer, spans).sum() == pytest.approx(best)


def test_thresholds_at_the_ends():
    margins = np.array([-1.0, 1.0])
    assert best_null_threshold(margins, np.zeros(2), np.ones(2)) == -2.0  # nothing has an answer
    assert best_null_threshold(margins, np.ones(2), np.zeros(2)) == 2.0
    assert best_null_threshold(margins, np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 0.0


def windows():
    """Two windows of one question: [CLS] question [SEP] two words of the context [SEP], each."""
    example = {"id": "1", "question": "q", "context": "ann left rome today"}
    inside = [[(0, 3), (4, 8)], [(9, 13), (14, 19)]]
    features = [Feature(0, [1] * 6, [0] * 6, offsets=[None, None, None, *spans, None]) for spans in inside]
    first, second = np.zeros((6, 2)), np.zeros((6, 2))
    first[0], first[3], first[4] = (2.0, 2.5), (1.0, 0.5), (0.2, 0.1)
    second[0], second[3], second[4] = (1.0, 0.5), (0.5, 2.0), (0.0, 0.3)
    return example, features, [first, second]


@pytest.mark.parametrize(("threshold", "text"), [((), "rome"), ((-0.5,), "rome"), ((-1.1,), "")])
def test_nothing_is_answered_where_the_null_score_is_larger_by_the_threshold(threshold, text):
    """The null score is that of the second window, 1.5; the best span is "rome" with 2.5: null less span is -1."""
    example, features, outputs = windows()
    settings = EncoderSettings(kind="qa-with-null", pair=True, thresholds=threshold)
    (answer,), logits = KIND.decode(settings, [example], features, outputs)
    assert answer["text"] == text
    assert (answer["candidate"], answer["score"], answer["null_score"]) == ("rome", 2.5, 1.5)
    assert logits[0].tolist() == [2.5, 1.5]


def test_the_classifier_token_may_stand_last():
    example, features, outputs = windows()
    settings = EncoderSettings(kind="qa-with-null", pair=True, pad_side="left")
    for output in outputs:
        output[[0, 5]] = output[[5, 0]]
    assert KIND.decode(settings, [example], features, outputs)[0][0]["null_score"] == 1.5


def test_windows_that_turn_are_counted():
    _, (feature, _), (first, second) = windows()
    settings = EncoderSettings(kind="qa-with-null", pair=True)
    assert KIND.regret(settings, feature, first, first).tolist() == [0.0]
    assert KIND.regret(settings, feature, first, second).tolist() == [pytest.approx(3.0)]  # 4.5 - 1.5 = 3, then -1
    assert KIND.regret(settings, feature, second, second).tolist() == [0.0, 0.0, 0.0]
    assert KIND.regret(settings, feature, second, first).tolist()[0] == pytest.approx(1.0)


def test_questions_without_answers_are_read(tmp_path):
    told = {"id": "1", "question": "who ?", "context": "ann left", "answers": []}
    paragraph = {"context": "ann left", "qas": [{**told, "is_impossible": True, "plausible_answers": []}]}
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    task = load_task("qa-with-null", tmp_path)
    assert task.train[0]["answers"] == []
    assert task.spec.choose_thresholds
    assert not load_task("qa-with-null", tmp_path, choose_thresholds=False).spec.choose_thresholds
    with pytest.raises(UserError, match="has no answer; kind: qa-with-null reads such questions"):
        load_task("qa", tmp_path)
    with pytest.raises(UserError, match="does not stand at answer_start 1"):
        load_task("qa-with-null", [{**told, "answers": [{"text": "ann", "answer_start": 1}]}])


SHORT = Training(epochs=1, learning_rate=1e-3, batch_size=16)


@pytest.fixture(scope="module")
def task():
    found = tiny_task("qa-with-null")
    spec = found.spec.model_copy(update={"choose_thresholds": True, "max_length": 48})
    return type(found)(spec, found.splits, "tiny")


@pytest.fixture(scope="module")
def trained(task, tmp_path_factory):
    folder = tmp_path_factory.mktemp("null") / "model"
    steps = (LabelTraining(training=Training(epochs=4, learning_rate=3e-3, batch_size=16)),)
    run(
        Recipe(steps=steps), tiny_taskmodel("bert", task.spec), Inputs(train=task.train, validation=task.validation)
    ).save(folder)
    return load(folder)


def test_a_question_without_answer_has_the_classifier_token_as_target(task):
    model = tiny_taskmodel("bert", task.spec)
    rows = EncodedDataset(task.train, model.encoder, model.task)
    batch = rows.batch(list(range(len(rows))))
    nothing = [not task.train[feature.example]["answers"] for feature in rows.features]
    assert [int(start) == 0 for start in batch.targets["start_positions"]] == nothing
    left = tiny_taskmodel("xlnet", task.spec)
    rows = EncodedDataset(task.train, left.encoder, left.task)
    batch = rows.batch(list(range(len(rows))))
    last = batch.inputs["input_ids"].shape[1] - 1
    nothing = [not task.train[feature.example]["answers"] for feature in rows.features]
    assert [int(start) == last for start in batch.targets["start_positions"]] == nothing


def test_the_threshold_is_chosen_distilled_and_exported(trained, task, tmp_path):
    (threshold,) = trained.task.thresholds
    assert trained.lineage[-1].facts["thresholds"] == [threshold]
    usual = Artifact(trained.model, trained.tokenizer, task.spec)
    assert measure(trained, task).score >= measure(usual, task).score
    found = measure(trained, task, split="test")
    assert list(found.scores) == [*BY_HAND]
    parts = [sum(map(bool, (not e["answers"] for e in task.test))), sum(bool(e["answers"]) for e in task.test)]
    mean = (parts[0] * found.scores["no_answer_f1"] + parts[1] * found.scores["has_answer_f1"]) / sum(parts)
    assert found.scores["f1"] == pytest.approx(mean)
    step = LogitDistillation(training=SHORT, alpha=0.7)
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(trained))
    student = run(Recipe(steps=(step,)), trained, inputs)
    assert measure(student, task, split="test", against=trained).comparison.agreement["answered"] > 0.6
    report = export_onnx(student, tmp_path / "onnx", examples=task.validation)
    assert (report.gate.passed, report.gate.agreement) == (True, 1.0)
    own = [answer["text"] for answer in predict(student, task.test).answers]
    runtime = Runtime(tmp_path / "onnx")
    assert runtime.encoder.settings.thresholds == student.task.thresholds
    questions = [{name: example[name] for name in ("question", "context")} for example in task.test]
    assert [answer["text"] for answer in runtime.predict(questions).answers] == own
    done = program(tmp_path / "onnx", stdin="\n".join(map(json.dumps, questions[:4])).encode())
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == own[:4], done.stderr.decode()


def test_a_score_is_that_of_single_questions():
    answers, examples = [{"text": text} for text in SAID], examples_of(GOLD)
    assert KIND.values(SPEC, answers, examples).tolist() == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert (token_f1("", ""), exact_match("", "")) == (1.0, 1.0)
