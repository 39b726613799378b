"""Perturbed texts: what each rule does, what it leaves of an example, and what comes of two models under it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import Lowercase

from compress.artifact.artifact import Artifact
from compress.engine.evaluation import OWN_ANSWERS
from compress.engine.pipeline import run_recipe
from compress.engine.preflight import foresee
from compress.recipe import recipe_from_plain
from compress.testing.tiny import tiny_task, tiny_taskmodel
from eval.comparison import measure_together, with_stress
from eval.data.loading import Task
from eval.errors import UserError
from eval.inference import completed, predict
from eval.proof.paired_predictions import paired_scores
from eval.proof.paired_statistics import Interval
from eval.ranking.document_set import Corpus
from eval.report.card import model_card
from eval.report.console import to_text
from eval.report.page import page
from eval.report.under_stress import sentences_of
from eval.result import Result
from eval.stress import rules
from eval.stress.perturbing import perturbed, rules_for
from eval.stress.rules import (
    NEUTRAL,
    RULES,
    Word,
    dropped_letters,
    neighbouring_keys,
    swapped_letters,
    text_of,
    words_of,
)
from eval.stress.stress_rows import CLEAN, change_of
from eval.task import Examples, TaskSpec
from tests.recipes.test_recipes import write_data
from tests.unit.bagofwords import sentiment

BY_NAME = {rule.name: rule for rule in RULES}
TEXT = "The film was slow, but nobody  in the theatre\nwanted to leave."
ODD = ("a", "not", "n't", "...", "\U0001f600 !", "\u4e2d\u6587", "\u00df", "x" * 500, "don't", " lead", "no no no")


def under(name: str, text: str, seed: int = 3) -> str:
    return text_of(BY_NAME[name].change(words_of(text), Random(seed)))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
class TestEveryRule:
    def test_same_in_same_out(self, rule):
        words = words_of(TEXT)
        before = list(words)
        first, second = (rule.change(words, Random("5")) for _ in range(2))
        assert first == second
        assert words == before

    @pytest.mark.parametrize("text", ODD)
    def test_never_empty(self, rule, text):
        assert text_of(rule.change(words_of(text), Random(1)))

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.text(min_size=1), min_size=1), st.integers())
    def test_tags_go_with_their_words(self, rule, texts, seed):
        words = [Word(text, f"tag-{place}") for place, text in enumerate(texts)]
        after = rule.change(words, Random(seed))
        assert after
        own = [word.tag for word in after if word.tag != rules.OUTSIDE]
        assert own == sorted(set(own), key=lambda tag: int(tag[4:]))  # in order, none twice
        if rule.name == "first half":
            assert own == [f"tag-{place}" for place in range((len(texts) + 1) // 2)]
        elif rule.name != "negation":
            assert len(own) == len(texts)

    def test_white_space_between_words_stays(self, rule):
        text = "one  two\tthree\nfour five six"
        gaps = [word.gap for word in words_of(text)]
        after = rule.change(words_of(text), Random(1))
        kept = [word.gap for word in after if word.gap != " " and word.gap]
        assert kept == [gap for gap in gaps[: 3 if rule.name == "first half" else None] if gap != " "]


class TestTypos:
    def test_forms_of_a_word(self):
        assert {form[1] for form in neighbouring_keys("Pays") if form.endswith("ys")} == set("qwsz")
        assert {form[2] for form in neighbouring_keys("Pays") if form.startswith("Pa")} == set("tugh")
        assert neighbouring_keys("PAYS")[0] == neighbouring_keys("PAYS")[0].upper()
        assert swapped_letters("slow,") == ["solw,"]
        assert swapped_letters("seeds") == ["sedes"]
        assert dropped_letters("slow,") == ["sow,", "slw,"]

    @pytest.mark.parametrize("slips", [neighbouring_keys, swapped_letters, dropped_letters])
    @pytest.mark.parametrize("word", ["", "the", "a1b2c", "...."])
    def test_short_words_stay(self, slips, word):
        assert slips(word) == []

    @pytest.mark.parametrize("name", ["neighbouring keys", "swapped letters", "dropped letters"])
    def test_one_word_in_ten_is_misspelt(self, name):
        text = " ".join(["letters"] * 40 + ["of"] * 40)
        changed = [word for word in under(name, text).split() if word not in ("letters", "of")]
        assert len(changed) == 4
        assert sum(a != b for a, b in zip(under(name, TEXT).split(), TEXT.split(), strict=True)) == 1

    def test_the_seed_chooses(self):
        assert len({under("dropped letters", TEXT, seed) for seed in range(20)}) > 5


def test_casing():
    assert under("upper case", "It was \u201cFine\u201d") == "IT WAS \u201cFINE\u201d"
    assert under("lower case", "It was \u201cFine\u201d") == "it was \u201cfine\u201d"
    assert under("title case", 'it was "FINE", don\'t 3d') == 'It Was "Fine", Don\'t 3D'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The film is not good", "The film is good"),
        ("It does n't work", "It does work"),
        ("I won't, ever", "I will, ever"),
        ("Don\u2019t go!", "Do go!"),
        ("I CAN'T", "I CAN"),
        ("we cannot stay", "we can stay"),
        ("it was never dull", "it was dull"),
        ("The film is good", "The film is not good"),
        ("a gorgeous film", "not a gorgeous film"),
        ("not", "not not"),
        ("n't", "not n't"),
    ],
)
def test_negation(text, expected):
    assert under("negation", text) == expected


def test_length():
    assert under("first half", "one two  three four five") == "one two  three"
    assert under("first half", "one") == "one"
    sentences = {" ".join(words) + "." for words in NEUTRAL}
    assert {under("sentence before", "good", seed).removesuffix(" good") for seed in range(30)} == sentences
    assert {under("sentence after", "good", seed).removeprefix("good ") for seed in range(30)} == sentences


class TestExamples:
    PAIR = TaskSpec(kind="classification", labels=("no", "yes"), pair=True)
    TAGS = TaskSpec(kind="tagging", labels=("O", "B-PER", "I-PER"), metric="entity_f1")

    def test_which_texts_of_a_pair(self):
        example = {"text_a": "It is good", "text_b": "It is bad", "label": "no", "group": "g"}
        changed = {
            name: {field for field in ("text_a", "text_b") if found[field] != example[field]}
            for name in ("upper case", "negation", "sentence before", "sentence after", "first half")
            if (found := perturbed(BY_NAME[name], example, self.PAIR, 13, 0)) and found["label"] == "no"
        }
        assert changed == {
            "upper case": {"text_a", "text_b"},
            "negation": {"text_b"},
            "sentence before": {"text_a"},
            "sentence after": {"text_b"},
            "first half": {"text_a", "text_b"},
        }

    def test_an_example_that_no_rule_changes_is_the_same_object(self):
        spec = TaskSpec(kind="classification", labels=("no", "yes"))
        lower, blank = {"text": "  all\tlower ", "label": "no"}, {"text": "  ", "label": "no"}
        assert perturbed(BY_NAME["lower case"], lower, spec, 13, 0) is lower
        assert all(perturbed(rule, blank, spec, 13, 0) is blank for rule in RULES)

    def test_every_example_has_chance_of_its_own(self):
        spec = TaskSpec(kind="classification", labels=("no", "yes"))
        found = {perturbed(BY_NAME["dropped letters"], {"text": TEXT}, spec, 13, place)["text"] for place in range(20)}
        assert len(found) > 5

    def test_tags(self):
        example = {"tokens": ["Ann", "Smith", "lives", "here"], "tags": ["B-PER", "I-PER", "O", "O"]}
        found = perturbed(BY_NAME["first half"], example, self.TAGS, 13, 0)
        assert found == {"tokens": ["Ann", "Smith"], "tags": ["B-PER", "I-PER"]}
        found = perturbed(BY_NAME["sentence before"], example, self.TAGS, 13, 0)
        assert found["tokens"][5:] == example["tokens"]
        assert found["tags"] == ["O"] * 5 + example["tags"]
        found = perturbed(BY_NAME["upper case"], example, self.TAGS, 13, 0)
        assert found == {"tokens": ["ANN", "SMITH", "LIVES", "HERE"], "tags": example["tags"]}

    def test_words_are_inserted_where_there_is_a_tag_for_them(self):
        words = TaskSpec(kind="tagging", labels=("NOUN", "VERB"), metric="accuracy")
        assert [rule.name for rule in RULES if rule not in rules_for(words)] == ["sentence before", "sentence after"]
        assert rules_for(self.TAGS) == list(RULES)

    @pytest.mark.parametrize("kind", ["qa", "qa-with-null"])
    def test_of_questions_the_context_stays(self, kind):
        task = tiny_task(kind)
        for rule in rules_for(task.spec):
            found = [perturbed(rule, example, task.spec, 13, 0) for example in task.train]
            for one, other in zip(found, task.train, strict=True):
                assert {**one, "question": ""} == {**other, "question": ""}
        assert found[0]["question"] != task.train[0]["question"]

    def test_choices_stay(self):
        task = tiny_task("multiple-choice")
        found = perturbed(BY_NAME["upper case"], task.train[0], task.spec, 13, 0)
        assert found == {**task.train[0], "text": task.train[0]["text"].upper()}


FILMS = [{"text": f"a {word} film", "label": label} for word, label in (("good", "good"), ("bad", "bad")) * 30]


@pytest.fixture
def compared():
    """Of two models with the same answers the student alone tells upper case from lower case."""
    teacher, student = sentiment("teacher"), sentiment("student")
    teacher.encoder.tokenizer.normalizer = Lowercase()
    task = Task(TaskSpec(kind="classification", labels=("bad", "good")), {"test": Examples(FILMS)}, source="films")
    results = measure_together([student], task, teacher, "test")
    return with_stress(results, {"teacher": teacher, "student": student}, task, "test"), task


class TestTwoModels:
    def test_scores_differences_and_agreement(self, compared):
        (teacher, student), _ = compared
        assert teacher.stress == ()
        rows = {row.rule: row for row in student.stress}
        assert list(rows) == [CLEAN, *(rule.name for rule in RULES)]
        clean, upper, lower, negation = (rows[name] for name in (CLEAN, "upper case", "lower case", "negation"))
        assert (clean.score, clean.reference, clean.changed, clean.examples) == (1.0, 1.0, 0, 60)
        assert clean.further is None
        # Of unknown words alone the student answers the first label, which is right of half of the films.
        assert (upper.score, upper.reference, upper.changed) == (0.5, 1.0, 60)
        assert upper.difference.value == -0.5
        assert upper.difference.low < -0.5 < upper.difference.high < 0
        assert upper.further.value == -0.5
        assert upper.further.low < -0.5 < upper.further.high < -0.02
        assert upper.agreement == {"labels": 0.5}
        assert (lower.changed, lower.score, lower.further.value) == (0, 1.0, 0.0)
        assert (negation.score, negation.reference, negation.difference) == (None, None, None)
        assert (negation.changed, negation.agreement) == (60, {"labels": 1.0})

    def test_it_is_said_where_the_student_falls_further_behind(self, compared):
        results, _ = compared
        first, *_, behind, last = sentences_of(results[1])
        assert first.startswith("Under upper case student falls 50.0 points further behind teacher than on clean texts")
        assert "chance" not in first
        assert behind == "student is more than 2 points behind teacher under upper case (50.0), title case (50.0)"
        assert last == "Of negation only the agreement is told: the truth of a text may turn with it"

    def test_what_may_be_chance_is_called_so(self, compared):
        student = compared[0][1]
        upper = next(row for row in student.stress if row.rule == "upper case")
        wide = type(upper.further)(-0.03, -0.07, 0.01)
        rows = tuple(type(row)(**{**vars(row), "further": wide}) if row is upper else row for row in student.stress)
        first = sentences_of(student.model_copy(update={"stress": rows}))[0]
        assert first.endswith(
            "3.0 points further behind teacher than on clean texts (95% interval -7.0 to +1.0), which may be chance"
        )
        none = tuple(row for row in student.stress if row is not upper)
        while_none = sentences_of(
            student.model_copy(
                update={"stress": tuple(row for row in none if row.further is None or row.further.value > -0.02)}
            )
        )[0]
        assert (
            while_none
            == "Under no rule does student fall more than 2 points further behind teacher than on clean texts"
        )

    def test_reports_show_it(self, compared, tmp_path):
        results, task = compared
        shown = to_text(results)
        assert "further than clean" in shown
        assert "50.0 points further behind teacher" in shown
        html = page("films", results)
        assert "<h2>Perturbed texts</h2>" in html
        assert "50.0 points further behind teacher" in html
        card = model_card("films", task.spec, results)
        assert "### Perturbed texts" in card
        assert "| upper case | 60 of 60 | 1.0000 | 0.5000 |" in card
        kept = Result.load(results[1].save(tmp_path))
        assert kept.stress == results[1].stress

    def test_results_without_it_are_written_as_before(self, compared):
        results, _ = compared
        assert '"stress"' in results[1].to_json()
        assert '"stress"' not in results[0].to_json()
        assert "Perturbed" not in page("films", [results[0]])

    def test_examples_are_drawn_from_many(self, compared, monkeypatch):
        monkeypatch.setattr("eval.stress.stress_rows.MOST", 20)
        results, task = compared
        teacher, student = sentiment("teacher"), sentiment("student")
        again = [
            with_stress(results, {"teacher": teacher, "student": student}, task, "test", seed)[1].stress
            for seed in (13, 13, 14)
        ]
        assert {row.examples for row in again[0]} == {20}
        assert again[0] == again[1] != again[2]

    def test_without_a_reference_it_is_refused(self, compared):
        _, task = compared
        alone = measure_together([sentiment("student")], task, None, "test")
        with pytest.raises(UserError, match="give a reference"):
            with_stress(alone, {"student": sentiment("student")}, task, "test")


def labels(right: np.ndarray) -> list[dict[str, str]]:
    return [{"label": "good" if one else "bad"} for one in right]


def change(rng: np.random.Generator, examples: int, lost: float) -> tuple[Interval, np.ndarray]:
    """Return how a difference changes where a rule spoils ``lost`` of a student's right answers, and by example."""
    spec, gold = TaskSpec(kind="classification", labels=("bad", "good")), [{"label": "good"}] * examples
    teacher = rng.random(examples) < 0.92
    student = np.where(rng.random(examples) < 0.95, teacher, ~teacher)
    spoilt = student & (rng.random(examples) >= lost)
    before, now = (paired_scores(spec, [(labels(side), labels(teacher))], gold) for side in (student, spoilt))
    return change_of(before, now).interval(), spoilt.astype(float) - student


