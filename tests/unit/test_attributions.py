"""Agreement of attributions: what is compared, by token or by word, what chance gives, and where it is shown."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eval.attribution.agreement_rows import RANDOM, AttributionRow, agreement_rows, overlap_of_top
from eval.attribution.aligned_units import Attributed, aligned
from eval.comparison import measure_together
from eval.errors import UserError
from eval.kinds.kind_registry import all_kinds
from eval.metrics.correlation import spearman
from eval.proof.paired_statistics import Interval
from eval.report.attributed import attribution_sentences
from eval.report.card import model_card
from eval.report.console import to_text
from eval.report.page import page
from eval.result import Result
from teachers.attribution.attribution_agreement import attribution_agreement, with_attributions
from teachers.attribution.text_attributions import GRADIENTS, ROLLOUT, unexplained
from tests.tiny import tiny_spec, tiny_task, tiny_taskmodel
from tests.unit.bagofwords import sentiment

RNG = np.random.default_rng(3)


def side(spans, values):
    return Attributed(list(range(len(spans))), spans, np.array(values, dtype=np.float64))


class TestUnits:
    def test_special_tokens_are_not_ranked(self):
        found, _ = aligned(*[side([None, (0, 0, 3), (0, 4, 8), None], [9, 1, 2, 9])] * 2, {"text": "the film"}, False)
        assert found.tolist() == [1, 2]

    def test_words_add_up_what_their_tokens_have(self):
        example = {"text_a": "unlike  films", "text_b": "so so"}
        whole = side([None, (0, 0, 6), (0, 8, 13), None, (1, 0, 2), (1, 3, 5), None], [9, 3, 4, 9, 5, 6, 9])
        parts = side([(0, 0, 2), (0, 2, 6), (0, 6, 7), (0, 7, 10), (0, 10, 13), (1, 0, 2)], [1, 2, 0.5, 1, 1, 7])
        first, second = aligned(whole, parts, example, words=True)
        assert first.tolist() == [3, 4, 5]  # the second model has truncated the last word
        assert second.tolist() == [3, 2.5, 7]  # white space goes with the word behind it
        assert not whole.same_tokens(parts)


class TestRows:
    def test_what_no_agreement_looks_like(self):
        pairs = [(RNG.normal(size=20), RNG.normal(size=20)) for _ in range(100)]
        row, random = agreement_rows({GRADIENTS: pairs}, {})
        for one, room in ((row, 0.08), (random, 0.02)):
            assert one.correlation.value == pytest.approx(0, abs=room)
            assert one.overlap.value == pytest.approx(5 / 20, abs=room)
        assert row.beyond.low < 0 < row.beyond.high
        assert (random.method, random.beyond) == (RANDOM, None)

    def test_the_mean_over_texts_and_its_interval(self):
        pairs = [(first, first + RNG.normal(size=20)) for first in RNG.normal(size=(50, 20))]
        row, random = agreement_rows({GRADIENTS: pairs}, {GRADIENTS: 0.25})
        each = [spearman(first, second) for first, second in pairs]
        assert (row.texts, row.incomplete) == (50, 0.25)
        assert row.correlation.value == pytest.approx(np.mean(each))
        half = 1.96 * np.std(each) / np.sqrt(50)
        assert row.correlation.low == pytest.approx(row.correlation.value - half, abs=0.015)
        assert row.correlation.high == pytest.approx(row.correlation.value + half, abs=0.015)
        assert row.beyond.value == pytest.approx(row.correlation.value - random.correlation.value)
        assert row.overlap.value == pytest.approx(np.mean([overlap_of_top(*pair) for pair in pairs]))

    def test_equal_and_opposite(self):
        values = [RNG.normal(size=12) for _ in range(5)]
        (same, *_), (turned, *_) = (
            agreement_rows({GRADIENTS: [(sign * one, one) for one in values]}, {}) for sign in (1, -1)
        )
        assert same.overlap == Interval(1.0, 1.0, 1.0)
        assert same.correlation.low == pytest.approx(1)
        assert turned.correlation.value == pytest.approx(-1)
        assert turned.overlap.value == 1  # the same tokens matter

    def test_short_texts_and_those_without_attributions_are_left_out(self):
        long, short = (np.arange(3.0), np.arange(3.0)), (np.arange(2.0), np.arange(2.0))
        assert [row.texts for row in agreement_rows({GRADIENTS: [short, long, None, long]}, {})] == [2, 2]
        assert agreement_rows({GRADIENTS: [short, None]}, {}) == ()

    def test_texts_of_a_group_are_drawn_together(self):
        pairs = [(np.arange(9.0), sign * np.arange(9.0)) for sign in (1, 1, 1, 1, -1, -1, -1, -1)]
        grouped = agreement_rows({GRADIENTS: pairs}, {}, ["a"] * 4 + ["b"] * 4)[0].correlation
        assert (grouped.low, grouped.high) == (pytest.approx(-1), pytest.approx(1))
        free = agreement_rows({GRADIENTS: pairs}, {}, [None] * 8)[0].correlation
        assert free.high - free.low < 1.9

    def test_top_tokens(self):
        assert overlap_of_top(np.array([0, 0, 0, 1, 0, 2.0]), np.array([0, 0, 0, 3, 0, 4.0])) == 1
        assert overlap_of_top(np.array([5, 4, 0, 0, 0, 0.0]), np.array([0, 0, 0, 0, -5, 4.0])) == 0


@pytest.fixture(scope="module")
def compared():
    task = tiny_task(examples=8)
    teacher, student = (
        replace(tiny_taskmodel("bert", task.spec, seed), name=name) for seed, name in ((0, "teacher"), (1, "student"))
    )
    results = measure_together([student], task, teacher, "test")
    return with_attributions(results, {"teacher": teacher, "student": student}, task, "test", most=6, steps=4), task


class TestTwoModels:
    def test_rows(self, compared):
        (teacher, student), _ = compared
        assert teacher.attributions is None
        found = student.attributions
        assert [row.method for row in found.rows] == [GRADIENTS, ROLLOUT, RANDOM]
        assert (found.by, found.examples, found.baseline, found.steps, found.seed) == ("tokens", 6, "[PAD]", 4, 13)
        assert all(row.texts == 6 for row in found.rows)
        assert found.rows[0].incomplete < 0.05
        assert found.rows[1].incomplete is None

    def test_reports_show_it(self, compared, tmp_path):
        results, task = compared
        assert "common top tokens" in to_text(results)
        html, card = page("films", results), model_card("films", task.spec, results)
        assert "<h2>Attributions</h2>" in html
        assert "### Attributions" in card
        assert "| integrated gradients | 6 |" in card
        for sentence in attribution_sentences(results[1]):
            assert sentence in to_text(results, width=1000)
        assert Result.load(results[1].save(tmp_path)).attributions == results[1].attributions

    def test_results_without_it_are_written_as_before(self, compared):
        results, _ = compared
        assert '"attributions"' in results[1].to_json()
        assert '"attributions"' not in results[0].to_json()
        assert "Attributions" not in page("films", [results[0]])

    def test_sentences(self, compared):
        student = compared[0][1]
        good, none = Interval(0.5, 0.4, 0.6), Interval(0.1, -0.1, 0.3)

        def said(beyond, incomplete=None, left_out=()):
            row = AttributionRow(GRADIENTS, 6, good, good, beyond, incomplete)
            changed = replace(student.attributions, rows=(row,), left_out=left_out)
            return attribution_sentences(student.model_copy(update={"attributions": changed}))

        assert said(good) == [
            "By integrated gradients, student weighs the tokens of a text like teacher: rank correlation 0.50; "
            "random order has about 0"
        ]
        assert said(none)[0].startswith(
            "By integrated gradients, that student and teacher weigh the tokens of a text alike is not established"
        )
        assert "miss 12.0% of the difference" in said(good, 0.12)[1]
        assert said(good, 0.01, ("why",))[1:] == ["why"]

    def test_of_itself(self, compared):
        task = compared[1]
        model = tiny_taskmodel("bert", task.spec)
        for row in attribution_agreement(model, model, list(task.test)[:3], steps=2).rows[:2]:
            assert (row.correlation.value, row.overlap.value) == (pytest.approx(1), 1)


def test_other_tokens_are_compared_by_word_and_other_networks_without_attention():
    from compress.architectures.bilstm_network import BiLstmConfig, BiLstmForSequenceClassification

    task = tiny_task(examples=3, pair=True)
    teacher = tiny_taskmodel("roberta", task.spec)
    student = tiny_taskmodel("bert", task.spec)
    config = BiLstmConfig(vocab_size=len(student.tokenizer), embedding_size=6, hidden_size=5, num_labels=2)
    student = replace(student, model=BiLstmForSequenceClassification(config).eval())
    found = attribution_agreement(student, teacher, list(task.test), steps=4)
    assert found.by == "words"
    assert [row.method for row in found.rows] == [GRADIENTS, RANDOM]
    assert found.left_out == (
        "Attention rollout is left out: BiLstmForSequenceClassification returns no attention probabilities",
    )


def test_rounded_activations_have_no_gradient():
    task = tiny_task(examples=3)
    teacher = tiny_taskmodel("bert", task.spec)
    student = replace(tiny_taskmodel("bert", task.spec), name="int8")
    student.model.get_submodule("bert.encoder.layer.2").register_forward_hook(
        lambda _module, _args, output: (output * 50).round() / 50
    )
    found = attribution_agreement(student, teacher, list(task.test), steps=4)
    assert [row.method for row in found.rows] == [ROLLOUT, RANDOM]
    assert found.left_out == (
        "Integrated gradients are left out: those of int8 miss 100% of the difference that they explain, as where "
        "activations are rounded: take a quantized model before that step",
    )


def test_the_program_of_the_documents(capsys):
    page = (Path(__file__).parents[2] / "docs" / "howto.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    exec(program, {"model": tiny_taskmodel("bert")})
    assert re.fullmatch(r"\[[-+.e\d\s]+\] -?[\d.e-]+\n", capsys.readouterr().out)


class TestRefusals:
    def test_kinds_without_one_score(self):
        allowed = {"classification", "multilabel", "regression"}
        assert {kind.name for kind in all_kinds() if kind.one_score} == allowed
        for kind in all_kinds():
            spec = tiny_spec(kind.name)
            problems = unexplained(spec, [tiny_taskmodel("bert")])
            assert bool(problems) == (kind.name not in allowed)
        assert unexplained(tiny_spec("qa"), [tiny_taskmodel("bert")]) == [
            "attributions: a qa model does not give one score for an input; allowed: "
            "classification, multilabel, regression"
        ]

    def test_models_without_gradients_and_tokens_that_are_missing(self):
        problems = unexplained(tiny_spec(), [sentiment("onnx"), tiny_taskmodel("gpt2")], "mask")
        assert problems == [
            "attributions: onnx is no single torch model, so it has no gradients; give a model folder, for an export "
            "that of its model",
            "attributions: the tokenizer of model has no mask token; take another baseline",
        ]
        assert "allowed: pad, mask" in unexplained(tiny_spec(), [tiny_taskmodel("bert")], "zero")[0]

    def test_without_a_reference(self):
        task = tiny_task(examples=2)
        model = tiny_taskmodel("bert", task.spec)
        alone = measure_together([model], task, None, "test")
        with pytest.raises(UserError, match="give a reference"):
            with_attributions(alone, {"model": model}, task, "test")
