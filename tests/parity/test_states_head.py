"""Heads over the states of all layers or all tokens: the papers' formulas by hand and in loops, saving and export."""

import math

import numpy as np
import pytest
import torch

from compress import load
from compress.architectures.states_head import ScalarMix, concat_pooled, mean_pooled
from compress.artifact.artifact import Artifact
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.recipe.head_block import HeadBlock
from eval.errors import UserError
from eval.inference import predict
from teachers.finetuning.finetune import finetune
from teachers.taskmodel import evaluating
from teachers.training.config import Training
from tests.tiny import FAMILIES, at_first, tiny_spec, tiny_task, tiny_taskmodel

HEADS = {"scalar_mix": ("classification", "tagging"), "concat_pooling": ("classification", "multilabel")}


def headed(head, kind="classification", family="bert", **fields):
    task = tiny_task(kind).spec
    return HeadBlock.model_validate({head: fields}).on(tiny_taskmodel(family, task), task, seed=3)


def test_the_scalar_mix_by_hand():
    mix = ScalarMix(2)
    states = tuple(torch.tensor(values).reshape(1, 1, 2) for values in ([1.0, 2.0], [3.0, 4.0]))
    assert mix(states).tolist() == [[[2.0, 3.0]]], "at first the mean"
    with torch.no_grad():
        mix.scalars.copy_(torch.tensor([0.0, math.log(3.0)]))
        mix.gamma.fill_(2.0)
    torch.testing.assert_close(mix(states), torch.tensor([[[5.0, 7.0]]]))
    normed = ScalarMix(2, layer_norm=True)
    torch.testing.assert_close(normed(states), torch.tensor([[[-1.0, 1.0]]]), atol=1e-4, rtol=0)


def test_concat_pooling_in_loops():
    chance = torch.Generator().manual_seed(0)
    states, mask = torch.randn(3, 5, 4, generator=chance) - 2, torch.tensor([[1] * 5, [1, 1, 0, 0, 0], [0, 0, 1, 1, 1]])
    text = torch.randn(3, 4, generator=chance)
    found = concat_pooled(states, mask, text)
    for row in range(3):
        real = [states[row, place] for place in range(5) if mask[row, place]]
        highest = [max(float(state[channel]) for state in real) for channel in range(4)]
        mean = [sum(float(state[channel]) for state in real) / len(real) for channel in range(4)]
        torch.testing.assert_close(found[row], torch.tensor([*text[row].tolist(), *highest, *mean]))
        torch.testing.assert_close(mean_pooled(states, mask)[row], torch.tensor(mean))


@pytest.mark.parametrize("family", at_first([name for name in FAMILIES if name != "mobilebert"], "bert", "gpt2"))
def test_the_whole_network_is_encoder_mix_pooling_and_classifier(family):
    model = headed("scalar_mix", family=family, layer_norm=True)
    network = model.model
    with torch.no_grad():
        network.mix.scalars.copy_(torch.arange(len(network.mix.scalars)) / 2)
        network.mix.gamma.fill_(1.5)
    inputs = model.encoder.collate(model.encoder.encode([{"text": "the film is good"}, {"text": "bob"}]))
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    with evaluating(network):
        layers = network.inner(**tensors, output_hidden_states=True).hidden_states
    weights = [math.exp(value) for value in network.mix.scalars.tolist()]
    for row, real in enumerate(inputs["attention_mask"].astype(bool)):
        total = np.zeros((real.sum(), 32))
        for weight, states in zip(weights, layers, strict=True):
            own = states[row].numpy()[real].astype(np.float64)
            centred = own - own.mean(axis=1, keepdims=True)
            total += weight / sum(weights) * centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
        features = 1.5 * total.mean(axis=0)
        head = network.classifier
        expected = head.weight.detach().numpy() @ features + head.bias.detach().numpy()
        np.testing.assert_allclose(model.forward(inputs)[row], expected, atol=1e-4)
    pooling = headed("concat_pooling", family=family).model
    assert pooling.dense.in_features == 3 * 32
    assert pooling.dense.out_features == 50
    with evaluating(pooling):
        states = pooling.inner(**tensors).last_hidden_state
        logits = pooling(**tensors).logits
    places = [mask.nonzero()[0] for mask in inputs["attention_mask"]]
    chosen = [own[0] if family not in ("gpt2", "xlnet") else own[-1] for own in places]
    text = torch.stack([states[row, place] for row, place in enumerate(chosen)])
    pooled = concat_pooled(states, tensors["attention_mask"], text)
    dense = pooled @ pooling.dense.weight.T + pooling.dense.bias
    expected = dense.clamp(min=0) @ pooling.classifier.weight.T + pooling.classifier.bias
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("head", "kind"), [(head, kind) for head, kinds in HEADS.items() for kind in kinds])
def test_it_is_trained_saved_loaded_and_exported(head, kind, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    task = tiny_task(kind)
    start = headed(head, kind)
    before = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
    frozen = Training(max_steps=12, batch_size=8, learning_rate=1e-2, freeze=("embeddings", "encoder"))
    taught, _ = finetune(start, task, frozen)
    after = taught.model.state_dict()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert not [name for name in changed if name.startswith("inner.")]
    assert "classifier.weight" in changed
    assert ("mix.scalars" in changed) == ("mix.gamma" in changed) == (head == "scalar_mix")
    saved = Artifact.from_model(taught).save(tmp_path / "saved")
    assert load(saved).digest == taught.digest
    export_onnx(taught, tmp_path / "onnx", examples=task.validation)
    rows = [*task.validation][:6]
    wanted = predict(taught, rows).logits
    for one, other in zip(predict(Runtime(tmp_path / "onnx"), rows).logits, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_normalised_mix_is_exported_as_any_other(tmp_path, capfd):
    report = export_onnx(headed("scalar_mix", layer_norm=True), tmp_path / "onnx")
    assert report.exporter == "tracer"
    assert capfd.readouterr().out == ""


def test_what_a_head_cannot_answer_is_refused():
    for head, kind, said in (
        ("concat_pooling", "tagging", "classes, labels and scores of texts, and the task is tagging"),
        ("scalar_mix", "qa", "of texts and tagging, and the task is qa"),
    ):
        task = tiny_spec(kind)
        with pytest.raises(UserError, match=f"head: {head}: is for {said}" if head == "concat_pooling" else said):
            HeadBlock.model_validate(head).on(tiny_taskmodel("bert", task), task, seed=1)
    task = tiny_spec("classification")
    with pytest.raises(UserError, match="cannot stand on MobileBERT"):
        HeadBlock.model_validate("scalar_mix").on(tiny_taskmodel("mobilebert", task), task, seed=1)
