"""Metrics against scikit-learn, SciPy and seqeval, and against figures counted by hand."""

import math
import random
import re
import string
import time
from collections import Counter

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import sklearn.metrics
from seqeval.metrics.sequence_labeling import get_entities

from eval.errors import UserError
from eval.kinds.kind_registry import OWN, kind_of
from eval.metrics.answer_overlap import answer_words, exact_match, token_f1
from eval.metrics.entities import entities
from eval.scores import metrics_of, per_example, resampler, score, unfit
from eval.task import TaskSpec

LABELS = ("bad", "fine", "good")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def spec(kind, metric=None, labels=()):
    vectors = kind == "embedding" and metric != "nearest"
    return TaskSpec(kind=kind, metric=metric or kind_of(kind).metric, labels=labels, pair=vectors)


def classified(answers, truths):
    return [{"label": a, "probability": 0.5} for a in answers], [{"text": "", "label": t} for t in truths]


def scored(predicted, true):
    return [{"score": float(p)} for p in predicted], [{"text": "", "label": float(t)} for t in true]


def tagged(answers, truths):
    return [{"tags": list(a)} for a in answers], [{"tokens": ["w"] * len(t), "tags": list(t)} for t in truths]


def extracted(answers, truths):
    return [{"text": a} for a in answers], [
        {"answers": [{"text": t, "answer_start": 0} for t in some]} for some in truths
    ]


def random_labels(seed, labels=LABELS, count=60):
    chance = random.Random(seed)
    truths = [chance.choice(labels) for _ in range(count)]
    return [truth if chance.random() < 0.6 else chance.choice(labels) for truth in truths], truths


def random_tags(seed, sentences=30):
    chance = random.Random(seed)
    truths = [[chance.choice(TAGS) for _ in range(chance.randint(1, 12))] for _ in range(sentences)]
    return [[tag if chance.random() < 0.8 else chance.choice(TAGS) for tag in tags] for tags in truths], truths


def labelled_sets(generator):
    truths, chances = generator.random((60, 3)) < 0.4, generator.random((60, 3)).round(1)
    rows = (dict(zip(LABELS, row, strict=True)) for row in chances.tolist())
    answers = [{"labels": [name for name, p in row.items() if p > 0.5], "probabilities": row} for row in rows]
    return answers, [{"text": "", "labels": [a for a, t in zip(LABELS, row, strict=True) if t]} for row in truths]


class TestClassification:
    @pytest.mark.parametrize("seed", range(5))
    def test_against_scikit_learn(self, seed):
        answers, truths = random_labels(seed)
        found = score(spec("classification", labels=LABELS), *classified(answers, truths))
        assert found == pytest.approx(
            {
                "accuracy": sklearn.metrics.accuracy_score(truths, answers),
                "macro_f1": sklearn.metrics.f1_score(truths, answers, average="macro"),
                "matthews": sklearn.metrics.matthews_corrcoef(truths, answers),
            }
        )

    def test_f1_of_two_labels_is_that_of_the_last(self):
        answers, truths = random_labels(3, ("no", "yes"))
        found = score(spec("classification", "f1", ("no", "yes")), *classified(answers, truths))
        assert list(found) == ["f1", "accuracy", "macro_f1", "matthews"]
        assert found["f1"] == pytest.approx(sklearn.metrics.f1_score(truths, answers, pos_label="yes"))
        other = score(spec("classification", "f1", ("yes", "no")), *classified(answers, truths))
        assert other["f1"] == pytest.approx(sklearn.metrics.f1_score(truths, answers, pos_label="no"))

    def test_by_hand(self):
        answers, truths = ["a", "a", "b", "b"], ["a", "b", "b", "b"]
        found = score(spec("classification", "matthews", ("a", "b")), *classified(answers, truths))
        assert found["matthews"] == pytest.approx((1 * 2 - 1 * 0) / math.sqrt(2 * 1 * 2 * 3))
        assert found["accuracy"] == 0.75
        assert found["f1"] == pytest.approx(2 * 1 * (2 / 3) / (1 + 2 / 3))

    def test_labels_that_do_not_occur_leave_macro_f1_alone(self):
        answers, truths = ["bad", "good", "good"], ["bad", "good", "bad"]
        found = score(spec("classification", "macro_f1", LABELS), *classified(answers, truths))
        assert found["macro_f1"] == pytest.approx(2 / 3)

    def test_an_answer_that_the_task_does_not_have_is_wrong(self):
        found = score(spec("classification", "macro_f1", LABELS), *classified(["other", "good"], ["bad", "good"]))
        assert found == pytest.approx({"macro_f1": 1 / 3, "accuracy": 0.5, "matthews": 0.5})
        assert found["matthews"] == pytest.approx(sklearn.metrics.matthews_corrcoef(["bad", "good"], ["other", "good"]))

    @pytest.mark.parametrize("metric", ["accuracy", "macro_f1", "matthews"])
    def test_constant_answers(self, metric):
        found = score(spec("classification", metric, LABELS), *classified(["bad"] * 4, ["bad", "good"] * 2))
        assert next(iter(found)) == metric
        assert found == pytest.approx({"accuracy": 0.5, "macro_f1": 1 / 3, "matthews": 0.0})

    def test_each_example(self):
        values = per_example(spec("classification", "matthews", LABELS), *classified(["bad", "good"], ["bad", "bad"]))
        assert values.tolist() == [1.0, 0.0]
        assert values.dtype == np.float64


