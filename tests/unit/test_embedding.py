"""Tasks whose answers are vectors: data, pooling, answers, scores, model folders and exports."""

import json
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch

from compress.export import export_onnx
from compress.export.runtime.answering import ExportError, Runtime
from compress.export.runtime.given_example import example
from eval.cost.latency import latency
from eval.data.loading import load_task
from eval.errors import UserError
from eval.inference import predict
from eval.kinds.embedding import cosines
from eval.measurement import measure, pair
from eval.proof.paired_statistics import agreement
from eval.report.card import model_card
from eval.scores import per_example, resampler, score
from eval.task import Pooling, TaskSpec
from teachers.anatomy.pooling import pooled, set_pooling
from teachers.finetuning.finetune import finetune
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import load_taskmodel, save_taskmodel
from teachers.training.scoring import rows_of, scorable
from tests.tiny import FAMILIES, in_turn, tiny_config, tiny_spec, tiny_task, tiny_taskmodel

PAIRS = [{"text_a": "good film", "text_b": "great film", "label": 4}, {"text_a": "a", "text_b": "b", "label": 0.5}]
CLASSES = [{"text": "good film", "label": "film"}, {"text": "great meal", "label": "meal"}]


def write(folder, **splits):
    for name, items in splits.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    return folder


def vectors(*rows, **fields):
    return [{"vectors": [list(map(float, row))], **fields} for row in rows]


@pytest.mark.parametrize("kind", ["embedding", "retrieval"])
def test_a_line_of_a_corpus_is_read_as_where_documents_are_searched(kind, tmp_path):
    documents = [{"_id": "d", "title": "Films", "text": " a warm film"}, {"_id": "e", "title": None, "text": "dull "}]
    write(tmp_path, corpus=documents, queries=[{"_id": "q", "text": "which?"}])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    (query,) = load_task("retrieval", tmp_path).test
    lines = (tmp_path / "corpus.jsonl").read_text().splitlines()
    for given in (lines, documents):
        read = [example(item, kind, False) for item in given]
        assert tuple(each["text"] for each in read) == query["corpus"].texts
        assert [example(each, kind, False) for each in read] == read, "a title is put in front once"
    assert example(lines[0], "classification", False)["text"] == " a warm film"
    with pytest.raises(ExportError, match="title must be a text, got int"):
        example({"text": "x", "title": 3}, kind, False)


