"""Contrastive distillation: the formula in numpy, negatives mined by loops, batches that hold them, and students."""

import numpy as np
import pytest
import torch

from compress import load
from compress.distill.components.hard_negatives import hard_negatives
from compress.distill.contrastive import ContrastiveDistillation
from compress.engine.steps import run
from compress.recipe import Recipe
from compress.registry import get
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from eval.task import Examples
from teachers.data.example_pairs import matching_pairs
from teachers.data.pair_rows import TextPairs
from teachers.losses.catalogue import InBatchNegatives
from teachers.signals.hooks import Signals, observe
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.config import Training
from teachers.training.scoring import rows_of
from tests.tiny import FAMILIES, PEOPLE, PLACES, at_first, tiny_task, tiny_taskmodel

TASK = tiny_task("embedding", pair=True)


def found_pairs(label=None):
    """Return a pair for each person and place; persons 0 and 1 have two passages each, and two share one."""
    told = zip(PEOPLE, PLACES, strict=True)
    pairs = [(f"where is {person} ?", f"{person} lives in {place}") for person, place in told]
    pairs += [(pairs[0][0], "ann likes rome"), (pairs[1][0], "ann likes rome"), (pairs[1][0], pairs[1][1])]
    lines = [{"text_a": a, "text_b": b} | ({} if label is None else {"label": label}) for a, b in pairs]
    return Examples(lines, "train")


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def bound(tmp_path, examples=None, teacher=None, **fields):
    student = tiny_taskmodel("bert", TASK.spec)
    rows = rows_of(student, examples or found_pairs(), 1)
    teacher = teacher or tiny_taskmodel("bert", TASK.spec, seed=1, initializer_range=0.3)
    source = ModelTeacher(teacher, cache=tmp_path)
    return student, rows, source, ContrastiveDistillation(**fields).bind(student, rows, source)