class TestRegression:
    @pytest.mark.parametrize("seed", range(5))
    def test_against_scipy(self, seed):
        generator = np.random.default_rng(seed)
        true = np.round(generator.uniform(0, 5, 50), 0)
        predicted = np.round(true + generator.normal(size=50), 1)
        found = score(spec("regression"), *scored(predicted, true))
        assert found == pytest.approx(
            {
                "spearman": scipy.stats.spearmanr(predicted, true).statistic,
                "pearson": scipy.stats.pearsonr(predicted, true).statistic,
                "mse": sklearn.metrics.mean_squared_error(true, predicted),
            }
        )

    @pytest.mark.parametrize("predicted", [[2.5] * 4, [1e-320] * 4])
    def test_constant_predictions_have_no_correlation(self, predicted):
        found = score(spec("regression", "pearson"), *scored(predicted, [1, 2, 3, 4]))
        assert (found["pearson"], found["spearman"]) == (0.0, 0.0)
        assert score(spec("regression"), *scored([1, 2], [3, 3]))["spearman"] == 0.0
        assert score(spec("regression"), *scored([1], [3])) == {"spearman": 0.0, "pearson": 0.0, "mse": 4.0}

    def test_tiny_and_huge_predictions(self):
        for unit in (1e-38, 1.0, 1e38):
            predicted = [unit * value for value in (1, 2, 3, 5)]
            found = score(spec("regression"), *scored(predicted, [1, 2, 3, 4]))
            assert found["pearson"] == pytest.approx(scipy.stats.pearsonr([1, 2, 3, 5], [1, 2, 3, 4]).statistic)
            assert found["spearman"] == pytest.approx(1.0)

    @pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
    def test_predictions_that_are_no_numbers(self, wrong):
        assert math.isnan(score(spec("regression", "pearson"), *scored([1, wrong, 2], [1, 2, 3]))["pearson"])

    def test_each_example_has_its_negative_squared_error(self):
        assert per_example(spec("regression"), *scored([1, 4], [3, 4])).tolist() == [-4.0, 0.0]