class TestData:
    def test_pairs_with_numbers_are_scored_by_spearman(self, tmp_path):
        task = load_task("embedding", write(tmp_path, train=PAIRS, validation=PAIRS))
        assert (task.spec.metric, task.spec.pair, task.spec.labels) == ("spearman", True, ())
        assert (task.spec.pooling, task.spec.normalize) == ("mean", True)
        assert [item["label"] for item in task.validation] == [4.0, 0.5]

    def test_single_texts_with_classes_are_scored_by_their_neighbours(self, tmp_path):
        task = load_task("embedding", write(tmp_path, validation=CLASSES), pooling="first", normalize=False)
        assert (task.spec.metric, task.spec.pair, task.spec.labels) == ("nearest", False, ())
        assert (task.spec.pooling, task.spec.normalize) == ("first", False)
        assert task.validation[0] == CLASSES[0]

    def test_training_texts_need_no_label_and_keep_none(self, tmp_path):
        write(tmp_path, train=[PAIRS[0], {"text": "alone"}, *CLASSES], unlabeled=[{"text": "more"}], validation=PAIRS)
        task = load_task("embedding", tmp_path)
        assert list(task.splits) == ["train", "validation"]
        texts = [{"text_a": "good film", "text_b": "great film"}, {"text": "alone"}, {"text": "good film"}]
        assert list(task.train) == [*texts, {"text": "great meal"}, {"text": "more"}]

    def test_plain_text_files_are_data(self, tmp_path):
        (tmp_path / "train.txt").write_text("one\ntwo\n")
        (tmp_path / "validation.txt").write_text("three\n")
        task = load_task("embedding", tmp_path)
        assert [item["text"] for item in task.train] == ["one", "two"]
        assert task.spec.metric == "spearman"
        assert not scorable(task.spec, task.validation)
        with pytest.raises(UserError, match="1 example of 'validation' without 'label'"):
            measure(tiny_taskmodel("bert", task.spec), task)

    def test_numbers_of_text_tables(self, tmp_path):
        (tmp_path / "validation.tsv").write_text("text_a\ttext_b\tlabel\nx\ty\t2.5\n")
        assert load_task("embedding", tmp_path).validation[0]["label"] == 2.5
        (tmp_path / "validation.tsv").write_text("text\tlabel\nx\t7\ny\tnan\n")
        assert [item["label"] for item in load_task("embedding", tmp_path).validation] == ["7", "nan"]

    @pytest.mark.parametrize(
        ("items", "given", "sentence"),
        [
            ([*PAIRS, CLASSES[0]], {}, "has a single text, but the items before it have a pair of texts; use one form"),
            ([PAIRS[0] | {"label": "same"}], {}, "'label' must be a finite number, not 'same'"),
            (CLASSES, {"metric": "spearman"}, "'spearman' is for pairs of texts with a number as label"),
            (PAIRS, {"metric": "nearest"}, "'nearest' is for single texts with a class as label"),
            (PAIRS, {"labels": ["a", "b"]}, "labels: embedding has no labels"),
            (PAIRS, {"pooling": "middle"}, "pooling: got 'middle'"),
        ],
    )
    def test_what_is_refused(self, tmp_path, items, given, sentence):
        with pytest.raises(UserError) as caught:
            load_task("embedding", write(tmp_path, validation=items), **given)
        assert sentence in str(caught.value)

    def test_other_kinds_have_no_vectors(self, tmp_path):
        with pytest.raises(UserError, match="pooling: classification has no vectors; leave it out"):
            load_task("classification", write(tmp_path, validation=CLASSES), pooling="mean")