@pytest.mark.parametrize("negatives", [0, 2])
def test_both_terms_are_the_formula(negatives, tmp_path):
    _, rows, source, loss = bound(tmp_path, alpha=0.25, temperature=0.1, negatives=negatives)
    batch = loss.prepare(rows.batch([*range(6), 16, 17, 18, 19]))  # five pairs, two of which share a passage
    numbers = batch.rows.tolist()
    own = torch.randn(len(numbers), 7, generator=torch.Generator().manual_seed(1))
    found = loss(Signals(own), batch)
    texts = {row: rows.examples[row // 2]["text_b" if row % 2 else "text_a"] for row in numbers}
    right = {(example["text_a"], example["text_b"]) for example in rows.examples}
    s, t = (unit(vectors.numpy()) for vectors in (own, source.read(rows)(batch).logits))
    infonce = similarity = 0.0
    queries = [place for place, row in enumerate(numbers) if row % 2 == 0]
    passages = [place for place, row in enumerate(numbers) if row % 2 == 1]
    for query in queries:
        positive = numbers.index(numbers[query] + 1)
        others = [p for p in passages if p != positive and (texts[numbers[query]], texts[numbers[p]]) not in right]
        scores = np.array([s[query] @ s[p] / 0.1 for p in (positive, *others)])
        infonce -= np.log(softmax(scores)[0]) / len(queries)
        mine, wanted = (softmax(np.array([side[query] @ side[p] / 0.1 for p in passages])) for side in (s, t))
        similarity += (wanted * np.log(wanted / mine)).sum() / len(queries)
    assert found["infonce"].item() == pytest.approx(0.75 * infonce, rel=1e-4)
    assert found["similarity"].item() == pytest.approx(0.25 * similarity, rel=1e-4)
    assert len(numbers) > 10 or not negatives


def test_negatives_are_the_nearest_below_the_share_of_the_right_score(tmp_path):
    _, rows, source, loss = bound(tmp_path, negatives=3, margin=0.9)
    vectors = unit(source.read(rows)(rows.batch(range(len(rows)))).logits.numpy())
    examples, some = rows.examples, 0
    for number, example in enumerate(examples):
        right = {e["text_b"] for e in examples if e["text_a"] == example["text_a"]}
        limit = 0.9 * vectors[2 * number] @ vectors[2 * number + 1]
        scores = {
            e["text_b"]: vectors[2 * number] @ vectors[2 * other + 1]
            for other, e in enumerate(examples)
            if e["text_b"] not in right
        }
        wanted = [text for text in sorted(scores, key=scores.get, reverse=True) if scores[text] <= limit][:3]
        assert [examples[row // 2]["text_b"] for row in loss.mined[2 * number]] == wanted
        some += len(wanted)
    assert some > 0
    scores = torch.tensor([[0.5, 0.49, 0.4, 0.3], [0.1, 0.2, 0.9, 0.86]])
    known = torch.tensor([[True, False, False, False], [False, False, True, False]])
    assert hard_negatives(scores, torch.tensor([0.5, 0.9]), known, 2, 0.95) == [[2, 3], [1, 0]]


def test_what_is_mined_is_found_in_the_cache_again(tmp_path, monkeypatch):
    first = bound(tmp_path, negatives=2)[-1]

    def refuse(*given):
        raise AssertionError("the teacher ran again")

    monkeypatch.setattr("teachers.signals.model_teacher.write_signals", refuse)
    assert bound(tmp_path, negatives=2)[-1].mined == first.mined


def test_a_batch_holds_each_text_once_and_cut_batches_keep_negatives_with_their_query(tmp_path):
    _, rows, _, loss = bound(tmp_path, negatives=3)
    plain = rows.batch([0, 1, 4, 5])
    batch = loss.prepare(plain)
    assert len(batch) == len(plain) == 4
    passages = [rows.examples[row // 2]["text_b"] for row in batch.rows.tolist() if row % 2]
    assert len(set(passages)) == len(passages)
    assert [*batch.part(0, 2).rows.tolist(), *batch.part(2, 4).rows.tolist()] == batch.rows.tolist()
    assert batch.part(2, 4).rows.tolist()[0] == 4
    again = rows.batch(batch.rows.tolist())
    assert torch.equal(again.inputs["input_ids"], batch.inputs["input_ids"])


def test_only_what_belongs_together_is_a_query_and_others_are_passages():
    lines = [*found_pairs(1.0)[:3], {"text_a": "where is bob ?", "text_b": "bob likes it", "label": 0.0}, {"text": "x"}]
    examples = Examples(lines, "train")
    pairs = TextPairs.of(rows_of(tiny_taskmodel("bert", TASK.spec), examples, 1))
    assert list(pairs.queries) == [0, 2, 4]
    assert list(pairs.passages) == [1, 3, 5, 7]
    assert pairs.belong_together([2], [1, 3, 7]).tolist() == [[False, True, False]]
    assert len(ContrastiveDistillation().select(TASK.spec, examples)) == 3


def graded():
    """Return the rows of a retrieval task with two grades, each relevant document a pair with its query."""
    model = tiny_taskmodel("bert", tiny_task("retrieval").spec)
    judged = [("q ann", "ann in rome", 2.0), ("q ann", "ann in oslo", 1.0), ("q bob", "bob in oslo", 1.0)]
    lines = [{"text_a": a, "text_b": b, "label": grade} for a, b, grade in judged]
    return model, rows_of(model, Examples(lines, "train"), 1)


def test_every_grade_of_a_relevant_document_belongs_to_its_query():
    _model, rows = graded()
    pairs = TextPairs.of(rows)
    assert list(pairs.queries) == [0, 2, 4]
    assert pairs.belong_together([0, 2, 4], [1, 3, 5]).tolist() == [
        [True, True, False],
        [True, True, False],
        [False, False, True],
    ]
    task = tiny_task("retrieval")
    graded_twice = [{**e, "relevant": dict.fromkeys(e["relevant"], 1 + i % 2)} for i, e in enumerate(task.test)]
    queries = [example for example in graded_twice if "corpus" in example]
    assert len(matching_pairs(task.spec, Examples(graded_twice, "train"))) == len(queries) > 2


def test_the_same_text_and_further_right_passages_are_no_negatives_of_a_fine_tuning():
    """Of two passages of one query each is right, and no query is a passage of its own."""
    model, rows = graded()
    vectors = torch.randn(len(rows), 5, generator=torch.Generator().manual_seed(1))
    found = InBatchNegatives(temperature=0.5).bind(model, rows)(Signals(vectors), rows.batch(range(6)))
    first, second = (unit(vectors[side::2].numpy().astype(np.float64)) for side in (0, 1))
    scores = first @ second.T / 0.5
    candidates = [[0, 2], [1, 2], [2, 0, 1]]
    wanted = np.mean([-np.log(softmax(scores[row][own])[0]) for row, own in enumerate(candidates)])
    assert found["contrastive"].item() == pytest.approx(wanted, abs=1e-5)
    chain = Examples([{"text_a": "a", "text_b": "b"}, {"text_a": "b", "text_b": "c"}], "train")
    pairs = TextPairs.of(rows_of(tiny_taskmodel("bert", TASK.spec), chain, 1))
    assert pairs.belong_together([0, 2], [1, 3]).tolist() == [[True, False], [True, True]]


def test_a_batch_without_a_whole_pair_has_no_loss(tmp_path):
    student, rows, _, loss = bound(tmp_path)
    batch = rows.batch([0, 3])
    found = loss(observe(student.model, batch.inputs), batch)
    assert {name: value.item() for name, value in found.items()} == {"infonce": 0.0}
    found["infonce"].backward()


def ranks(model, examples):
    """Return the mean reciprocal rank of each query's passage among all passages."""
    vectors = predict(model, examples).logits
    first, second = (unit(np.stack([pair[side] for pair in vectors])) for side in (0, 1))
    scores = first @ second.T
    return float(np.mean([1 / (1 + (row > row[number]).sum()) for number, row in enumerate(scores)]))


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert", "roberta"))
def test_a_student_learns_to_find_passages_and_is_saved(family, tmp_path):
    """The teacher has another width and, but for BERT, another tokenizer."""
    examples = found_pairs()[:8]
    train = Examples(list(examples), "train")
    teacher = tiny_taskmodel("bert", TASK.spec, seed=1, hidden_size=16, initializer_range=0.3)
    source = ModelTeacher(teacher, cache=tmp_path / "signals")
    epochs = 30 if family == "gpt2" else 20  # a decoder's last token learns more slowly
    technique = ContrastiveDistillation(alpha=0.1, negatives=2, epochs=epochs, batch_size=8, learning_rate=3e-3)
    student = tiny_taskmodel(family, TASK.spec)
    result = run(Recipe(steps=(technique,)), student, Inputs(train=train, teacher=source), dry_run_first=False)
    result.save(tmp_path / "a")
    assert load(tmp_path / "a").digest == result.digest
    assert ranks(result, train) > ranks(student, train) + 0.1
    history = result.lineage[-1].facts["history"]
    assert history[-1]["terms"]["infonce"] < 0.7 * history[0]["terms"]["infonce"]


def test_it_is_a_term_of_an_objective_after_pruning(tmp_path):
    source = ModelTeacher(tiny_taskmodel("bert", TASK.spec, seed=1), cache=tmp_path)
    objective = {"distill.contrastive": {"negatives": 2}, "distill.embedding": {"similarity": 1.0, "weight": 0.5}}
    training = Training(max_steps=2, batch_size=8)
    step = get("prune.structured")(ffn=0.5, importance="magnitude", objective=objective, training=training)
    train = Examples([*found_pairs(), *({"text": text} for text in PLACES)], "train")
    result = run(Recipe(steps=(step,)), tiny_taskmodel("bert", TASK.spec), Inputs(train=train, teacher=source))
    assert {"distill.contrastive.infonce", "distill.contrastive.similarity", "distill.embedding.mse"} < set(
        result.lineage[-1].facts["history"][-1]["terms"]
    )


def test_tasks_and_data_without_pairs_are_refused(tmp_path):
    model = tiny_taskmodel("bert")
    said = ContrastiveDistillation().check(model, Inputs())
    assert said == [
        "distill.contrastive: compares vectors of texts, and this bert answers classification; write kind: embedding"
    ]
    texts = tiny_task("embedding")
    model = tiny_taskmodel("bert", texts.spec)
    inputs = Inputs(train=texts.train, teacher=ModelTeacher(model, cache=tmp_path))
    with pytest.raises(UserError, match=r"needs two or more pairs .* and train has 0"):
        run(Recipe(steps=(ContrastiveDistillation(),)), model, inputs)
