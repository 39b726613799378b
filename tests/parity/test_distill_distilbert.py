"""DistilBERT's triple loss against the numbers of its formula, and its choice of layers."""

import pytest
import torch

from compress.distill.distilbert import DistilBertDistillation, TripleLoss
from compress.layer_choice import choose_layers
from eval.encoding import IGNORED
from eval.task import TaskSpec
from teachers.features import Batch
from teachers.observing import NOTHING, Signals


def triple_loss(config, spec, signals):
    return TripleLoss(spec, lambda batch: signals, config, NOTHING)


def test_the_triple_loss_by_hand():
    """The weights 5, 2 and 1 on 0.113289, 0.313262 and 0.52 give 1.712968."""
    spec = TaskSpec(kind="masked-lm")
    teacher = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    student = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    labels = torch.tensor([[0, IGNORED]])
    batch = Batch({"input_ids": labels, "attention_mask": torch.ones(1, 2)}, {"labels": labels}, torch.arange(1))
    hidden = torch.tensor([[[3.0, 4.0], [1.0, 0.0]]])
    other = torch.tensor([[[4.0, 3.0], [0.0, 2.0]]])
    loss = triple_loss(DistilBertDistillation(), spec, Signals(teacher, {6: other}))
    terms = loss(Signals(student, {3: hidden}), batch)
    assert terms["soft"].item() == pytest.approx(5 * 0.113289, abs=1e-5)
    assert terms["task"].item() == pytest.approx(2 * 0.313262, abs=1e-5)
    assert terms["cosine"].item() == pytest.approx(0.52, abs=1e-6)
    assert sum(terms.values()).item() == pytest.approx(1.712968, abs=1e-5)


def test_only_predicted_compares_masked_places_alone():
    spec = TaskSpec(kind="masked-lm")
    teacher = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]])
    student = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    labels = torch.tensor([[0, IGNORED]])
    batch = Batch({"input_ids": labels, "attention_mask": torch.ones(1, 2)}, {"labels": labels}, torch.arange(1))
    config = DistilBertDistillation(only_predicted=True, alpha_soft=1, alpha_task=0, alpha_cos=0, temperature=1)
    terms = triple_loss(config, spec, Signals(teacher))(Signals(student), batch)
    assert terms["soft"].item() == pytest.approx(0.067131, abs=1e-6)
    assert set(terms) == {"soft"}


def test_padding_changes_no_term():
    spec = TaskSpec(kind="classification", labels=("a", "b"))
    generator = torch.Generator().manual_seed(1)
    hidden, other = torch.randn(2, 3, 4, generator=generator), torch.randn(2, 3, 4, generator=generator)
    logits, labels = torch.randn(2, 2, generator=generator), torch.tensor([0, 1])
    sums = []
    for extra in (0, 5):
        mask = torch.nn.functional.pad(torch.tensor([[1, 1, 1], [1, 1, 0]]), (0, extra))
        batch = Batch({"input_ids": mask, "attention_mask": mask}, {"labels": labels}, torch.arange(2))
        wide = [torch.nn.functional.pad(x, (0, 0, 0, extra), value=7.0) for x in (hidden, other)]
        loss = triple_loss(DistilBertDistillation(), spec, Signals(logits * 2, {6: wide[1]}))
        sums.append(sum(loss(Signals(logits, {3: wide[0]}), batch).values()).item())
    assert sums[0] == pytest.approx(sums[1], abs=1e-6)


def test_layers_of_the_authors_script():
    assert choose_layers(12, 6, "spread") == (0, 2, 4, 7, 9, 11)
    assert choose_layers(12, 6, "stride") == (0, 2, 4, 6, 8, 10)
    assert choose_layers(12, 3, "stride") == (0, 4, 8)
    assert choose_layers(12, 4, "stride") == (0, 3, 6, 9)
    assert choose_layers(6, 3, "spread") == (0, 2, 5)
    assert choose_layers(6, 2, "first") == (0, 1)
    assert choose_layers(6, 2, "last") == (4, 5)
    for total in range(1, 25):
        for count in range(1, total + 1):
            for pick in ("spread", "stride"):
                kept = choose_layers(total, count, pick)
                assert len(set(kept)) == count
                assert list(kept) == sorted(kept)
                assert kept[-1] < total
