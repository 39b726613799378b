"""Cutting layers equals running the network with the dropped layers replaced by the identity."""

import pytest
import torch
from torch import nn

from compress.prune.layers import LayerPruning
from compress.technique import Inputs
from teachers.encoder import layers
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
    assert outcome.structure == {"layers": [0, 2]}
    assert outcome.facts == {"dropped": [1]}
    assert abs(outcome.student.forward(inputs) - whole.forward(inputs)).max() < 1e-5


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