def test_the_interval_of_a_change_is_about_that_of_a_mean():
    found, by_example = change(np.random.default_rng(1), 400, 0.1)
    assert found.value == pytest.approx(by_example.mean())
    plain = 2 * 1.96 * by_example.std() / np.sqrt(400)
    assert plain <= found.high - found.low < 1.2 * plain


@pytest.mark.slow
def test_the_interval_of_a_change_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    truth = -0.1 * (0.92 * 0.95 + 0.08 * 0.05)
    found = [change(rng, 100, 0.1)[0] for _ in range(300)]
    assert np.mean([one.low <= truth <= one.high for one in found]) >= 0.92  # 0.95, less two standard errors


KINDS = ("classification", "regression", "multilabel", "tagging", "qa", "qa-with-null", "embedding", "multiple-choice")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_put_under_stress(kind):
    task = tiny_task(kind, pair=kind in ("regression", "embedding"), examples=12)
    teacher, student = (tiny_taskmodel("bert", task.spec, seed) for seed in (0, 1))
    models = {"teacher": teacher, "student": student}
    for name, model in models.items():
        models[name] = type(model)(model.model, model.tokenizer, model.task, name=name)
    results = measure_together([models["student"]], task, models["teacher"], "test")
    found = with_stress(results, models, task, "test")[1].stress
    assert len(found) == 1 + len(rules_for(task.spec))
    assert max(row.changed for row in found) == 12
    for row in found:
        assert all(-1 <= share <= 1 for share in row.agreement.values())
        if row.score is not None:
            assert row.difference.value == pytest.approx(row.score - row.reference)
            assert np.isnan(row.difference.low) or row.difference.low <= row.difference.value <= row.difference.high


