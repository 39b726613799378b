"""Cutting layers equals running the network with the dropped layers replaced by the identity."""

import numpy as np
import pytest
import torch
from torch import nn

from compress import load
from compress.engine.steps import run
from compress.prune.depth import cut, sample_loss
from compress.prune.layers import LayerPruning
from compress.quantize.weights import WeightQuantization
from compress.recipe import Recipe
from compress.share.layers import LayerSharing
from compress.share.lowrank import LowRank
from compress.student.layer_choice import choose_layers, every_other
from compress.technique import Inputs
from eval.inference import predict
from eval.task import Examples
from teachers.anatomy.encoder import layers
from teachers.losses.task_loss import task_loss
from teachers.training.scoring import rows_of
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel

SHARED = {"albert"}


class Skip(nn.Module):
    """Passes the hidden states on, in the form in which the layer returned them."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.layer, name)

    def forward(self, hidden, *args, **kwargs):
        with torch.no_grad():
            out = self.layer(hidden, *args, **kwargs)
        return (hidden, *out[1:]) if isinstance(out, tuple) else hidden


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in SHARED | {"xlnet", "modernbert"}])
def test_a_cut_equals_identities(family):
    task = tiny_task("classification")
    cut, whole = tiny_taskmodel(family, task.spec), tiny_taskmodel(family, task.spec)
    outcome = LayerPruning(keep=(0, 2)).apply(cut, Inputs(), torch.Generator())
    module_list = next(
        m for m in whole.model.modules() if isinstance(m, nn.ModuleList) and m[0] is layers(whole.model)[0]
    )
    module_list[1] = Skip(module_list[1])
    inputs = whole.encoder.collate(whole.encoder.encode(task.validation[:6]))
    assert outcome.facts == {"layers": [0, 2], "dropped": [1]}
    assert abs(outcome.model.forward(inputs) - whole.forward(inputs)).max() < 1e-5


def test_what_cannot_be_kept_is_named():
    model = tiny_taskmodel("bert", tiny_task("classification").spec)
    assert LayerPruning(keep=(0, 2)).check(model, Inputs()) == []
    (problem,) = LayerPruning(keep=(0, 5)).check(model, Inputs())
    assert problem == "prune.layers: the model has layers 0 to 2, so [5] cannot be kept"


@pytest.mark.parametrize("keep", [(2, 0), (1, 1), ()])
def test_a_list_out_of_order_is_refused(keep):
    with pytest.raises(ValueError, match="once each and ascending"):
        LayerPruning(keep=keep)


def test_the_default_keeps_half():
    assert LayerPruning().kept(12) == (0, 2, 4, 7, 9, 11)
    assert LayerPruning(count=99).kept(3) == (0, 1, 2), "asking for more layers than there are keeps all"


def test_every_other_counts_from_one():
    assert every_other(12, 0.5) == (0, 2, 4, 6, 8, 10)
    assert every_other(12, 0.25) == (0, 1, 2, 4, 5, 6, 8, 9, 10)
    assert every_other(12, 0.2) == tuple(layer for layer in range(12) if layer not in (4, 9))
    assert every_other(12, 0.75) == (0, 4, 8), "the rule itself would drop every layer"
    assert every_other(12, 2 / 3) == (0, 3, 6, 9)
    assert (choose_layers(12, 3, "stride"), choose_layers(12, 4, "stride")) == ((0, 4, 8), (0, 3, 6, 9))
    assert LayerPruning(rate=0.5).kept(6) == (0, 2, 4)
    with pytest.raises(ValueError, match="leave out keep and count"):
        LayerPruning(rate=0.5, count=3)


def test_a_search_drops_what_costs_least():
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec, num_hidden_layers=4)
    examples = task.validation[:20]
    outcome = LayerPruning(count=2, pick="search", sample=20).apply(
        tiny_taskmodel("bert", task.spec, num_hidden_layers=4), Inputs(calibration=examples), torch.Generator()
    )
    tried = outcome.facts["losses"]
    assert [len(entry["layers"]) for entry in tried] == [3, 3, 3, 3, 2, 2, 2]
    for entry in tried:
        assert entry["loss"] == pytest.approx(slow_loss(cut(model, entry["layers"]), examples), abs=1e-5)
    first = min(tried[:4], key=lambda entry: entry["loss"])["layers"]
    assert all(set(entry["layers"]) < set(first) for entry in tried[4:])
    best = min(tried[4:], key=lambda entry: entry["loss"])["layers"]
    assert outcome.facts["layers"] == best
    assert outcome.facts["dropped"] == sorted({0, 1, 2, 3} - set(best))
    assert len(layers(model.model)) == 4


@pytest.mark.parametrize(
    "before",
    [LayerSharing(groups=1, recover=False), LowRank(keep=0.5, recover=False), WeightQuantization()],
    ids=lambda step: step.name,
)
def test_a_new_first_layer_of_modernbert_keeps_its_norm_where_its_weights_are_no_own_matrix(before, tmp_path):
    task = tiny_task("classification")
    source = tiny_taskmodel("modernbert", task.spec)
    whole = run(Recipe(steps=(before,)), source, Inputs(), dry_run_first=False)
    result = run(Recipe(steps=(before, LayerPruning(keep=(1, 2)))), source, Inputs(), dry_run_first=False)
    for old, new in zip(layers(whole.model)[1:], layers(result.model), strict=True):
        given, found = old.state_dict(), new.state_dict()
        assert given.keys() == found.keys()
        assert all(torch.equal(tensor, found[name]) for name, tensor in given.items())
    result.save(tmp_path / "a")
    back = load(tmp_path / "a")
    assert np.array_equal(*(np.stack(predict(model, task.validation[:4]).logits) for model in (result, back)))


def slow_loss(model, examples):
    """One example at a time."""
    total = 0.0
    for example in examples:
        rows = rows_of(model, Examples((example,), "one"), 0)
        batch = rows.batch([0])
        with torch.no_grad():
            total += task_loss(model.task, model.model(**batch.inputs).logits, batch).item()
    return total / len(examples)


@pytest.mark.parametrize("kind", ["regression", "tagging", "qa", "masked-lm"])
def test_a_search_on_every_kind_of_task(kind):
    task = tiny_task(kind, examples=12)
    model = tiny_taskmodel("bert", task.spec)
    outcome = LayerPruning(count=2, pick="search").apply(model, Inputs(calibration=task.train), torch.Generator())
    losses = [entry["loss"] for entry in outcome.facts["losses"]]
    assert len(losses) == 3
    assert sample_loss(outcome.model, task.train) == pytest.approx(min(losses), rel=1e-5)


def test_the_loss_of_a_search_does_not_depend_on_how_texts_are_batched(monkeypatch):
    """A mean over tokens of texts with other numbers of them, so its batches count by their tokens."""
    task = tiny_task("seq2seq", examples=12)
    model = tiny_taskmodel("t5", task.spec)
    whole = sample_loss(model, task.train)
    monkeypatch.setattr("compress.prune.depth.BATCH", 5)
    assert sample_loss(model, task.train) == pytest.approx(whole, rel=1e-6)


def test_what_a_search_needs():
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    technique = LayerPruning(pick="search")
    assert technique.needed() == {"calibration"}
    assert LayerPruning(pick="search", keep=(0,)).needed() == frozenset()
    unlabelled = Examples([{"text": "a"}], "texts")
    (problem,) = technique.check(model, Inputs(calibration=unlabelled))
    assert problem.startswith("prune.layers: pick: search measures the loss of labels: none of the 1 examples of texts")
    embedder = tiny_taskmodel("bert", tiny_task("embedding").spec)
    (problem,) = technique.check(embedder, Inputs(calibration=unlabelled))
    assert "embedding has none" in problem
    assert technique.check(model, Inputs(calibration=task.train)) == []
