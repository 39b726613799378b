"""Measuring small models whose every answer is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from eval.comparison import measure_together
from eval.cost.latency import LatencyPlan
from eval.cost.size import Size
from eval.data.loading import Task
from eval.errors import UserError
from eval.measurement import measure, pair
from eval.predictions import Kept
from eval.result import Result
from eval.slices import confusion
from eval.task import Examples, TaskSpec
from tests.unit.bagofwords import WORDS, BagOfWords, encoder, sentiment

SPEC = TaskSpec(kind="classification", labels=("bad", "good"), metric="accuracy")
ITEMS = [
    {"text": "good", "label": "good"},
    {"text": "a good film", "label": "good"},
    {"text": "a fine film", "label": "good"},
    {"text": "very fine", "label": "good"},
    {"text": "bad", "label": "bad"},
    {"text": "a very bad film", "label": "bad"},
    {"text": "a poor film", "label": "bad"},
    {"text": "not good", "label": "bad"},
]
TASK = Task(SPEC, {"validation": Examples(ITEMS, "validation"), "train": Examples((), "train")}, "films")
FLAT = {"fine": 0.0, "poor": 0.5}
"""Changes that make a model answer bad for 'fine' (a tie goes to the first label) and good for 'poor'."""


def tagger(name="tagger", **tags):
    labels = ("O", "B-PER", "B-LOC")
    weights = np.zeros((len(WORDS), 3))
    weights[:, 0] = 0.5
    for word, tag in tags.items():
        weights[WORDS.index(word), labels.index(tag)] = 2.0
    return BagOfWords(name, weights, encoder("tagging", labels))


def test_a_model_alone():
    result = measure(sentiment(), TASK)
    assert (result.score, result.metric, result.examples) == (7 / 8, "accuracy", 8)
    assert (result.split, result.source, result.digest) == ("validation", "films", TASK.validation.digest)
    assert result.comparison is None
    assert result.latency == ()
    assert result.kept.values == [1, 1, 1, 1, 1, 1, 1, 0]
    assert result.kept.gold[0] == {"label": "good"}
    assert result.kept.logits[0] == [-2.0, 2.0]
    assert result.machine["versions"]["numpy"] == np.__version__


def test_a_result_prints_as_its_table():
    text = str(measure(sentiment("words"), TASK))
    assert "words" in text
    assert "0.8750" in text


def test_calibration_is_that_of_the_answers():
    sure = {1: 1 / (1 + math.exp(-2)), 2: 1 / (1 + math.exp(-4))}  # a gap of 2 or 4 between the two logits
    strengths, right = [2, 2, 1, 1, 2, 2, 1, 2], [1, 1, 1, 1, 1, 1, 1, 0]
    expected = sum(
        abs(sum(r - sure[k] for k, r in zip(strengths, right, strict=True) if k == kind)) / 8 for kind in (1, 2)
    )
    assert measure(sentiment(), TASK).calibration_error == pytest.approx(expected, abs=1e-6)


def test_against_a_reference():
    result = measure(sentiment("small", **FLAT), TASK, against=sentiment(), margin=0.2)
    found = result.comparison
    assert found.reference == "teacher"
    assert found.difference.value == pytest.approx(4 / 8 - 7 / 8)
    assert found.retention.value == pytest.approx(4 / 7)
    assert found.method == "score interval"  # three examples the reference alone has right: McNemar does not refuse 0
    assert (found.difference.low, found.difference.high) == pytest.approx((-0.6943, 0.0711), abs=1e-4)
    assert (found.retention.low, found.retention.high) == pytest.approx(
        (1 - 0.6943 * 8 / 7, 1 + 0.0711 * 8 / 7), abs=1e-3
    )
    assert found.agreement == {"labels": 5 / 8}
    assert (found.mcnemar.only_candidate, found.mcnemar.only_reference) == (0, 3)
    assert found.mcnemar.p_value == pytest.approx(0.25)
    assert found.reference_scores["accuracy"] == 7 / 8
    assert (found.margin, found.verdict) == (0.2, "not shown")


def test_eight_equal_answers_show_little():
    """Of examples on which two models agree without exception, z² / (n + z²) bounds the difference."""
    same = measure(sentiment("copy"), TASK, against=sentiment(), margin=0.01).comparison
    assert (same.verdict, same.p_value, same.examples_needed) == ("not shown", 0.5, 381)
    assert same.difference.low == pytest.approx(-(1.96**2) / (8 + 1.96**2), abs=1e-4)
    assert same.smallest_margin == pytest.approx(
        -same.difference.low, rel=1e-3
    )  # nothing differs, so nothing is chance
    assert measure(sentiment("copy"), TASK, against=sentiment(), margin=0.4).comparison.verdict == "non-inferior"


@pytest.mark.parametrize("margin", [0.0, 1.0, 2.5])
def test_a_margin_that_no_number_of_examples_is_needed_for(margin):
    found = pair(measure(sentiment("copy"), TASK), measure(sentiment(), TASK), margin)
    assert found.examples_needed is None
    assert found.verdict == ("non-inferior" if margin else "not shown")


def test_a_broken_model_is_inferior():
    broken = measure(sentiment("broken", good=-2, fine=-2, bad=2, poor=2), TASK, against=sentiment())
    assert broken.comparison.verdict == "inferior"


def test_slices_by_label_and_by_length():
    result = measure(sentiment("small", **FLAT), TASK, against=sentiment())
    found = {(part.group, part.name): (part.examples, part.score, part.reference) for part in result.slices}
    assert found["label", "good"] == (4, 0.5, 1.0)
    assert found["label", "bad"] == (4, 0.5, 0.75)
    assert found["tokens", "1"] == (2, 1.0, 1.0)
    assert found["tokens", "2"] == (2, 0.0, 0.5)
    assert found["tokens", "3"] == (3, pytest.approx(1 / 3), 1.0)
    assert found["tokens", "4"] == (1, 1.0, 1.0)


def test_confusion_counts_and_most_frequent_mistakes():
    result = measure(sentiment("small", **FLAT), TASK)
    assert result.confusion.labels == ("bad", "good")
    assert result.confusion.counts == ((2, 2), (2, 2))
    assert result.confusion.pairs == (("bad", "good", 2), ("good", "bad", 2))


def test_confusion_of_many_labels_keeps_the_mistakes_only():
    labels = tuple(f"label{number:02}" for number in range(31))
    spec = SPEC.model_copy(update={"labels": labels})
    answers = [{"label": "label01"}, {"label": "label01"}, {"label": "label05"}]
    gold = [{"label": "label00"}, {"label": "label00"}, {"label": "label05"}]
    found = confusion(spec, answers, gold)
    assert (found.labels, found.counts, found.pairs) == ((), (), (("label00", "label01", 2),))


def test_an_answer_outside_of_the_task_has_a_row_of_its_own():
    found = confusion(SPEC, [{"label": "fine"}], [{"label": "bad"}])
    assert found.labels == ("bad", "good", "fine")
    assert found.counts == ((0, 0, 1), (0, 0, 0), (0, 0, 0))


def test_tagging_has_scores_agreement_and_entities():
    spec = TaskSpec(kind="tagging", labels=("O", "B-PER", "B-LOC"), metric="entity_f1")
    items = [{"tokens": ["good", "film"], "tags": ["B-PER", "O"]}, {"tokens": ["bad", "a"], "tags": ["B-LOC", "O"]}]
    task = Task(spec, {"validation": Examples(items)})
    teacher = tagger("teacher", good="B-PER", bad="B-LOC")
    result = measure(tagger("small", good="B-PER", a="B-LOC"), task, against=teacher)
    assert result.comparison.reference_scores["entity_f1"] == 1.0
    assert result.score == pytest.approx(0.5)
    assert result.comparison.agreement == {"words": 0.5, "sentences": 0.5}
    entities = {part.name: (part.score, part.reference) for part in result.slices if part.group == "entity"}
    assert entities == {"PER": (1.0, 1.0), "LOC": (0.0, 1.0)}
    assert (result.confusion, result.calibration_error) == (None, None)


def test_regression_has_agreement_but_no_mcnemar():
    spec = TaskSpec(kind="regression", metric="pearson")
    items = [{"text": text, "label": label} for text, label in [("good", 3.0), ("bad", 0.5), ("fine", 2.0), ("a", 1.0)]]
    weights = np.zeros((len(WORDS), 1))
    weights[[WORDS.index(word) for word in ("good", "fine", "bad")], 0] = (2.0, 1.0, -1.0)
    teacher = BagOfWords("teacher", weights, encoder("regression", ()))
    result = measure(
        BagOfWords("half", weights / 2, teacher.encoder), Task(spec, {"validation": Examples(items)}), teacher
    )
    assert result.comparison.agreement == {"pearson": pytest.approx(1.0), "largest_difference": pytest.approx(1.0)}
    assert result.comparison.difference.value == pytest.approx(0.0)
    assert result.comparison.mcnemar is None


def test_qa_is_paired_on_its_answers():
    spec = TaskSpec(kind="qa", metric="exact_match")
    context = "a good film"
    items = [
        {"id": str(n), "question": "not", "context": context, "answers": [answer]}
        for n, answer in enumerate([{"text": "good", "answer_start": 2}, {"text": "film", "answer_start": 7}])
    ]
    table = np.zeros((len(WORDS), 2))
    table[WORDS.index("good")] = 3.0
    model = BagOfWords("reader", table, encoder("qa", ()))
    result = measure(model, Task(spec, {"validation": Examples(items)}), against=BagOfWords("t", table, model.encoder))
    assert result.score == 0.5
    assert result.comparison.agreement == {"texts": 1.0}
    assert result.comparison.difference.value == 0.0
    assert result.kept.gold[1] == {"id": "1", "answers": [{"text": "film", "answer_start": 7}]}


class Sized(BagOfWords):
    """Knows its size and its folder."""

    folder = None

    def size(self):
        return Size(parameters=20, nonzero=20, bytes=80, macs=40)


def test_size_and_bytes_are_those_of_the_model(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 60)
    (tmp_path / "config.json").write_bytes(b"x" * 5)
    model = Sized("sized", sentiment().weights, encoder())
    assert (measure(model, TASK).bytes, measure(model, TASK).size.macs) == (80, 40)
    model.folder = tmp_path
    result = measure(model, TASK)
    assert (result.file_bytes, result.folder_bytes, result.bytes) == (60, 65, 60)


def test_shrinkage_compares_bytes_of_the_same_kind(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 60)
    small, big = Sized("small", sentiment().weights, encoder()), Sized("big", sentiment().weights, encoder())
    assert measure(small, TASK, big).shrinkage() == 1.0
    small.folder = tmp_path
    assert measure(small, TASK, big).shrinkage() == 1.0
    big.folder = tmp_path
    assert measure(small, TASK, big).shrinkage() == 1.0
    assert measure(small, TASK).shrinkage() is None


def test_latency_rows_are_of_both_models_in_turns():
    plan = LatencyPlan(batch=(1,), seconds=0.005)
    result = measure(sentiment("small"), TASK, against=sentiment(), latency=plan)
    assert [(row.name, row.batch) for row in result.latency] == [("small", 1), ("teacher", 1)]
    assert result.latency[0].rounds == result.latency[1].rounds
    assert result.row(1).name == "small"
    ratios = np.array(result.latency[1].round_ms) / np.array(result.latency[0].round_ms)
    assert result.speedup() == np.median(ratios)


def test_a_reference_of_the_same_name_is_told_apart():
    result = measure(sentiment(), TASK, against=sentiment(), latency=LatencyPlan(batch=(1,), seconds=0.005))
    assert result.comparison.reference == "teacher (reference)"
    assert {row.name for row in result.latency} == {"teacher", "teacher (reference)"}


def test_timings_of_another_time_give_no_ratio():
    plan = LatencyPlan(batch=(1,), seconds=0.005)
    stored = measure(sentiment(), TASK, latency=plan)
    for name in ("small", "teacher"):
        assert measure(sentiment(name), TASK, against=stored, latency=plan).speedup() is None


def test_save_and_load_give_the_same_result(tmp_path):
    result = measure(sentiment("small", **FLAT), TASK, against=sentiment(), latency=LatencyPlan(batch=1, seconds=0.005))
    folder = result.save(tmp_path / "result")
    loaded = Result.load(folder)
    assert loaded.model_copy(update={"predictions": None}) == result
    assert sorted(path.name for path in folder.iterdir()) == ["predictions.jsonl", "result.json"]
    first = json.loads((folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert first["answer"]["label"] == "good"
    assert first["value"] == 1.0
    result.save(folder)
    assert Result.load(folder) == loaded


def test_a_figure_that_does_not_exist_is_null_and_comes_back_as_nan():
    result = measure(sentiment(), TASK).model_copy(update={"scores": {"accuracy": float("nan")}})
    assert json.loads(result.to_json())["scores"] == {"accuracy": None}
    assert math.isnan(Result.from_json(result.to_json()).score)


def test_hostile_texts_survive_saving(tmp_path):
    gold = [{"label": "line\u2028break\n\ud800"}]
    kept = Kept([{"label": "\u202eright\x00"}], gold, [0.0])
    assert Kept.load(tmp_path, kept.save(tmp_path)) == kept


def test_predictions_of_another_result_are_refused(tmp_path):
    folder = measure(sentiment(), TASK).save(tmp_path)
    (folder / "predictions.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match="does not belong"):
        Result.load(folder)
    with pytest.raises(UserError, match=r"no result\.json here"):
        Result.load(tmp_path / "nowhere")


def test_every_mistake_in_a_result_file_is_named(tmp_path):
    values = json.loads(measure(sentiment(), TASK).to_json()) | {"examples": "many", "colour": 1, "format": 2}
    (tmp_path / "result.json").write_text(json.dumps(values))
    with pytest.raises(UserError) as caught:
        Result.load(tmp_path)
    assert {problem.split(": ")[1] for problem in caught.value.problems} == {"examples", "colour", "format"}


def test_stored_results_are_paired_later(tmp_path):
    small = measure(sentiment("small", **FLAT), TASK, against=sentiment(), margin=0.05)
    teacher = measure(sentiment(), TASK)
    stored = [Result.load(one.save(tmp_path / one.name)) for one in (small, teacher)]
    assert pair(*stored, margin=0.05) == small.comparison
    assert measure(sentiment("small", **FLAT), TASK, against=stored[1], margin=0.05).comparison == small.comparison


def test_seeds_are_pooled():
    teacher = measure(sentiment(), TASK)
    runs = [measure(sentiment("a"), TASK), measure(sentiment("b", **FLAT), TASK)]
    found = pair(runs, teacher)
    assert (found.seeds, found.mcnemar) == (2, None)
    assert found.difference.value == pytest.approx(-3 / 16)
    assert found.agreement == {"labels": pytest.approx(13 / 16)}
    assert found.difference.low < -0.3
    with pytest.raises(UserError, match="3 candidates cannot be paired off with 2"):
        pair([*runs, teacher], runs)


def test_results_of_other_examples_are_not_paired():
    other = Task(SPEC, {"validation": Examples(ITEMS[:4])}, "half")
    with pytest.raises(UserError, match="other examples"):
        pair(measure(sentiment(), TASK), measure(sentiment(), other))
    bare = measure(sentiment(), TASK).model_copy(update={"kept": None})
    with pytest.raises(UserError, match="were not kept"):
        measure(sentiment(), TASK, against=bare)


def test_a_missing_or_empty_split_is_named():
    with pytest.raises(UserError, match=r"no split 'validaton'.*did you mean 'validation'"):
        measure(sentiment(), TASK, split="validaton")
    with pytest.raises(UserError, match="'train' is empty; splits with examples: validation"):
        measure(sentiment(), TASK, split="train")


def test_examples_without_labels_are_named():
    task = Task(SPEC, {"validation": Examples([*ITEMS, {"text": "a"}, {"text": "b", "label": None}])})
    with pytest.raises(UserError, match="2 examples of 'validation' without 'label', such as number 8, 9"):
        measure(sentiment(), task)


def test_several_models_are_not_measured_with_a_margin_that_is_none():
    with pytest.raises(UserError, match=r"margin=-1 must be a number of 0 or more"):
        measure_together([sentiment()], TASK, margin=-1)


def test_models_made_for_another_task_are_refused_together():
    wrong_labels = BagOfWords("mute", np.zeros((len(WORDS), 2)), encoder(labels=("LABEL_0", "LABEL_1")))
    with pytest.raises(UserError) as caught:
        measure(tagger(), TASK, against=wrong_labels, margin=-1)
    text = str(caught.value)
    assert "tagger: was made for tagging, the task is classification" in text
    assert "mute: cannot answer 'bad', 'good'; its labels are 'LABEL_0', 'LABEL_1'" in text
    assert "margin=-1" in text
    pairs = BagOfWords("pairs", np.zeros((len(WORDS), 2)), encoder(pair=True))
    with pytest.raises(UserError, match="takes pairs of texts, the task has single texts"):
        measure(pairs, TASK)


def test_masked_lm_is_refused():
    with pytest.raises(UserError, match="masked-lm task has no answers"):
        measure(sentiment(), Task(TaskSpec(kind="masked-lm"), {"validation": Examples([{"text": "a"}])}))