class TestPooling:
    states = torch.tensor([[[3.0, 4.0], [1.0, 0.0], [9.0, 9.0]], [[0.0, 2.0], [0.0, 4.0], [0.0, 0.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])

    def vectors(self, family="bert", **fields):
        config = tiny_config(family)
        set_pooling(config, TaskSpec(kind="embedding", **fields))
        return pooled(self.states, self.mask, config)

    def test_by_hand(self):
        assert self.vectors(normalize=False).tolist() == [[2.0, 2.0], [0.0, 2.0]]
        assert self.vectors().numpy() == pytest.approx(np.array([[0.5**0.5, 0.5**0.5], [0.0, 1.0]]))
        assert self.vectors(pooling="first", normalize=False).tolist() == [[3.0, 4.0], [0.0, 2.0]]
        assert self.vectors(pooling="max", normalize=False).tolist() == [[3.0, 4.0], [0.0, 4.0]]
        assert self.vectors(pooling="last", normalize=False).tolist() == [[1.0, 0.0], [0.0, 0.0]]
        weighted = self.vectors(pooling="weighted_mean", normalize=False).tolist()
        assert weighted == [pytest.approx([5 / 3, 4 / 3]), pytest.approx([0, 10 / 6])]
        assert self.vectors(pooling="first").numpy() == pytest.approx(np.array([[0.6, 0.8], [0.0, 1.0]]))

    @pytest.mark.parametrize("pooling", ["max", "last", "weighted_mean"])
    def test_padding_on_the_left_changes_nothing(self, pooling):
        config = tiny_config("bert")
        set_pooling(config, TaskSpec(kind="embedding", pooling=pooling))
        right = pooled(self.states, self.mask, config)
        left = pooled(self.states[:1, [2, 0, 1]], torch.tensor([[0, 1, 1]]), config)
        assert torch.allclose(left[0], right[0])

    def test_xlnet_has_its_classifier_token_at_the_end(self):
        assert self.vectors("xlnet", pooling="first", normalize=False).tolist() == [[9.0, 9.0], [0.0, 0.0]]

    @pytest.mark.parametrize("family", FAMILIES)
    def test_a_network_gives_the_mean_of_its_last_states(self, family):
        task = tiny_task("embedding", pair=True)
        model = tiny_taskmodel(family, task.spec)
        features = model.encoder.encode(task.validation[:3])
        assert [feature.example for feature in features] == [0, 0, 1, 1, 2, 2]
        found = predict(model, task.validation[:3]).logits
        for feature in features[:2]:
            inputs = {name: torch.from_numpy(array) for name, array in model.encoder.collate([feature]).items()}
            with torch.no_grad():
                mean = model.model(**inputs).last_hidden_state[0].mean(dim=0)
            expected = (mean / mean.norm()).numpy()
            assert found[0][features.index(feature)] == pytest.approx(expected, abs=1e-5)


class TestAnswers:
    def test_one_vector_a_text_and_a_score_a_pair(self):
        model = tiny_taskmodel("bert", tiny_spec("embedding", pair=True))
        found = predict(model, [{"text_a": "good film", "text_b": "bad meal"}, {"text": "bad meal"}])
        two, one = found.answers
        assert [len(two["vectors"]), len(one["vectors"])] == [2, 1]
        assert "score" not in one
        assert two["vectors"][1] == pytest.approx(one["vectors"][0], abs=1e-6)
        assert np.linalg.norm(one["vectors"][0]) == pytest.approx(1.0, abs=1e-5)
        assert two["score"] == pytest.approx(float(np.dot(*two["vectors"])), abs=1e-5)
        assert [logits.shape for logits in found.logits] == [(2, 32), (1, 32)]
        json.dumps(found.answers)

    def test_cosines_by_hand(self):
        first, second = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]]), np.array([[6.0, 8.0], [0.0, 5.0], [1.0, 1.0]])
        assert cosines(first, second).tolist() == pytest.approx([1.0, 0.0, 0.0])

    def test_texts_of_a_pair_are_cut_one_by_one(self):
        model = tiny_taskmodel(
            "bert", tiny_spec("embedding", pair=True, max_length=8).model_copy(update={"truncation": "only_second"})
        )
        features = model.encoder.encode([{"text_a": "good " * 30, "text_b": "bad"}])
        assert [len(feature.ids) for feature in features] == [8, 3]


class TestScores:
    def test_the_nearest_other_text_decides(self):
        answers = vectors([1, 0], [0.9, 0.1], [0, 1], [0.1, 9], [1, 0.2])
        examples = [{"text": "", "label": label} for label in "aabba"]
        spec = TaskSpec(kind="embedding", metric="nearest")
        assert score(spec, answers, examples) == {"nearest": 1.0}
        examples[4] = {"text": "", "label": "b"}
        assert per_example(spec, answers, examples).tolist() == [1, 0, 1, 1, 0]
        measured = resampler(spec, answers, examples)
        assert measured(np.array([1, 1, 4, 0])) == 0.25  # neighbours are those among all examples
        assert score(spec, answers[:1], examples[:1]) == {"nearest": 0.0}

    def test_many_texts_are_compared_in_parts(self, monkeypatch):
        generator = np.random.default_rng(0)
        answers = vectors(*generator.normal(size=(50, 6)))
        examples = [{"label": str(label)} for label in generator.integers(0, 4, 50)]
        spec = TaskSpec(kind="embedding", metric="nearest")
        found = per_example(spec, answers, examples)
        rows = np.array([answer["vectors"][0] for answer in answers])
        for place, row in enumerate(rows):
            others = [(float(cosines(row[None], other[None])[0]), i) for i, other in enumerate(rows) if i != place]
            assert found[place] == (examples[max(others)[1]]["label"] == examples[place]["label"])
        monkeypatch.setattr("eval.metrics.scorers.ROWS", 7)
        assert per_example(spec, answers, examples).tolist() == found.tolist()

    def test_pairs_have_rank_errors(self):
        spec = TaskSpec(kind="embedding", metric="spearman", pair=True)
        answers = [{"score": value} for value in (0.1, 0.9, 0.5)]
        examples = [{"label": value} for value in (1.0, 3.0, 5.0)]
        assert score(spec, answers, examples) == pytest.approx({"spearman": 0.5, "pearson": 0.5})
        assert per_example(spec, answers, examples) == pytest.approx([0, -1 / 9, -1 / 9])

    def test_agreement_is_the_mean_cosine(self):
        own, other = vectors([1, 0], [0, 1], [1, 1]), vectors([2, 0], [1, 0], [3, 3])
        found = agreement("embedding", own, other)
        assert list(found) == ["cosine", "similarities"]
        assert found["cosine"] == pytest.approx(2 / 3)
        assert agreement("embedding", own, own) == pytest.approx({"cosine": 1.0, "similarities": 1.0})

    def test_widths_may_differ(self):
        own, other = vectors([1, 0], [0, 1], [1, 1]), vectors([1, 0, 0], [0, 1, 0], [1, 1, 0])
        assert agreement("embedding", own, other) == pytest.approx({"similarities": 1.0})

    @pytest.mark.parametrize("pairs", [True, False])
    def test_two_models_are_measured_and_compared(self, pairs, tmp_path):
        task = tiny_task("embedding", pair=pairs)
        reference, model = (tiny_taskmodel("bert", task.spec, seed=seed) for seed in (0, 1))
        result = measure(model, task, reference)
        again = pair(result, measure(reference, task))
        assert result.comparison.difference == again.difference
        assert -1 < again.agreement["cosine"] < 1
        assert result.metric == ("spearman" if pairs else "nearest")
        result.save(tmp_path / "result")
        assert type(result).load(tmp_path / "result").kept.answers == result.kept.answers
        assert (again.mcnemar is None) == pairs
        assert latency({"model": model}, task.validation, batch=(4,), seconds=0.02)[0].rounds > 0


