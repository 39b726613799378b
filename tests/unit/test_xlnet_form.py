"""XLNet with linear layers: the numbers and the files are those of the standard class."""

import copy

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from compress.artifact.artifact import load
from compress.artifact.structure import structure_of
from compress.distill.minilm import minilm_relations
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.folder import export
from compress.prune.structured import StructuredPruning
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from teachers.anatomy.encoder import is_causal
from teachers.anatomy.forms.xlnet_form import TURNED
from teachers.anatomy.parts import matrices
from teachers.signals.hooks import SignalSpec, observe
from teachers.taskmodel import load_taskmodel, save_taskmodel, weights_digest
from teachers.training.scoring import rows_of
from tests.tiny import LAYERS, tiny_task, tiny_taskmodel

TEXT = torch.arange(10, 26).reshape(2, 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("xlnet")
    save_taskmodel(tiny_taskmodel("xlnet"), place)
    return place


def test_a_saved_folder_is_a_standard_one(folder):
    model = tiny_taskmodel("xlnet")
    standard = transformers.XLNetForSequenceClassification.from_pretrained(folder).eval()
    assert standard.transformer.layer[0].rel_attn.q.shape == (32, 4, 8)
    inputs = {
        "input_ids": TEXT,
        "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1] * 8]),
        "token_type_ids": torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2]] * 2),
    }
    with torch.no_grad():
        assert torch.allclose(standard(**inputs).logits, model.model(**inputs).logits, atol=1e-6)
        one, two = (network(**inputs, output_attentions=True).attentions for network in (standard, model.model))
    assert all(torch.allclose(own, other, atol=1e-6) for own, other in zip(one, two, strict=True))
    assert weights_digest(standard) == model.digest, "what earlier versions recorded"
    assert load_taskmodel(folder).digest == model.digest
    other = tiny_taskmodel("xlnet", seed=1)
    other.model.load_state_dict(standard.state_dict())
    assert weights_digest(other.model) == model.digest


def test_every_matrix_of_a_layer_is_a_linear_layer_and_the_network_is_standard_for_it():
    model = tiny_taskmodel("xlnet").model
    assert len(matrices(model, "layers")) == (len(TURNED) + 2) * LAYERS
    assert structure_of(model) == {}
    assert type(copy.deepcopy(model)) is type(model)


def test_an_artifact_that_was_saved_with_bare_tensors_is_read(tmp_path):
    task = tiny_task()
    source = tiny_taskmodel("xlnet", task.spec)
    cut = StructuredPruning(ffn=0.5, uniform=False, recover=False, importance="magnitude")
    made = run(Recipe(steps=(cut,)), source, Inputs(train=task.train))
    made.save(tmp_path / "a")
    file = tmp_path / "a" / "model.safetensors"
    earlier = {}
    for name, tensor in load_file(file).items():
        attention, _, part = name.removesuffix(".weight").rpartition(".")
        if attention.endswith("rel_attn") and part in TURNED:
            matrix = tensor if part == "o" else tensor.t()
            earlier[f"{attention}.{part}"] = matrix.reshape(32, 4, 8).contiguous()
        else:
            earlier[name] = tensor
    assert len(earlier.keys() - load_file(file).keys()) == len(TURNED) * LAYERS
    save_file(earlier, file, {"format": "pt"})
    again = load(tmp_path / "a")
    assert again.digest == made.digest == made.lineage[-1].weights_after


def test_queries_keys_and_values_are_those_of_the_formula():
    task = tiny_task()
    model = tiny_taskmodel("xlnet", task.spec)
    batch = rows_of(model, task.train, 1).batch([0, 3])
    wanted = SignalSpec(hidden_states=(1,), queries=(1,), keys=(1,), values=(1,), logits=False)
    with torch.no_grad():
        seen = observe(model.model, batch.inputs, wanted)
        attention = model.model.transformer.layer[1].rel_attn
        for name, part in (("queries", attention.q), ("keys", attention.k), ("values", attention.v)):
            expected = seen.hidden_states[1] @ part.weight.T
            assert torch.allclose(getattr(seen, name)[1], expected, atol=1e-6), name
    sides = {name: getattr(seen, name)[1] for name in ("queries", "keys", "values")}
    thin = {name: 2 * states[..., :16] for name, states in sides.items()}
    assert minilm_relations(thin, sides, batch.mask, 8)["values"] > 0


@pytest.fixture(scope="module")
def causal():
    return tiny_taskmodel("xlnet", tiny_task("causal-lm").spec, attn_type="uni")


def test_with_attn_type_uni_no_later_token_is_seen_and_padding_neither(causal, tmp_path):
    network = causal.model
    assert is_causal(network)
    mask = torch.tensor([[1] * 5 + [0] * 3, [1] * 8])
    with torch.no_grad():
        found = network(input_ids=TEXT, attention_mask=mask).logits
        changed = TEXT.clone()
        changed[:, 5:] = 30
        assert torch.allclose(network(input_ids=changed, attention_mask=mask).logits[:, :5], found[:, :5], atol=1e-6)
    save_taskmodel(causal, tmp_path)
    standard = transformers.XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    assert standard.config.attn_type == "uni"
    with torch.no_grad():
        for row, length in enumerate((5, 8)):
            alone = standard(input_ids=TEXT[row : row + 1, :length]).logits[0]
            assert torch.allclose(found[row, :length], alone, atol=1e-5)


def test_a_causal_xlnet_is_exported_without_a_cache(causal, tmp_path):
    report = export_onnx(causal, tmp_path / "onnx", examples=tiny_task("causal-lm").validation[:8])
    assert report.gate.max_abs_difference < 1e-5
    with pytest.raises(UserError, match="xlnet remembers hidden states, no keys and values; take onnx"):
        export(causal, tmp_path / "generator", "generator")


def test_a_causal_xlnet_has_no_head_for_other_tasks(causal, tmp_path):
    save_taskmodel(causal, tmp_path)
    with pytest.raises(UserError, match="xlnet with attn_type: uni predicts the next token; it has no head for"):
        load_taskmodel(tmp_path, tiny_task().spec)
    with pytest.raises(UserError, match="xlnet sees what comes after a token"):
        tiny_taskmodel("xlnet", tiny_task("causal-lm").spec)