class TestTagging:
    @pytest.mark.parametrize("seed", range(5))
    def test_against_seqeval(self, seed):
        answers, truths = random_tags(seed)
        found = score(spec("tagging", labels=TAGS), *tagged(answers, truths))
        assert found == pytest.approx(
            {
                "entity_f1": seqeval.metrics.f1_score(truths, answers),
                "entity_precision": seqeval.metrics.precision_score(truths, answers),
                "entity_recall": seqeval.metrics.recall_score(truths, answers),
                "token_accuracy": seqeval.metrics.accuracy_score(truths, answers),
            }
        )

    def test_any_sequence_of_tags_has_the_entities_that_seqeval_finds(self):
        tags, draw = (
            ["O", *(f"{prefix}-{name}" for prefix in "BIES" for name in ("PER", "LOC", "A-B"))],
            random.Random(7),
        )
        sentences = [draw.choices(tags, k=draw.randint(0, 8)) for _ in range(500)]
        assert [entities(sentence) for sentence in sentences] == [set(get_entities(list(s))) for s in sentences]

    def test_by_hand(self):
        truths = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC"]]
        answers = [["B-PER", "I-PER", "O", "B-PER"], ["O", "I-LOC"]]
        found = score(spec("tagging", labels=TAGS), *tagged(answers, truths))
        # As conlleval has it, an I without a B begins an entity.
        assert found == pytest.approx(
            {"entity_f1": 2 / 3, "entity_precision": 2 / 3, "entity_recall": 2 / 3, "token_accuracy": 4 / 6}
        )
        assert per_example(spec("tagging", labels=TAGS), *tagged(answers, truths)).tolist() == [0, 0]
        assert per_example(spec("tagging", labels=TAGS), *tagged([truths[0], answers[1]], truths)).tolist() == [1, 0]

    def test_nothing_found_and_nothing_to_be_found(self):
        found = score(spec("tagging", labels=TAGS), *tagged([["O", "O"]], [["O", "O"]]))
        assert found == {"entity_f1": 0.0, "entity_precision": 0.0, "entity_recall": 0.0, "token_accuracy": 1.0}
        assert score(spec("tagging", labels=TAGS), *tagged([["O"]], [["B-PER"]]))["entity_f1"] == 0.0

    def test_tags_without_entities_have_token_accuracy_alone(self):
        labels = ("DET", "NOUN")
        found = score(spec("tagging", "token_accuracy", labels), *tagged([["DET", "DET"]], [["DET", "NOUN"]]))
        assert found == {"token_accuracy": 0.5}


def squad_f1(answer, expected):
    """The published script's steps, one after the other."""

    def words(text):
        text = "".join(character for character in text.lower() if character not in set(string.punctuation))
        return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split()).split()

    found, wanted = words(answer), words(expected)
    same = sum((Counter(found) & Counter(wanted)).values())
    if same == 0:
        return float(found == wanted)
    precision, recall = same / len(found), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


class TestAnswers:
    def test_words_that_count(self):
        assert answer_words("The  Cat's  hat, an idea!") == ("cats", "hat", "idea")
        assert answer_words("“quoted”") == ("“quoted”",)
        assert answer_words("1998 年\uff0c北京 (Beijing)。") == ("1998", "年", "北", "京", "beijing")
        assert answer_words("《 a 》「の」") == ("の",)
        assert answer_words(" \t") == ()

    @pytest.mark.parametrize("seed", range(3))
    def test_english_is_counted_as_in_the_squad_script(self, seed):
        chance = random.Random(seed)
        words = ["the", "a", "cat", "Cat,", "sat", "on-it", "an", "U.S.", "—", "don't", "7"]
        for _ in range(60):
            texts = [" ".join(chance.choices(words, k=chance.randint(0, 6))) for _ in range(2)]
            assert token_f1(*texts) == pytest.approx(squad_f1(*texts)), texts

    def test_chinese_is_counted_by_character(self):
        assert token_f1("北京市", "北京") == pytest.approx(2 * (2 / 3) * 1 / (2 / 3 + 1))
        assert token_f1("1998年", "1998 年。") == 1.0
        assert exact_match("1998年", "1998 年。") == 1.0
        assert exact_match("北京市", "北京") == 0.0

    def test_the_best_of_the_expected_answers_counts(self):
        given = extracted(["the cat sat", "dog", ""], [["cat", "a cat sat"], ["cat"], []])
        assert score(spec("qa"), *given) == pytest.approx({"f1": 2 / 3, "exact_match": 2 / 3})
        given = extracted(["black cat", "dog"], [["cat", "bird"], ["dog", "cat"]])
        assert per_example(spec("qa"), *given).tolist() == pytest.approx([2 / 3, 1])
        assert per_example(spec("qa", "exact_match"), *given).tolist() == [0, 1]
        assert list(score(spec("qa", "exact_match"), *given).items()) == [
            ("exact_match", 0.5),
            ("f1", pytest.approx(5 / 6)),
        ]


