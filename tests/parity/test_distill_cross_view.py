"""Cross-view training (arXiv 1809.08370): what a view can see, and the loss in loops."""

import math

import pytest
import torch

from compress.distill.components.partial_views import (
    MASK_OF,
    halves,
    restricted_states,
    seen,
    unrestricted,
    word_places,
)
from compress.distill.cross_view import CrossViewTraining
from compress.objective import ObjectiveBlock
from compress.technique import Inputs
from eval.task import Examples
from teachers.losses.task_loss import TaskLoss
from teachers.signals.hooks import observe
from teachers.taskmodel import evaluating, weights_digest
from teachers.training.config import Training
from teachers.training.scoring import rows_of
from tests.tiny import FAMILIES, at_first, tiny_spec, tiny_task, tiny_taskmodel

REFUSED = ("mobilebert", "xlnet", "gpt2")
KINDS = ("tagging", "classification")


def bound(kind="tagging", family="bert", **fields):
    """Return a student, its rows and the loss, with every third text unlabelled."""
    task = tiny_task(kind, examples=12)
    bare = [{k: v for k, v in e.items() if i % 3 or k not in ("label", "tags")} for i, e in enumerate(task.train)]
    student = tiny_taskmodel(family, task.spec)
    rows = rows_of(student, Examples(bare, "train"), seed=5)
    return student, rows, CrossViewTraining(**fields).make_objective(Inputs()).bind(student, rows)


