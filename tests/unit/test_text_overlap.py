"""BLEU, chrF and ROUGE of written texts, on all examples and on any of them, are those of their libraries."""

import numpy as np
import pytest

pytest.importorskip("sacrebleu", reason="needs sacrebleu: pip install 'nlp-compress[text]'")
pytest.importorskip("rouge_score", reason="needs rouge-score: pip install 'nlp-compress[text]'")

import sacrebleu
import sacrebleu.significance
from rouge_score.rouge_scorer import RougeScorer

from eval import TaskSpec
from eval.kinds.kind_registry import kind_of
from eval.metrics import text_overlap
from eval.proof.paired_predictions import paired_scores
from eval.proof.score_interval import score_interval
from eval.scores import per_example, score

TEXTS = ["A man in a red hat is standing there.", "Two dogs run over green grass.", "the", "", "A woman sings."]
RIGHT = [
    {"source": "a", "target": "A man with a red hat is standing here."},
    {"source": "b", "target": "Two dogs are running over the grass.", "references": ["Two dogs run on green grass."]},
    {"source": "c", "target": "A child eats."},
    {"source": "d", "target": "People wait."},
    {"source": "e", "target": "A woman sings.", "references": ["A singer."]},
]
ANSWERS = [{"text": text} for text in TEXTS]


def columns(examples):
    every = [[one["target"], *one.get("references", [])] for one in examples]
    return [[own[place] if place < len(own) else None for own in every] for place in range(max(map(len, every)))]


def test_corpus_scores_are_those_of_sacrebleu_on_any_examples():
    for place in ([0, 1, 2, 3, 4], [1, 1, 4, 0], [2]):
        answers, examples = [ANSWERS[i] for i in place], [RIGHT[i] for i in place]
        texts, right = [one["text"] for one in answers], columns(examples)
        everything = np.array(place)
        for name, library in (("bleu", sacrebleu.corpus_bleu), ("chrf", sacrebleu.corpus_chrf)):
            prepared = getattr(text_overlap, name)(None, ANSWERS, RIGHT)
            assert prepared(everything) == pytest.approx(library(texts, right).score / 100, abs=1e-12), name


def test_rouge_is_the_mean_over_the_nearest_right_texts():
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for name, kind in text_overlap.ROUGE.items():
        each = [
            max(scorer.score(right, text)[kind].fmeasure for right in [one["target"], *one.get("references", [])])
            for text, one in zip(TEXTS, RIGHT, strict=True)
        ]
        found = text_overlap.rouge(name)(None, ANSWERS, RIGHT)(np.arange(5))
        assert found == pytest.approx(np.mean(each))


def test_the_kind_reports_them_all_and_each_example_alone():
    spec = TaskSpec(kind="seq2seq", metric="bleu")
    scores = score(spec, ANSWERS, RIGHT)
    assert list(scores) == ["bleu", "chrf", "rouge1", "rouge2", "rougel"]
    for metric in scores:
        alone = per_example(spec.model_copy(update={"metric": metric}), ANSWERS, RIGHT)
        assert alone.shape == (5,)
        assert alone[4] == pytest.approx(1.0)
        assert alone[3] == 0


def test_two_models_are_compared_on_the_same_texts():
    spec = TaskSpec(kind="seq2seq", metric="chrf")
    better = [{"text": one["target"]} for one in RIGHT]
    found = paired_scores(spec, [(better, ANSWERS)], RIGHT)
    assert found.difference.interval(0.95).value > 0.2
    assert found.scores[0, 0] == pytest.approx(1.0)
    kind = kind_of("seq2seq")
    assert kind.agreement([(better[4], ANSWERS[4]), (better[3], ANSWERS[3])]) == {"words": 0.5, "texts": 0.5}
    assert kind.agreement([])["texts"] != kind.agreement([])["texts"], "nothing to compare"


@pytest.mark.parametrize(("name", "metric"), [("bleu", sacrebleu.BLEU()), ("chrf", sacrebleu.CHRF())])
def test_intervals_and_decisions_are_those_of_sacrebleus_paired_bootstrap(monkeypatch, name, metric):
    monkeypatch.setenv("SACREBLEU_SEED", "13")
    right, *systems = translations(wrong=(0.2, 0.2, 0.3))
    gold = [{"source": "", "target": text} for text in right]
    named = [(str(place), texts) for place, texts in enumerate(systems)]
    _, results = sacrebleu.significance.PairedTest(named, {name: metric}, [right], "bs", 1000)()
    _, (baseline, equal, worse) = results.values()  # the names of the systems, and what the metric gives them
    answers = [[{"text": text} for text in texts] for texts in systems]
    pairs = [(own, answers[0]) for own in answers[1:]]
    found = [paired_scores(TaskSpec(kind="seq2seq", metric=name), [pair], gold) for pair in pairs]
    for ours, theirs in zip(found, (equal, worse), strict=True):
        interval = score_interval(ours.parts[0])
        assert 100 * interval.value == pytest.approx(theirs.score, abs=0.2)
        assert 50 * (interval.high - interval.low) == pytest.approx(theirs.ci, rel=0.15)
        chance = ours.difference.interval(0.95)
        assert (chance.low <= 0 <= chance.high) == (theirs.p_value > 0.05)
    assert equal.p_value > 0.05 > worse.p_value
    assert baseline.p_value is None


def translations(wrong, number=300):
    """Return random sentences, and for each share the same with as many of the words exchanged."""
    draw = np.random.default_rng(13)
    words = ["".join(draw.choice(list("aeiklmnorstu"), size=length)) for length in draw.integers(2, 9, size=400)]
    right = [draw.choice(words, size=size) for size in draw.integers(6, 20, size=number)]
    others = [
        [np.where(draw.random(len(one)) < share, draw.choice(words, size=len(one)), one) for one in right]
        for share in wrong
    ]
    return [[" ".join(one) for one in texts] for texts in (right, *others)]


def test_a_missing_library_is_told_with_what_to_install(monkeypatch):
    import sys

    from eval.errors import UserError

    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    text_overlap._bleu.cache_clear()
    with pytest.raises(UserError, match=r"sacrebleu is not installed.*nlp-compress\[text\]"):
        score(TaskSpec(kind="seq2seq", metric="bleu"), ANSWERS, RIGHT)
    text_overlap._bleu.cache_clear()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("今天天气很好", "今天天气很好", 1.0),
        ("今天天气很好", "今天天气不好", 5 / 6),
        ("Привет мир", "привет, мир!", 1.0),
        ("für", "fär", 0.0),
        ("नमस्ते दुनिया", "नमस्ते", 2 / 3),
        ("The runners ran für", "the runner ran für", 1.0),
    ],
)
def test_rouge_counts_words_of_every_script(first, second, expected):
    found = text_overlap.rouge_values("rouge1", [{"text": first}], [{"target": second}])
    assert found[0] == pytest.approx(expected)