class TestFolders:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_a_saved_model_is_a_stock_encoder_and_the_same_again(self, family, tmp_path):
        task = tiny_task("embedding")
        model = tiny_taskmodel(family, task.spec)
        save_taskmodel(model, tmp_path)
        own = predict(model, task.validation[:4]).logits
        assert np.allclose(predict(load_taskmodel(tmp_path), task.validation[:4]).logits, own, atol=1e-6)
        (tmp_path / "task.json").unlink()  # what is left is a folder of sentence-transformers
        again = load_taskmodel(tmp_path)
        assert (again.task.kind, again.task.pooling, again.task.normalize) == ("embedding", "mean", True)
        assert np.allclose(predict(again, task.validation[:4]).logits, own, atol=1e-6)
        from transformers import AutoModel

        assert type(AutoModel.from_pretrained(tmp_path)).__name__ == type(model.model).__name__

    def test_the_card_says_how_vectors_are_made(self):
        card = model_card("m", tiny_spec("embedding"))
        assert "pipeline_tag: sentence-similarity" in card
        assert "AutoModel.from_pretrained(folder)" in card
        assert "the mean of the last hidden states of its real tokens, scaled to length 1" in card


class TestTraining:
    def test_there_is_no_loss_of_labels(self, tmp_path, monkeypatch):
        monkeypatch.setenv("COMPRESS_HOME", str(tmp_path))
        task = tiny_task("embedding")
        with pytest.raises(UserError, match="an embedding task has no labels to learn from"):
            finetune(tiny_taskmodel("bert", task.spec), task)

    @pytest.mark.parametrize("families", [("bert", "bert"), ("bert", "roberta")])
    def test_cached_vectors_are_the_live_ones(self, families, tmp_path):
        task = tiny_task("embedding", pair=True)
        student, teacher = (tiny_taskmodel(family, task.spec) for family in families)
        rows = rows_of(student, task.train, 1)
        reader = ModelTeacher(teacher, cache=tmp_path).read(rows)
        assert json.loads(next(tmp_path.glob("*/layout.json")).read_text()) == {"logits": [32]}
        batch = rows.batch([5, 0, 3])
        own = teacher.encoder.encode(task.train)
        expected = teacher.forward(teacher.encoder.collate([own[row] for row in (5, 0, 3)]))
        assert np.allclose(reader(batch).logits.numpy(), expected, atol=1e-6)

    def test_pooling_tells_two_teachers_apart(self):
        spec = tiny_spec("embedding")
        one, other = (spec.model_copy(update={"pooling": pooling}) for pooling in ("mean", "first"))
        first, second = (ModelTeacher(tiny_taskmodel("bert", each)).digest for each in (one, other))
        assert first != second


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    task = tiny_task("embedding", pair=True)
    model = tiny_taskmodel("bert", task.spec)
    reports = {int8: export_onnx(model, folder / str(int8), int8=int8, examples=task.validation) for int8 in (0, 1)}
    return model, task, folder, reports


