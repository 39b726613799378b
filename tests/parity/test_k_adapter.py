"""K-Adapter (arXiv 2002.01808): the formula by hand, adapters trained apart and put together, saved and exported."""

import numpy as np
import pytest
import torch

from compress import load
from compress.architectures.knowledge_adapter import KnowledgeAdapter
from compress.artifact.artifact import Artifact, load_model
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.recipe.head_block import HeadBlock
from eval.errors import UserError
from eval.inference import predict
from teachers.finetuning.finetune import finetune
from teachers.taskmodel import evaluating, save_taskmodel
from teachers.training.config import Training
from teachers.training.freezing import freeze
from tests.tiny import FAMILIES, at_first, tiny_spec, tiny_task, tiny_taskmodel

FROZEN = Training(max_steps=4, batch_size=8, learning_rate=1e-2, freeze=("embeddings", "encoder"))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))


def headed(kind="tagging", family="bert", seed=3, **fields):
    task = tiny_task(kind).spec
    return HeadBlock.model_validate({"k_adapter": fields}).on(tiny_taskmodel(family, task), task, seed)


def drawn(network, seed=1):
    """Give the adapters weights that matter; new ones pass on what they read."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.adapters.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=chance))


def by_hand(layer, x):
    """A layer of the transformer as its paper writes it, for one text of real tokens ``[L, d]``."""
    weights = {name: tensor.detach().double().numpy() for name, tensor in layer.named_parameters()}

    def linear(name, values):
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name, values):
        centred = values - values.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def gelu(values):
        return torch.nn.functional.gelu(torch.from_numpy(values)).numpy()

    heads = layer.attention.self.num_attention_heads
    query, key, value = (linear(f"attention.self.{part}", x) for part in ("query", "key", "value"))
    mixed = np.zeros_like(x)
    for one in np.split(np.arange(x.shape[1]), heads):
        scores = query[:, one] @ key[:, one].T / np.sqrt(len(one))
        shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        mixed[:, one] = shares @ value[:, one]
    seen = norm("attention.output.LayerNorm", linear("attention.output.dense", mixed) + x)
    return norm("output.LayerNorm", linear("output.dense", gelu(linear("intermediate.dense", seen))) + seen)


def test_the_adapter_by_hand():
    torch.manual_seed(0)
    adapter = KnowledgeAdapter(width=8, layers=(0, 2), size=6, depth=2, heads=2).eval()
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    hidden = [torch.randn(2, 5, 8) for _ in range(4)]
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        found = adapter(hidden, mask).numpy()
    for row, length in ((0, 5), (1, 3)):
        passed = np.zeros((length, 8))
        for place, part in zip((1, 3), adapter.parts, strict=True):
            read = hidden[place][row, :length].double().numpy() + passed
            inner = read @ part.down.weight.detach().double().numpy().T + part.down.bias.detach().double().numpy()
            for layer in part.layers:
                inner = by_hand(layer, inner)
            passed = read + inner @ part.up.weight.detach().double().numpy().T + part.up.bias.detach().double().numpy()
        np.testing.assert_allclose(found[row, :length], passed, atol=1e-4)


@pytest.mark.parametrize("family", at_first([name for name in FAMILIES if name != "mobilebert"], "bert"))
def test_the_head_reads_the_last_states_beside_the_adapters(family):
    model = headed("tagging", family)
    network = model.model
    (adapter,) = network.adapters
    assert adapter.places == (1, 2, 3)
    assert [part.down.out_features for part in adapter.parts] == [24] * 3
    drawn(network)
    inputs = model.encoder.collate(model.encoder.encode([{"tokens": ["bob", "sings"]}, {"tokens": ["ann"]}]))
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    with evaluating(network):
        states = network.inner(**tensors, output_hidden_states=True)
        beside = adapter(states.hidden_states, tensors["attention_mask"])
        expected = torch.cat([states.last_hidden_state, beside], dim=-1) @ network.classifier.weight.T
    real = inputs["attention_mask"].astype(bool)
    np.testing.assert_allclose(
        model.forward(inputs)[real], (expected + network.classifier.bias).detach().numpy()[real], atol=1e-5
    )


def test_a_new_adapter_passes_on_what_it_reads():
    network = headed().model
    hidden = [torch.randn(1, 4, 32) for _ in range(4)]
    with evaluating(network):
        found = network.adapters[0](hidden, torch.ones(1, 4))
    torch.testing.assert_close(found, hidden[1] + hidden[2] + hidden[3], atol=1e-2, rtol=0)


def test_trained_adapters_are_taken_over_and_stay_as_they_are(tmp_path):
    made = headed("tagging", size=8)
    drawn(made.model)
    (tmp_path / "made").mkdir()
    save_taskmodel(made, tmp_path / "made")
    spec = tiny_task("classification").spec
    for frozen in (True, False):
        head = HeadBlock.model_validate({"k_adapter": {"adapters": [str(tmp_path / "made")] * 2, "frozen": frozen}})
        network = head.on(tiny_taskmodel("bert", tiny_spec("tagging")), spec, seed=5).model
        assert network.classifier.in_features == 3 * 32
        for adapter in network.adapters:
            for name, tensor in made.model.adapters[0].state_dict().items():
                assert torch.equal(adapter.state_dict()[name], tensor)
        freeze(network, Training())
        left = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
        assert left == {name for name, _ in network.named_parameters() if name.startswith("adapters.") and frozen}


@pytest.mark.slow
def test_adapters_are_trained_apart_and_stand_together(tmp_path):
    """Two kinds of knowledge over one frozen base, then a third task's classifier over both."""
    (tmp_path / "base").mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec("masked-lm")), tmp_path / "base")
    base, folders = load_model(tmp_path / "base", tiny_spec("classification")), []
    for kind, fields in (("tagging", {"size": 8}), ("classification", {"layers": [1], "depth": 1})):
        task = tiny_task(kind)
        start = HeadBlock.model_validate({"k_adapter": fields}).on(
            load_model(tmp_path / "base", task.spec), task.spec, 3
        )
        before = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
        taught, folder = finetune(start, task, FROZEN)
        changed = {n for n, tensor in taught.model.state_dict().items() if not torch.equal(tensor, before[n])}
        assert {name.partition(".")[0] for name in changed} == {"adapters", "classifier"}
        folders.append(str(folder))
    task = tiny_task("classification")
    found = {}
    for frozen in (True, False):
        head = HeadBlock.model_validate({"k_adapter": {"adapters": folders, "frozen": frozen}})
        start = head.on(base, task.spec, seed=5)
        assert start.model.classifier.in_features == 3 * 32
        known = {
            f"adapters.{i}.{n}": t
            for i, f in enumerate(folders)
            for n, t in load_model(f).model.adapters[0].state_dict().items()
        }
        for name, tensor in known.items():
            assert torch.equal(start.model.state_dict()[name], tensor)
        both, found[frozen] = finetune(start, task, FROZEN.model_copy(update={"freeze": ()}))
        after = both.model.state_dict()
        assert all(torch.equal(after[name], tensor) for name, tensor in known.items()) == frozen
        assert not torch.equal(
            after["inner.encoder.layer.0.output.dense.weight"],
            base.model.base_model.state_dict()["encoder.layer.0.output.dense.weight"],
        )
    assert found[True] != found[False], "kept apart"
    saved = Artifact.from_model(both).save(tmp_path / "saved")
    assert load(saved).digest == both.digest
    export_onnx(both, tmp_path / "onnx", examples=task.validation)
    rows = [*task.validation][:6]
    for one, other in zip(predict(Runtime(tmp_path / "onnx"), rows).logits, predict(both, rows).logits, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    with pytest.raises(UserError, match=r"was trained over another encoder .* train each with freeze"):
        HeadBlock.model_validate({"k_adapter": {"adapters": [str(found[True])]}}).on(base, task.spec, seed=5)
    with pytest.raises(UserError, match="holds no knowledge adapter"):
        HeadBlock.model_validate({"k_adapter": {"adapters": [str(tmp_path / "base")]}}).on(base, task.spec, seed=5)


def test_what_does_not_fit_is_said():
    with pytest.raises(UserError) as raised:
        headed(layers=[2, 1, 7], size=10, heads=4)
    assert "k_adapter.layers: got 2, 1, 7, must ascend and be below 3" in str(raised.value)
    assert "k_adapter.size: got 10, must be a multiple of heads, 4" in str(raised.value)
    with pytest.raises(ValueError, match="size: is for a new adapter"):
        HeadBlock.model_validate({"k_adapter": {"adapters": ["a"], "size": 4}})
    with pytest.raises(ValueError, match="frozen: is for adapters that are trained"):
        HeadBlock.model_validate({"k_adapter": {"frozen": False}})
    with pytest.raises(UserError, match="the task is qa"):
        headed("qa")
