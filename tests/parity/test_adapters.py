"""Adapters against their papers' formulas and against PEFT."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from compress.recipe import parse_recipe
from eval.errors import UserError
from teachers.adapters.adapter_block import AdapterBlock, Houlsby, Lora, Pfeiffer
from teachers.adapters.installing import install, merge, task_parameters
from teachers.anatomy.encoder import decoder_layer_names, head_parameters, layer_names, layers, word_embeddings
from teachers.finetuning.adapter_folder import FOLDER, with_adapter
from teachers.finetuning.finetune import finetune
from teachers.taskmodel import evaluating, load_taskmodel, save_taskmodel, weights_digest
from teachers.training.config import Training
from teachers.training.loop import _Loop
from tests.tiny import ENCODER_DECODERS, FAMILIES, at_first, tiny_spec, tiny_task, tiny_taskmodel

POST_NORM = ("bert", "roberta", "ernie", "distilbert", "albert", "electra")
ADAPTERS = {
    "lora": {"lora": {"rank": 3, "alpha": 12}},
    "houlsby": {"houlsby": {"size": 4}},
    "pfeiffer": {"pfeiffer": {"size": 4}},
}
QUICK = Training(max_steps=6, batch_size=8, learning_rate=1e-2)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))


@pytest.fixture
def base(tmp_path):
    """The folder of a base."""
    (tmp_path / "base").mkdir()
    save_taskmodel(tiny_taskmodel("bert", tiny_spec("masked-lm")), tmp_path / "base")
    return tmp_path / "base"


def drawn(network, seed=1):
    """Give what an adapter trains random values, or LoRA's start would change nothing."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in task_parameters(network).values():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=chance))
    return network


def logits(network, rows=2, tokens=7):
    ids = torch.randint(5, 40, (rows, tokens), generator=torch.Generator().manual_seed(0))
    with evaluating(network):
        return network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert", "modernbert"))
def test_lora_merges_to_the_sum_of_the_paper(family):
    network = tiny_taskmodel(family, tiny_spec("classification")).model
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    start = logits(network)
    install(network, Lora(rank=3, alpha=12), seed=1)
    torch.testing.assert_close(logits(network), start, atol=1e-6, rtol=0)  # B is 0
    drawn(network)
    own = {name: tensor.detach().clone() for name, tensor in task_parameters(network).items()}
    assert {name for name in own if "lora_" not in name} == set(head_parameters(network))
    changed = logits(network)
    assert (changed - start).abs().max() > 1e-3
    assert merge(network)
    torch.testing.assert_close(logits(network), changed, atol=1e-5, rtol=1e-5)
    after = network.state_dict()
    assert after.keys() == before.keys()
    seen = 0
    for name, tensor in before.items():
        first = own.get(name.removesuffix("weight") + "lora_A.default.weight")
        if first is None:
            torch.testing.assert_close(after[name], own.get(name, tensor), atol=0, rtol=0)
            continue
        second = own[name.removesuffix("weight") + "lora_B.default.weight"]
        expected = tensor.numpy().copy()
        for row in range(expected.shape[0]):
            for column in range(expected.shape[1]):
                expected[row, column] += 12 / 3 * float(second[row] @ first[:, column])
        np.testing.assert_allclose(after[name].numpy(), expected, atol=1e-5)
        seen += 1
    assert seen >= 1