class TestMaskedTokens:
    answers = ({"correct": 3, "total": 4, "loss": 2.0}, {"correct": 0, "total": 0, "loss": 0.0}) * 2

    def test_tokens_count_not_examples(self):
        given = [*self.answers, {"correct": 0, "total": 2, "loss": 6.0}]
        examples = [{"text": ""}] * 5
        found = score(spec("masked-lm"), given, examples)
        assert found == pytest.approx({"masked_accuracy": 6 / 10, "perplexity": math.exp(10 / 10)})
        assert per_example(spec("masked-lm"), given, examples).tolist() == [0.75, 0, 0.75, 0, 0]

    def test_nothing_masked_and_a_loss_beyond_all_bounds(self):
        none = score(spec("masked-lm"), [self.answers[1]], [{"text": ""}])
        assert none == {"masked_accuracy": 0.0, "perplexity": 1.0}
        huge = score(spec("masked-lm"), [{"correct": 0, "total": 1, "loss": 1e9}], [{"text": ""}])
        assert math.isfinite(huge["perplexity"])


def rankings(generator, count=60):
    """Return rankings of twelve of twenty documents, and which of these are relevant to each query."""
    documents = [f"d{number}" for number in range(20)]
    answers = [{"ranking": list(generator.permutation(documents)[:12])} for _ in range(count)]
    grades = [dict(zip(generator.permutation(documents)[:3], (1, 1, 2), strict=True)) for _ in range(count)]
    return answers, [{"id": str(n), "relevant": relevant} for n, relevant in enumerate(grades)]


def one_of_each(seed=0):
    generator = np.random.default_rng(seed)
    true = generator.uniform(0, 5, 60).round(0)
    masked = [{"correct": int(c), "total": int(c) + 2, "loss": float(c)} for c in generator.integers(0, 9, 60)]
    text = ["the cat", "cat sat", "dog", "北京", "北京市"]
    chosen = [text[i] for i in generator.integers(0, 5, 60)]
    return {
        "classification": (LABELS, *classified(*random_labels(seed))),
        "regression": ((), *scored((true + generator.normal(size=60)).round(1), true)),
        "tagging": (TAGS, *tagged(*random_tags(seed, 60))),
        "qa": ((), *extracted(chosen, [[text[i]] for i in generator.integers(0, 5, 60)])),
        "qa-with-null": ((), *extracted(chosen, [[t] if t != "dog" else [] for t in reversed(chosen)])),
        "masked-lm": ((), masked, [{"text": ""}] * 60),
        "causal-lm": ((), [{**one, "total": one["total"] + 2, "words": 2, "bytes": 9} for one in masked], [{}] * 60),
        "seq2seq": (
            (),
            [{"text": text} for text in chosen],
            [{"target": text[i]} for i in generator.integers(0, 5, 60)],
        ),
        "embedding": ((), *scored((true + generator.normal(size=60)).round(1), true)),
        "multiple-choice": ((), *classified(*generator.integers(0, 4, (2, 60)).tolist())),
        "multilabel": (LABELS, *labelled_sets(generator)),
        "retrieval": ((), *rankings(generator)),
        "reranking": ((), *rankings(generator)),
    }


