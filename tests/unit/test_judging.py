"""Somebody's data made ready to judge a finished model."""

from dataclasses import replace

import pytest

from eval.data.judging import label_names, with_choosing, with_test, with_train
from eval.data.loading import load_task
from eval.errors import UserError
from eval.task import Examples
from tests.tiny import tiny_task

ROWS = [{"text": f"film {number}", "label": ("bad", "good")[number % 2]} for number in range(400)]


class TestSplits:
    def test_one_split_is_divided_by_content(self):
        task, note = with_test(load_task("classification", ROWS))
        assert {name: len(split) for name, split in task.splits.items()} == {
            "train": 40,
            "validation": 120,
            "test": 240,
        }
        assert note == (
            "validation is the only split with labels, so it was divided: 40 give ranges, 120 choose, 240 report."
        )
        texts = [example["text"] for split in task.splits.values() for example in split]
        assert sorted(texts) == sorted(row["text"] for row in ROWS)
        again, _ = with_test(load_task("classification", ROWS[::-1]))
        assert {example["text"] for example in again.test} == {example["text"] for example in task.test}

    def test_a_group_stays_on_one_side(self):
        rows = [{**row, "group": str(number // 10)} for number, row in enumerate(ROWS)]
        task, _ = with_test(load_task("classification", rows))
        sides = [{example["group"] for example in split} for split in task.splits.values()]
        assert all(not one & other for one in sides for other in sides if one is not other)

    def test_the_training_split_alone_is_divided_too(self):
        task, note = with_test(load_task("classification", {"train": ROWS}))
        assert len(task.test) == 240
        assert note.startswith("train is the only split")

    @pytest.mark.parametrize("splits", [("train", "test"), ("train", "validation"), ("validation", "test")])
    def test_what_has_both_stays_as_it_is(self, splits):
        task = load_task("classification", {name: ROWS[200 * n : 200 * n + 200] for n, name in enumerate(splits)})
        assert with_test(task) == (task, "")

    @pytest.mark.parametrize("reports", ["validation", "test"])
    def test_a_small_training_split_chooses_whole(self, reports):
        task, note = with_test(load_task("classification", {"train": ROWS[:60], reports: ROWS[60:100]}))
        assert note == "train has too few examples to divide, so all 60 choose."
        assert (task.validation.digest, len(task.test)) == (task.train.digest, 40)

    def test_too_few(self):
        with pytest.raises(UserError, match="has 59 examples, too few"):
            with_test(load_task("classification", ROWS[:59]))

    def test_one_split_is_divided_to_train_too(self):
        rows = [{**row, "group": str(number // 10)} for number, row in enumerate(ROWS)]
        task, note = with_train(load_task("classification", rows))
        assert note.endswith("so it was divided: 240 train, 40 choose, 120 report.")
        sides = [{example["group"] for example in task.splits[name]} for name in ("train", "validation", "test")]
        assert all(not one & other for one in sides for other in sides if one is not other)
        with pytest.raises(UserError, match="has 59 examples, too few to learn or choose"):
            with_train(load_task("classification", ROWS[:59]))

    @pytest.mark.parametrize("reports", ["validation", "test"])
    def test_what_trains_and_reports_stays_as_it_is(self, reports):
        task = load_task("classification", {"train": ROWS[:300], reports: ROWS[300:]})
        assert with_train(task) == (task, "")

    def test_what_the_model_has_met_reports_nothing(self):
        met = frozenset(row["text"] for row in ROWS[:280])

        def places(pool):
            return [at for at, row in enumerate(pool) if row["text"] in met]

        for divide in (with_test, with_train):
            task, _ = divide(load_task("classification", ROWS), places)
            assert len(task.test) == 120
            assert not met & {example["text"] for example in task.test}
            assert {example["text"] for example in task.train} & met
        with pytest.raises(UserError, match=r"has 400 groups of examples, 400 of them known to the model, too few"):
            with_test(load_task("classification", ROWS), lambda pool: range(len(pool)))

    @pytest.mark.parametrize("divide", [with_test, with_train])
    def test_two_groups_are_too_few_for_three_splits(self, divide):
        rows = [{**row, "group": str(number // 200)} for number, row in enumerate(ROWS)]
        with pytest.raises(UserError, match=r"has 2 groups of examples, which are divided whole, too few for each of"):
            divide(load_task("classification", rows))

    def test_a_test_split_reports_though_nothing_trains(self):
        task, note = with_train(load_task("classification", {"validation": ROWS[:200], "test": ROWS[200:]}))
        assert note == "there is no train, so validation was divided: 180 train, 20 choose; test reports."
        assert {name: len(split) for name, split in task.splits.items()} == {
            "validation": 20,
            "test": 200,
            "train": 180,
        }


class TestQueries:
    def test_the_only_judged_split_is_divided(self):
        task = tiny_task("retrieval", examples=60)
        texts = Examples([{"text": text} for text in task.test[0]["corpus"].texts], "unlabeled")
        alone = replace(task, splits={"validation": task.validation, "unlabeled": texts})
        found, note = with_choosing(alone)
        assert {name: len(split) for name, split in found.splits.items()} == {
            "validation": 18,
            "unlabeled": len(texts),
            "test": 42,
        }
        names = [query["id"] for name in ("validation", "test") for query in found.splits[name]]
        assert sorted(names) == sorted(query["id"] for query in task.validation)
        assert note == (
            "validation is the only split with judgements, so it was divided: 18 queries choose, 42 report."
        )

    def test_judgements_of_two_splits_stay_as_they_are(self):
        task = tiny_task("retrieval", examples=60)
        for names in (("train", "test"), ("validation", "test")):
            some = replace(task, splits={name: task.splits[name] for name in names})
            assert with_choosing(some) == (some, "")

    def test_some_of_train_choose_for_a_reranker(self):
        task = tiny_task("retrieval", examples=240)
        some = replace(task, splits={name: task.splits[name] for name in ("train", "test")})
        found, note = with_choosing(some, pairs=True)
        assert note == "validation has no judgements, so train was divided: 211 queries to learn from, 29 choose."
        assert found.test == task.test
        names = [query["id"] for name in ("train", "validation") for query in found.splits[name]]
        assert sorted(names) == sorted(query["id"] for query in task.train if "id" in query)

    def test_few_of_a_reranker_all_train(self):
        task = tiny_task("retrieval", examples=59)
        some = replace(task, splits={name: task.splits[name] for name in ("train", "test")})
        assert with_choosing(some, pairs=True) == (some, "")

    def test_too_few(self):
        task = tiny_task("retrieval", examples=59)
        with pytest.raises(UserError, match="has 59 examples, too few to learn or choose"):
            with_choosing(replace(task, splits={"test": task.test}))


class TestLabels:
    @pytest.mark.parametrize(
        ("found", "own", "names"),
        [
            (("bad", "good"), ("good", "bad", "so-so"), {}),
            (("Bad", "GOOD"), ("bad", "good"), {"Bad": "bad", "GOOD": "good"}),
            (("0", "1"), ("bad", "good"), {"0": "bad", "1": "good"}),
            (("0.0", "1.0"), ("bad", "good"), {"0.0": "bad", "1.0": "good"}),
            (("0", "1"), ("LABEL_0", "LABEL_1"), {"0": "LABEL_0", "1": "LABEL_1"}),
            (("good", "bad"), ("LABEL_0", "LABEL_1"), {"bad": "LABEL_0", "good": "LABEL_1"}),
        ],
    )
    def test_they_are_matched(self, found, own, names):
        assert label_names(found, own)[0] == names

    def test_what_is_assumed_is_told(self):
        assert label_names(("good", "bad"), ("LABEL_0", "LABEL_1"))[1] == (
            "labels: bad = LABEL_0, good = LABEL_1 (in alphabetical order; the model names none)"
        )

    @pytest.mark.parametrize(
        ("found", "own"),
        [
            (("a", "b"), ("x", "y")),
            (("a", "b", "c"), ("LABEL_0", "LABEL_1")),
            (("2",), ("x", "y")),
            (("0.5",), ("x", "y")),
        ],
    )
    def test_others_are_refused(self, found, own):
        with pytest.raises(UserError, match=r"labels: the model answers .*, the data has "):
            label_names(found, own)