@pytest.mark.parametrize("family", at_first(POST_NORM, "bert"))
def test_bottlenecks_compute_the_formulas_where_the_papers_put_them(family):
    """Houlsby: ``norm(h + U gelu(D h) + x)`` twice a layer; Pfeiffer: ``norm(s + U relu(D norm(s)))`` at its end."""
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(3))
    network = tiny_taskmodel(family, tiny_spec("classification")).model
    plain = layers(network)[0]
    seen = {}

    def watch(module, name):
        module.register_forward_hook(lambda _, given, out: seen.setdefault(name, []).append((given[0], out)))

    def bottleneck(part, states, activation):
        return activation(states @ part.down.weight.T + part.down.bias) @ part.up.weight.T + part.up.bias

    def run(adapter):
        made = tiny_taskmodel(family, tiny_spec("classification")).model
        install(made, adapter, seed=1)
        layer = drawn(made).get_submodule(layer_names(made)[0])
        for module in layer.modules():
            if hasattr(module, "adapter"):
                watch(module, type(module).__name__)
        with torch.no_grad():
            layer.eval()(x)
        return [module for module in layer.modules() if hasattr(module, "adapter")]

    assert not [module for module in plain.modules() if hasattr(module, "adapter")]
    places = run(Houlsby(size=4))
    assert len(places) == len(seen["LinearWithBottleneck"]) == 2
    with torch.no_grad():
        for part, (given, out) in zip(places, seen["LinearWithBottleneck"], strict=True):
            states = given @ part.weight.T + part.bias
            expected = states + bottleneck(part.adapter, states, lambda z: z * 0.5 * (1 + torch.erf(z / 2**0.5)))
            torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        (part,) = run(Pfeiffer(size=4))
        ((given, out),) = seen["NormWithBottleneck"]

        def norm(states):
            centred = states - states.mean(-1, keepdim=True)
            return centred / (centred.pow(2).mean(-1, keepdim=True) + part.eps).sqrt() * part.weight + part.bias

        expected = norm(given + bottleneck(part.adapter, norm(given), lambda z: z.clamp(min=0)))
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ADAPTERS)
def test_only_the_adapter_and_the_head_learn_and_all_is_found_again(name, base):
    task, block = tiny_task("classification"), AdapterBlock.model_validate(ADAPTERS[name])
    start = load_taskmodel(base, task.spec, seed=13).model
    taught, folder = finetune(base, task, QUICK, adapter=block)
    again = with_adapter(base, folder)
    own = task_parameters(again.model)
    kept = {key.replace(".base_layer.", "."): p for key, p in again.model.named_parameters() if key not in own}
    assert kept
    for key, parameter in kept.items():
        torch.testing.assert_close(parameter, start.get_parameter(key), atol=0, rtol=0)
    assert any(part in key for key in own for part in ("lora_B", "adapter"))
    assert any(key.endswith("LayerNorm.weight") for key in own) == (name == "houlsby")
    assert any((own[key] - start.get_parameter(key)).abs().max() > 1e-4 for key in own if "classifier" in key)
    inputs = taught.encoder.collate(taught.encoder.encode([*task.train][:4]))
    np.testing.assert_allclose(again.forward(inputs), taught.forward(inputs), atol=1e-6)
    assert finetune(base, task, QUICK, adapter=block)[1] == folder
    other = AdapterBlock.model_validate({"lora": {"rank": 2}})
    assert finetune(base, task, QUICK, adapter=other)[1] != folder


@pytest.mark.parametrize("name", ["lora", "houlsby"])
def test_an_interrupted_training_goes_on_to_the_same_weights(name, base, tmp_path, monkeypatch):
    task, block = tiny_task("classification"), AdapterBlock.model_validate(ADAPTERS[name])
    often = QUICK.model_copy(update={"checkpoint_seconds": 0.0})
    whole, _ = finetune(base, task, often, adapter=block)
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "other"))
    update, steps = _Loop._update, []

    def interrupted(loop, *given):
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        update(loop, *given)

    monkeypatch.setattr(_Loop, "_update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finetune(base, task, often, adapter=block)
    steps.clear()
    steps += [1] * 10
    assert finetune(base, task, often, adapter=block)[0].digest == whole.digest
    assert len(steps) < 10 + QUICK.max_steps, "it went on where it stopped"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT's own
def test_peft_loads_what_was_trained_and_transformers_the_merged_model(base):
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    task = tiny_task("classification")
    taught, folder = finetune(base, task, QUICK, adapter=AdapterBlock.model_validate(ADAPTERS["lora"]))
    inputs = taught.encoder.collate(taught.encoder.encode([*task.train][:4]))
    tensors = {key: torch.from_numpy(values) for key, values in inputs.items()}
    theirs = PeftModel.from_pretrained(load_taskmodel(base, task.spec, seed=99).model, folder / FOLDER).eval()
    merged = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        for network in (theirs, merged):
            np.testing.assert_allclose(network(**tensors).logits.numpy(), taught.forward(inputs), atol=1e-6)
    assert weights_digest(merged) == taught.digest


@pytest.mark.parametrize("name", ["houlsby", "pfeiffer"])
def test_what_cannot_be_merged_is_saved_whole_and_refused_by_transformers(name, base, tmp_path):
    from transformers import AutoModelForSequenceClassification

    from compress.artifact.artifact import Artifact, load, load_model

    task = tiny_task("classification")
    taught, folder = finetune(base, task, QUICK, adapter=AdapterBlock.model_validate(ADAPTERS[name]))
    assert load_model(folder).digest == taught.digest
    with pytest.raises(OSError, match=r"no file named model.safetensors"):
        AutoModelForSequenceClassification.from_pretrained(folder)
    saved = Artifact.from_model(taught).save(tmp_path / "artifact")
    assert load(saved).digest == taught.digest
    inputs = taught.encoder.collate(taught.encoder.encode([*task.train][:4]))
    np.testing.assert_allclose(load(saved).forward(inputs), taught.forward(inputs), atol=1e-6)


def test_an_adapter_of_another_base_or_a_changed_one_is_refused(base, tmp_path):
    task = tiny_task("classification")
    _, folder = finetune(base, task, QUICK, adapter=AdapterBlock.model_validate(ADAPTERS["lora"]))
    other = tiny_taskmodel("bert", tiny_spec("masked-lm"))
    with torch.no_grad():
        layers(other.model)[0].attention.output.dense.bias.add_(1)
    (tmp_path / "other").mkdir()
    save_taskmodel(other, tmp_path / "other")
    with pytest.raises(UserError, match=r"was trained on another base than .*other"):
        with_adapter(tmp_path / "other", folder)
    with pytest.raises(UserError, match="holds no adapter"):
        with_adapter(base, base)
    file = folder / FOLDER / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match="was changed after it was written"):
        with_adapter(base, folder)