class TestResampling:
    @pytest.mark.parametrize(
        ("kind", "metric"),
        [
            (kind, name)
            for kind in OWN
            for name, metric in metrics_of(kind).items()
            if metric.decides and name != "nearest"  # whose neighbours are sought among all examples
        ],
    )
    def test_it_is_the_metric_of_those_examples(self, kind, metric):
        labels, answers, examples = one_of_each()[kind]
        if (kind, metric) == ("classification", "f1"):
            labels, (answers, examples) = ("no", "yes"), classified(*random_labels(1, ("no", "yes")))
        task = spec(kind, metric, labels)
        measured = resampler(task, answers, examples)
        generator = np.random.default_rng(5)
        for size in (60, 60, 7, 1):
            indices = generator.integers(0, 60, size)
            drawn = score(task, [answers[i] for i in indices], [examples[i] for i in indices])
            assert measured(indices) == pytest.approx(drawn[metric], abs=1e-12)

    @pytest.mark.parametrize("kind", OWN)
    def test_the_primary_score_comes_first_and_is_a_plain_float(self, kind):
        labels, answers, examples = one_of_each(3)[kind]
        found = score(spec(kind, labels=labels), answers, examples)
        assert next(iter(found)) == kind_of(kind).metric
        assert {type(value) for value in found.values()} == {float}
        assert found[kind_of(kind).metric] == resampler(spec(kind, labels=labels), answers, examples)(np.arange(60))

    @pytest.mark.parametrize(
        ("kind", "metric"), [("tagging", "entity_f1"), ("classification", "matthews"), ("regression", "spearman")]
    )
    def test_a_bootstrap_of_three_thousand_examples_is_quick(self, kind, metric):
        labels, answers, examples = one_of_each()[kind]
        measured = resampler(spec(kind, metric, labels), answers * 50, examples * 50)
        indices = np.random.default_rng(1).integers(0, 3000, (100, 3000))
        start = time.process_time()
        values = [measured(row) for row in indices]
        assert time.process_time() - start < 0.5
        assert 0 < np.std(values) < 0.1


class TestRefusals:
    @pytest.mark.parametrize(
        ("task", "sentence"),
        [
            (spec("classification", "acuracy"), "classification has no metric 'acuracy'; did you mean 'accuracy'?"),
            (spec("tagging", "spearman"), "tagging has no metric 'spearman'; allowed: entity_f1, entity_precision"),
            (
                spec("embedding", "spearman").model_copy(update={"pair": False}),
                "'spearman' is for pairs of texts with a number as label, here are single texts with a class as label; "
                "use nearest",
            ),
            (
                spec("embedding", "nearest").model_copy(update={"pair": True}),
                "'nearest' is for single texts with a class as label, here are pairs of texts with a number as label; "
                "use spearman or pearson",
            ),
            (spec("regression", "mse"), "'mse' is only reported, as lower is better; allowed: spearman, pearson"),
            (spec("classification", "f1", LABELS), "'f1' is for two labels (the last is the positive one), here are 3"),
            (
                spec("tagging", labels=("O", "NOUN")),
                "'entity_f1' is for BIO tags such as O, B-PER, I-PER, but there is",
            ),
        ],
    )
    def test_metrics_that_do_not_fit(self, task, sentence):
        assert unfit(task.metric, task).startswith(sentence)
        with pytest.raises(UserError, match=re.escape(sentence)):
            score(task, [], [])

    def test_metrics_that_fit(self):
        assert all(unfit(kind_of(kind).metric, spec(kind)) is None for kind in OWN)
        assert unfit("f1", spec("classification")) is None

    def test_examples_that_cannot_be_scored(self):
        task = spec("classification", labels=LABELS)
        with pytest.raises(UserError, match="there are no examples to score"):
            score(task, [], [])
        with pytest.raises(UserError, match="2 answers for 1 example;"):
            score(task, *classified(["bad", "good"], ["bad"]))
        with pytest.raises(UserError, match="1 of 2 examples have no 'label'"):
            resampler(task, [{"label": "bad"}] * 2, [{"text": "", "label": "bad"}, {"text": ""}])
