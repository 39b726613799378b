"""Networks that standard classes cannot hold: described, rebuilt, saved and loaded, and refused when damaged."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from compress import load
from compress.artifact.artifact import Artifact
from compress.artifact.modified_architecture import PREFIX, load_restructured, packed_bits, unpacked_bits
from compress.artifact.structure import structure_of, tensors_of
from compress.modules import REGISTRY
from eval.cost.size import file_bytes, sparse_bytes
from eval.errors import UserError
from eval.inference import predict
from teachers.anatomy.encoder import layer_parts, layers
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel


class Sparse(nn.Linear):
    """A linear layer that is saved without its zeros."""

    sparse_tensors = ("weight",)

    def describe(self):
        return {"in_features": self.in_features, "out_features": self.out_features, "bias": self.bias is not None}


@pytest.fixture
def kinds(monkeypatch):
    monkeypatch.setitem(REGISTRY._built_in, "sparse", f"{__name__}:Sparse")


def narrow(model):
    """Take half of the FFN neurons of the second layer."""
    parts = layer_parts(model.model, layers(model.model)[1])
    for role, rows in (("ffn_in", True), ("ffn_out", False)):
        old = parts[role]
        sizes = (old.in_features, old.out_features // 2) if rows else (old.in_features // 2, old.out_features)
        new = nn.Linear(*sizes)
        with torch.no_grad():
            new.weight.copy_(old.weight[: sizes[1], : sizes[0]])
            new.bias.copy_(old.bias[: sizes[1]])
        path = next(name for name, module in model.model.named_modules() if module is old)
        model.model.set_submodule(path, new)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["classification", "masked-lm"])
def test_a_stock_network_has_no_structure(family, kind):
    if family in ("xlnet", "gpt2") and kind == "masked-lm":
        pytest.skip("XLNet has no masked-language head")
    assert structure_of(tiny_taskmodel(family, tiny_task(kind).spec).model) == {}


def saved(model, folder):
    artifact = Artifact.from_model(model)
    artifact.save(folder)
    return artifact


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "electra"])
def test_other_sizes_come_back(family, tmp_path):
    task = tiny_task("classification")
    model = narrow(tiny_taskmodel(family, task.spec))
    artifact = saved(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert again.digest == artifact.digest
    assert np.array_equal(predict(again, task.validation[:4]).logits, predict(model, task.validation[:4]).logits)
    assert again.size() == model.size()
    with pytest.raises(UserError, match="no longer those of a standard network"):
        again.with_task(tiny_task("tagging").spec)


def test_stock_transformers_refuses_it_by_name(tmp_path):
    from transformers import AutoModelForSequenceClassification

    saved(narrow(tiny_taskmodel("bert", tiny_task("classification").spec)), tmp_path / "a")
    with pytest.raises(ValueError, match="nlp-compress/bert"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "a")


def test_a_shared_layer_is_saved_once(tmp_path):
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    before = model.size().parameters
    every = model.model.bert.encoder.layer
    every[2] = every[0]
    artifact = saved(model, tmp_path / "a")
    assert structure_of(model.model)["shared"] == {"bert.encoder.layer.2": "bert.encoder.layer.0"}
    again = load(tmp_path / "a")
    assert again.model.bert.encoder.layer[2] is again.model.bert.encoder.layer[0]
    assert again.digest == artifact.digest
    assert again.size().parameters < before
    assert not any(name.startswith("bert.encoder.layer.2") for name in load_file(tmp_path / "a" / "model.safetensors"))


def test_zeros_are_not_saved(kinds, tmp_path):
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    dense = saved(tiny_taskmodel("bert", task.spec), tmp_path / "dense")
    for layer in model.model.bert.encoder.layer:
        old = layer.intermediate.dense
        new = Sparse(old.in_features, old.out_features)
        with torch.no_grad():
            new.weight.copy_(old.weight.masked_fill(torch.rand_like(old.weight) >= 0.25, 0.0))
        layer.intermediate.dense = new
    artifact = saved(model, tmp_path / "a")
    again = load(tmp_path / "a")
    assert again.digest == artifact.digest
    kept = sum(int((layer.intermediate.dense.weight != 0).sum()) for layer in model.model.bert.encoder.layer)
    count = 3 * new.weight.numel()
    assert dense.size().bytes - artifact.size().bytes == 4 * count - (count // 8 + 4 * kept)
    assert file_bytes(tmp_path / "a") < file_bytes(tmp_path / "dense")


def test_a_tied_decoder_stays_tied(kinds, tmp_path):
    model = tiny_taskmodel("bert", tiny_task("masked-lm").spec)
    table = model.model.bert.embeddings.word_embeddings
    new = nn.Embedding(table.num_embeddings, table.embedding_dim)
    new.weight = table.weight
    model.model.bert.embeddings.word_embeddings = new
    saved(model, tmp_path / "a")
    again = load(tmp_path / "a").model
    assert again.cls.predictions.decoder.weight is again.bert.embeddings.word_embeddings.weight


def damage_config(folder):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"model_type": "bert"}))


def damage_structure(folder):
    values = json.loads((folder / "structure.json").read_text())
    first = next(iter(values["modules"]))
    values["modules"][first]["out_features"] += 8
    (folder / "structure.json").write_text(json.dumps(values))


def damage_kind(folder):
    values = json.loads((folder / "structure.json").read_text())
    next(iter(values["modules"].values()))["kind"] = "os:system"
    (folder / "structure.json").write_text(json.dumps(values))


def damage_weights(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(next(iter(tensors)))
    save_file(tensors, folder / "model.safetensors")


DAMAGES = {
    damage_config: f"does not fit structure.json, which belongs to a {PREFIX}",
    damage_structure: "is .*, structure.json says",
    damage_kind: "no kind of module",
    damage_weights: "does not hold the tensors of structure.json",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_folder_that_does_not_fit_is_refused(damage, tmp_path):
    saved(narrow(tiny_taskmodel("bert", tiny_task("classification").spec)), tmp_path / "a")
    damage(tmp_path / "a")
    with pytest.raises(UserError, match=DAMAGES[damage]):
        load_restructured(tmp_path / "a")
    with pytest.raises(UserError, match=r"lineage\.json records|does not hold the tensors"):
        load(tmp_path / "a")


def test_bits_are_packed_and_unpacked():
    flags = torch.tensor([1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0]).bool()
    assert packed_bits(flags).tolist() == [9, 3]
    assert torch.equal(unpacked_bits(packed_bits(flags), 11), flags)
    assert sparse_bytes(torch.tensor([0.0, 2.0, 0.0, 0.0])) == 1 + 4
    assert sparse_bytes(torch.ones(32)) == 128


def test_tensors_are_listed_once():
    model = tiny_taskmodel("bert", tiny_task("masked-lm").spec).model
    names = tensors_of(model)
    assert "bert.embeddings.word_embeddings.weight" in names
    assert "cls.predictions.decoder.weight" not in names