def test_what_an_adapter_does_not_go_with_is_said():
    from teachers.finetuning.strategies import clashes

    training = Training(freeze=("embeddings",), unfreeze="epoch")
    found = dict(clashes("masked-lm", training, features=True, auxiliary_lm=True, adapter=True))
    assert {"adapter", "features", "auxiliary_lm", "freeze", "unfreeze"} <= set(found)
    assert not list(clashes("classification", Training(), adapter=True))
    text = "tasks: {a: {kind: masked-lm, data: d}, b: {kind: classification, data: d, head: scalar_mix}}\n"
    text += "name: n\nteacher: {model: m, finetune: {adapter: lora, per_task: {epochs: 1}}}\n"
    with pytest.raises(UserError) as raised:
        parse_recipe(text)
    said = "\n".join(raised.value.problems)
    for place in ("finetune.per_task: each task learns", "finetune.adapter: is for a task with", "tasks.b.head: is no"):
        assert place in said
    with pytest.raises(UserError, match=r"lora.parts: a layer of modernbert has no ffn_in; it has .*gated_in"):
        install(tiny_taskmodel("modernbert", tiny_spec("classification")).model, Lora(parts=("ffn_in",)))
    with pytest.raises(UserError, match="pfeiffer needs layers that end in a norm"):
        install(tiny_taskmodel("modernbert", tiny_spec("classification")).model, Pfeiffer())


def test_a_bottleneck_starts_close_to_nothing():
    network = tiny_taskmodel("bert", tiny_spec("classification")).model
    start = logits(network)
    install(network, Houlsby(size=8), seed=1)
    assert 0 < (logits(network) - start).abs().max() < 1e-4
    part = next(module for module in network.modules() if hasattr(module, "adapter")).adapter
    assert part.down.weight.abs().max() <= 2e-3
    assert functional.linear(torch.zeros(1, 32), part.down.weight, part.down.bias).abs().max() == 0


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@pytest.mark.parametrize("adapter", [Lora(rank=2), Houlsby(size=4)], ids=["lora", "houlsby"])
def test_the_decoder_beside_an_encoder_has_the_adapter_too(family, adapter):
    network = tiny_taskmodel(family, tiny_task("seq2seq").spec).model
    install(network, adapter)
    for layer in [*layer_names(network), *decoder_layer_names(network)]:
        own = {name for name, p in network.get_submodule(layer).named_parameters() if p.requires_grad}
        assert any("lora_A" in name or "adapter" in name for name in own)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    assert trained == set(task_parameters(network))
    assert not any(p is word_embeddings(network).weight for p in task_parameters(network).values())
    if isinstance(adapter, Lora):
        assert merge(drawn(network))


@pytest.mark.parametrize("family", ["t5", "llama", "mobilebert", "bert"])
def test_houlsby_trains_the_norms_of_every_kind(family):
    task = tiny_task("seq2seq") if family == "t5" else tiny_task()
    network = tiny_taskmodel(family, task.spec).model
    install(network, Houlsby(size=4))
    for layer in layers(network):
        norms = [part for part in layer.modules() if type(part).__name__.endswith("Norm")]
        assert norms
        assert all(p.requires_grad for part in norms for p in part.parameters())