class TestExport:
    @pytest.mark.parametrize(("family", "pooling"), in_turn(FAMILIES, get_args(Pooling), 5, always=("bert",)))
    def test_every_family_exports_its_vectors(self, family, pooling, tmp_path):
        if (family, pooling) == ("gpt2", "first"):
            pytest.skip("the first token of gpt2 sees no other, so its vector is refused")
        spec = tiny_spec("embedding").model_copy(update={"pooling": pooling})
        model = tiny_taskmodel(family, spec)
        report = export_onnx(model, tmp_path / "out")
        assert report.gate.passed
        found = Runtime(tmp_path / "out").predict(["good film", "a sad and very dull song"])
        expected = predict(model, [{"text": "good film"}, {"text": "a sad and very dull song"}])
        assert np.allclose(found.logits, expected.logits, atol=1e-5)

    def test_the_output_is_named_and_pooled(self, exported):
        _, _, folder, reports = exported
        session = Runtime(folder / "0").session
        outputs = [(value.name, len(value.shape)) for value in session.get_outputs()]
        assert outputs == [("vectors", 2), ("last_hidden_state", 3)]
        assert reports[0].gate.max_abs_difference < 1e-5
        assert 0.97 <= reports[1].gate.agreement <= 1
        assert reports[1].bytes < reports[0].bytes

    def test_an_export_is_measured_against_its_model(self, exported):
        model, task, folder, _ = exported
        found = measure(Runtime(folder / "1", name="int8"), task, model)
        assert found.comparison.agreement["cosine"] > 0.97

    def test_wrong_vectors_are_refused(self, exported, tmp_path):
        from compress.export.check.gate import compare

        _, task, folder, _ = exported
        other = tiny_taskmodel("bert", task.spec, seed=3)
        found = compare(Runtime(folder / "1"), other, task.validation, tolerance=None, agreement=0.97)
        assert not found.passed
        assert "of the predictions on 40 examples are equal, needed are 97.00%" in found.problems[0]

    def test_lines(self):
        assert example("a\tb", "embedding", pair=True) == {"text": "a\tb"}
        assert example('{"text": "a"}', "embedding", pair=True) == {"text": "a"}
        assert example('{"text_a": "a", "text_b": "b"}', "embedding", pair=False) == {"text_a": "a", "text_b": "b"}
        assert example('{"x": 1}', "embedding", pair=True) == {"text": '{"x": 1}'}
        with pytest.raises(ExportError, match="lacks text_b"):
            example({"text_a": "a"}, "embedding", pair=True)

    def test_the_program_of_an_export_prints_vectors(self, exported):
        model, _, folder, _ = exported
        line = json.dumps({"text_a": "good film", "text_b": "bad meal"})
        command = [sys.executable, str(folder / "0" / "predict.py"), "good film", line]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        one, two = map(json.loads, run.stdout.splitlines())
        expected = predict(model, [{"text": "good film"}]).answers[0]["vectors"][0]
        assert one["vectors"][0] == pytest.approx(expected, abs=1e-5)
        assert two["vectors"][0] == pytest.approx(expected, abs=1e-5)
        assert two["score"] == pytest.approx(float(np.dot(*two["vectors"])), abs=1e-5)
        page = (folder / "0" / "README.md").read_text()
        assert "An embedding model for ONNX Runtime" in page
        assert "A line is a text, or a JSON object with `text`, or with `text_a` and `text_b`" in page