def test_masks_by_hand():
    mask = torch.tensor([[1, 1, 1, 0]])
    assert seen("forward", mask)[0].long().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert seen("backward", mask)[0].long().tolist() == [[1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert halves(mask).tolist() == [[0, 0, 1, -1]]
    assert seen("halves", mask)[0].long().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_places_of_words_by_hand():
    """[CLS] a- -b c [SEP] [PAD]: words begin at 1 and 3."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 0]])
    words = torch.tensor([[0, 1, 0, 1, 0, 0]], dtype=torch.bool)
    found = {view: word_places(view, words, mask)[words].tolist() for view in ("forward", "backward", "future", "past")}
    assert found == {"forward": [2, 3], "backward": [1, 3], "future": [0, 2], "past": [3, 4]}
    none = torch.tensor([[1, 1, 0]])
    assert word_places("past", torch.tensor([[True, True, False]]), none)[0, :2].tolist() == [1, -1], "no [SEP]"


@pytest.mark.parametrize("family", at_first([name for name in FAMILIES if name not in REFUSED], "bert", "modernbert"))
@pytest.mark.parametrize("padded", [True, False])
def test_a_restricted_state_does_not_change_with_what_is_hidden_from_it(family, padded):
    network = tiny_taskmodel(family, tiny_spec("tagging")).model
    assert not unrestricted(network)
    chance = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 40, (1, 8), generator=chance)
    mask = torch.tensor([[1] * 7 + [1 - padded]])
    kinds = ("forward", "backward", "halves")

    def states(ids):
        with evaluating(network):
            return restricted_states(network, {"input_ids": ids, "attention_mask": mask}, kinds, depth=2)

    before = states(ids)
    for place in range(7):
        other = ids.clone()
        other[0, place] = 41
        for kind, old, new in zip(kinds, before, states(other), strict=True):
            changed = (old - new)[0, :7].abs().amax(dim=-1)
            sees = seen(kind, mask)[0, :7, place]
            assert changed[~sees].max() == 0 if (~sees).any() else True, (kind, place)
            assert changed[sees].min() > 0, (kind, place)


@pytest.mark.parametrize("kind", KINDS)
def test_the_views_of_the_technique_see_their_part_and_no_more(kind):
    """Every token that a view may not see is changed in turn: its logits stay, those of the model do not."""
    student, rows, loss = bound(kind)
    student.model.eval()
    batch = rows.batch([0])
    length = int(batch.mask.sum())
    with torch.no_grad():
        before = loss.views(batch)
        words = batch.targets["words"][0].nonzero().flatten().tolist() if kind == "tagging" else [0]
        ends = [*words[1:], length - 1]
        for place in range(length):
            other = rows.batch([0])
            other.inputs["input_ids"][0, place] = 7 if other.inputs["input_ids"][0, place] != 7 else 8
            after = loss.views(other)
            assert list(after) == list(before)
            for view in before:
                for word, end in zip(words, ends, strict=True):
                    sees = {
                        "forward": place < end,
                        "backward": place >= word,
                        "future": place < word,
                        "past": place >= end,
                        "first_half": place < (length + 1) // 2,
                        "second_half": place >= (length + 1) // 2,
                    }[view]
                    at = (0, word) if kind == "tagging" else (0,)
                    assert (before[view][at] != after[view][at]).any() == sees, (view, word, place)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_in_loops(kind):
    student, rows, loss = bound(kind, alpha=0.5, labels=2.0)
    batch = rows.batch(range(12))
    student.model.eval()
    with torch.no_grad():
        terms = loss(observe(student.model, batch.inputs), batch)
        whole, views = student.model(**batch.inputs).logits, loss.views(batch)
        task = TaskLoss().bind(student, rows)(observe(student.model, batch.inputs), batch)["task"]
    assert set(terms) == {*views, "task"}
    assert float(terms["task"]) == pytest.approx(2 * float(task))
    for view, logits in views.items():
        total, count = 0.0, 0
        for row in range(12):
            places = batch.targets["words"][row].nonzero().flatten().tolist() if kind == "tagging" else [...]
            for place in places:
                p, q = (x[row][place].double().softmax(-1).tolist() for x in (whole, logits))
                total += sum(a * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True))
                count += 1
        assert float(terms[view]) == pytest.approx(0.5 * total / count, rel=1e-4)
        assert float(loss.counts(batch)[view]) == count


def test_the_teacher_has_no_gradient_and_no_dropout():
    student, rows, loss = bound(labels=0.0)
    student.model.train()
    batch = rows.batch(range(6))
    assert torch.equal(loss.whole(batch), loss.whole(batch))
    assert student.model.training
    terms = loss(observe(student.model, batch.inputs), batch)
    assert "task" not in terms
    sum(terms.values()).backward()
    reached = {name for name, parameter in student.model.named_parameters() if parameter.grad is not None}
    assert not [name for name in reached if "classifier" in name], "the head is the teacher's"
    assert [name for name in reached if ".layer.0." in name]
    assert loss.depth == 2, "half of three layers, rounded up"
    assert not [name for name in reached if ".layer.2." in name]


def test_it_trains_and_the_views_are_thrown_away():
    """Text without labels alone: each view comes nearer to what the model predicts."""
    task = tiny_task("tagging", examples=24)
    text = Examples([{"tokens": example["tokens"]} for example in task.train], "text")
    student = tiny_taskmodel("bert", task.spec)
    names, before = student.model.state_dict().keys(), weights_digest(student.model)
    config = CrossViewTraining(labels=0, training=Training(epochs=3, learning_rate=3e-3, batch_size=8))
    outcome = config.apply(student, Inputs(train=text), torch.Generator().manual_seed(3))
    first, last = outcome.facts["history"][0]["terms"], outcome.facts["history"][-1]["terms"]
    assert last.keys() == set(list(MASK_OF)[:4])
    assert all(last[name] < first[name] for name in last)
    assert outcome.model.model.state_dict().keys() == names
    assert weights_digest(outcome.model.model) != before
    assert type(outcome.model.model).__name__ == "BertForTokenClassification"


def test_it_is_a_term_of_an_objective():
    task = tiny_task("tagging", examples=8)
    student = tiny_taskmodel("bert", task.spec)
    block = ObjectiveBlock.model_validate({"distill.labels": {}, "distill.cross_view": {"labels": 0, "weight": 0.5}})
    assert block.needed() == {"train"}
    rows = rows_of(student, task.train, seed=5)
    batch = rows.batch(range(4))
    terms = block.make(Inputs()).bind(student, rows)(observe(student.model, batch.inputs), batch)
    assert set(terms) == {"distill.labels.task", *(f"distill.cross_view.{view}" for view in list(MASK_OF)[:4])}


def test_what_it_cannot_do_is_said():
    def said(kind, family="bert", pair=False, **fields):
        student = tiny_taskmodel(family, tiny_task(kind, pair=pair).spec)
        return " ".join(CrossViewTraining(**fields).check(student, Inputs()))

    assert not said("tagging")
    assert "the task is classification of pairs" in said("classification", pair=True)
    assert "the task is qa" in said("qa")
    assert "tagging has forward, backward, future, past, not first_half" in said("tagging", views=("first_half",))
    assert "layers: got 9, and the model has 3" in said("tagging", layers=9)
    for family in REFUSED:
        assert "cannot restrict this model" in said("classification", family), family
    with pytest.raises(ValueError, match="name each view once"):
        CrossViewTraining(views=("past", "past"))