def test_a_query_that_is_a_document_is_never_found_for_itself_whatever_a_rule_makes_of_it():
    model = tiny_taskmodel("bert", tiny_task("retrieval").spec)
    texts = ["a good film about films", "another bad film", "one more fine film"]
    corpus = Corpus(["one", "two", "three"], texts)
    query = {"id": "one", "text": texts[0], "corpus": corpus, "relevant": {"two": 1}}
    queries = [query, *(perturbed(rule, query, model.task, 13, 0) for rule in rules_for(model.task))]
    found = completed(model, queries, predict(model, queries)).answers
    assert [sorted(answer["ranking"]) for answer in found] == [["three", "two"]] * len(queries)


def recipe_of(folder, kind, family, **blocks):
    task = tiny_task(kind)
    write_data(task, folder / "data")
    Artifact.from_model(tiny_taskmodel(family, task.spec)).save(folder / "teacher")
    values = {
        "name": "r",
        "task": {"kind": kind, "data": str(folder / "data"), "max_length": 32},
        "teacher": {"model": str(folder / "teacher")},
        "student": {"from": "teacher"},
        "evaluate": {"latency": None, "stress": True},
    }
    return recipe_from_plain({**values, **blocks}, "r")


def test_what_cannot_be_put_under_stress_is_refused_before_any_training(tmp_path):
    recipe = recipe_of(tmp_path, "causal-lm", "gpt2", steps=["prune.vocabulary"])
    with pytest.raises(UserError, match=r"evaluate\.stress: a causal-lm model gives no answers to compare"):
        foresee(recipe)


def test_an_unchanged_model_without_an_export_is_put_under_no_stress(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    recipe = recipe_of(tmp_path, "classification", "bert", steps=["quantize.dynamic"])
    assert OWN_ANSWERS in run_recipe(recipe, tmp_path / "out").notes
