"""Adaptive computation time against the equations of Graves 2016 in plain loops, in torch and in the export."""

import math
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from compress import load
from compress.architectures.adaptive_depth_network import AdaptiveDepthForSequenceClassification, halting
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.runtime.answering import Runtime
from compress.objective import ObjectiveBlock
from compress.onnx_graph.build import onnx_graph
from compress.recipe import Recipe
from compress.share.adaptive_depth import AdaptiveDepth, is_one_layer
from compress.share.layers import LayerSharing
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from eval.measurement import measure
from teachers.anatomy.encoder import layers
from teachers.anatomy.segments import run_layers
from teachers.signals.model_teacher import ModelTeacher
from tests.tiny import FAMILIES, at_first, tiny_task, tiny_taskmodel

ENCODERS = [family for family in FAMILIES if family != "gpt2"]


def tensors(model, examples):
    found = model.encoder.collate(model.encoder.encode(examples))
    return {name: torch.from_numpy(values) for name, values in found.items()}


def halting_by_itself(family="bert", epsilon=0.01, **changes):
    """Return a model of one layer whose texts halt after different numbers of rounds."""
    model = tiny_taskmodel(family, **changes)
    if not is_one_layer(model.model):
        model = LayerSharing(recover=False).apply(model, Inputs(), torch.Generator()).model
    first = -1 if family == "xlnet" else 0
    network = AdaptiveDepthForSequenceClassification.around(model.model, first=first, speed=epsilon)
    inputs = tensors(model, tiny_task().validation)
    with torch.no_grad():  # a unit that says different things of the texts, and not of the layers
        states, read = None, []
        for layer in range(3):
            states = run_layers(network.eval().inner, inputs, layer, layer + 1, states, head=False)
            read.append(states[:, first])
        centre = read[0].mean(dim=0)
        apart, _ = torch.linalg.qr(torch.stack([one.mean(dim=0) - centre for one in read[1:]], dim=1))
        texts = read[0] - centre
        weight = torch.linalg.svd(texts - texts @ apart @ apart.T).Vh[0]
        weight = 3 * weight / (read[0] @ weight).std()
        network.halting.weight.copy_(weight[None])
        network.halting.bias.fill_(-(read[0] @ weight).median())
    return replace(model, model=network)


# ---- the equations


def graves(probabilities, epsilon):
    """Return the weights p_n, N and the ponder cost N + R of one row, as the paper writes them."""
    total, number, count = 0.0, 0, len(probabilities)
    while number < count:
        number += 1
        total += probabilities[number - 1]
        if total >= 1 - epsilon:
            break
    remainder = 1 - sum(probabilities[: number - 1])
    weights = [*probabilities[: number - 1], remainder, *([0.0] * (count - number))]
    return weights, number, number + remainder


def test_halting_by_hand():
    rows = [
        ([0.2, 0.3, 0.6, 0.9], [0.2, 0.3, 0.5, 0.0], 3, 3.5),  # 0.2 + 0.3 + 0.6 >= 0.99; R = 1 - 0.5
        ([0.995, 0.5, 0.5, 0.5], [1.0, 0.0, 0.0, 0.0], 1, 2.0),  # at once, and all weight is the remainder
        ([0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7], 4, 4.7),  # never reached: the last layer takes what is left
        ([0.5, 0.485, 0.9, 0.9], [0.5, 0.485, 0.015, 0.0], 3, 3.015),  # 0.985 is not yet 0.99
    ]
    found = halting(torch.tensor([row[0] for row in rows]), 0.01)
    torch.testing.assert_close(found.weights, torch.tensor([row[1] for row in rows]))
    assert found.layers.tolist() == [row[2] for row in rows]
    torch.testing.assert_close(found.ponder, torch.tensor([row[3] for row in rows]))


@pytest.mark.parametrize("epsilon", [0.01, 0.3])
def test_halting_is_the_slow_loop(epsilon):
    probabilities = torch.rand(40, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = halting(probabilities, epsilon)
    for row, given in enumerate(probabilities.tolist()):
        weights, number, ponder = graves(given, epsilon)
        assert found.weights[row].tolist() == pytest.approx(weights)
        assert (found.layers[row].item(), found.ponder[row].item()) == (number, pytest.approx(ponder))
    assert found.weights.sum(dim=1).tolist() == pytest.approx([1.0] * 40)
    assert len(set(found.layers.tolist())) > 2


def test_the_gradient_of_the_ponder_cost_is_that_of_the_remainder():
    probabilities = torch.tensor([[0.2, 0.3, 0.6, 0.9]], requires_grad=True)
    halting(probabilities, 0.01).ponder.sum().backward()
    assert probabilities.grad.tolist() == [[-1.0, -1.0, 0.0, 0.0]]


def test_the_network_is_the_slow_loop():
    """Text by text: BERT's own modules, the layer again and again until the sum is reached, the mean, the head."""
    model, texts = halting_by_itself(), tiny_task().validation
    network, bert = model.model, model.model.inner.bert
    together = tensors(model, texts)
    with torch.no_grad():
        found, quick = network(**together), network.answer(**together)
        for row in range(len(texts)):
            alone = tensors(model, texts[row : row + 1])
            state, mean, total, number = bert.embeddings(alone["input_ids"]), 0.0, 0.0, 0
            while True:
                number += 1
                state = bert.encoder.layer[0](state, None)
                state = state[0] if isinstance(state, tuple) else state
                h = torch.sigmoid(state[0, 0] @ network.halting.weight[0] + network.halting.bias[0]).item()
                if total + h >= 0.99 or number == 3:
                    mean = mean + (1 - total) * state
                    break
                mean, total = mean + h * state, total + h
            expected = network.inner.classifier(bert.pooler(mean))[0]
            torch.testing.assert_close(found.logits[row], expected, atol=1e-5, rtol=1e-5)
            assert quick.layers[row].item() == number
            assert found.ponder[row].item() == pytest.approx(number + 1 - total, abs=1e-5)
    assert len(set(quick.layers.tolist())) == 3


@pytest.mark.parametrize("family", at_first(ENCODERS, "deberta-v2", "xlnet"))
def test_leaving_changes_no_answer(family):
    model = halting_by_itself(family)
    inputs = tensors(model, tiny_task().validation)
    depths = set()
    for epsilon in (0.01, 0.2, 0.5):
        model.model.config.speed = epsilon
        with torch.no_grad():
            whole, quick = model.model(**inputs), model.model.answer(**inputs)
        torch.testing.assert_close(quick.logits, whole.logits, atol=1e-5, rtol=1e-5)
        assert quick.layers.tolist() == whole.layers.tolist()
        depths |= set(quick.layers.tolist())
    assert len(depths) > 1


def test_layers_that_nobody_needs_do_not_run():
    model = halting_by_itself()
    texts, ran = tiny_task().validation, []
    layer = model.model.inner.bert.encoder.layer[0].attention.self.query
    layer.register_forward_hook(lambda _module, args, _output: ran.append(len(args[0])))
    deep = predict(model, texts, batch_size=len(texts)).layers
    assert ran == [sum(count > done for count in deep) for done in range(max(deep))]
    model.model.config.speed = 0.0
    ran.clear()
    predict(model, texts, batch_size=len(texts))
    assert ran == [len(texts)] * 3


# ---- the export


def exported(model, folder, **options):
    folder.mkdir(parents=True)
    return export_onnx(model, folder / "onnx", examples=tiny_task().validation, **options)


@pytest.mark.parametrize("family", at_first(ENCODERS, "bert"))
def test_the_export_halts_where_the_model_halts(family, tmp_path):
    task, model = tiny_task(), halting_by_itself(family)
    exported(model, tmp_path / family)
    depths = set()
    for speed in (None, 0.0, 0.2, 0.5):
        model.model.config.speed = 0.01 if speed is None else speed
        runtime, expected = Runtime(tmp_path / family / "onnx", speed=speed), predict(model, task.validation)
        for batch_size in (1, 32):
            found = predict(runtime, task.validation, batch_size)
            assert found.layers == expected.layers
            np.testing.assert_allclose(found.logits, expected.logits, atol=1e-4)
        depths |= set(expected.layers)
    assert len(depths) > 1


def test_the_export_holds_one_layer_and_skips_its_later_rounds(tmp_path):
    model = halting_by_itself()
    report = exported(model, tmp_path / "one")
    one_token = onnx_graph(model, None).one_token
    assert one_token
    assert all(name.startswith("inner.bert.encoder.layer.2.") for name in one_token), "the last round alone"
    graph = onnx.load(str(tmp_path / "one" / "onnx" / "model.onnx")).graph
    weights = 4 * sum(parameter.numel() for parameter in model.model.parameters())
    assert report.bytes < weights + 120_000
    depth, nested = 0, graph
    while True:
        assert sum(node.op_type == "Softmax" for node in nested.node) == 1, "one round of attention in each branch"
        depth += 1
        further = [node for node in nested.node if node.op_type == "If"]
        if not further:
            break
        nested = next(each.g for each in further[0].attribute if each.name == "then_branch")
    assert depth == 3


def test_an_8_bit_export_halts_too(tmp_path):
    task, model = tiny_task(), halting_by_itself()
    report = exported(model, tmp_path / "int8", int8=True, agreement=0.5)
    assert report.scheme == "int8"
    runtime = Runtime(tmp_path / "int8" / "onnx")
    found, alone = predict(runtime, task.validation), predict(runtime, task.validation, batch_size=1)
    assert found.layers == alone.layers
    assert len(set(found.layers)) > 1


# ---- the technique


def learned(ponder, source, task, **fields):
    """Return what a teacher's soft targets and this price of a layer make of a model."""
    technique = AdaptiveDepth(
        ponder=ponder,
        objective=ObjectiveBlock.model_validate({"distill.logits": {"temperature": 2.0, "alpha": 1.0}}),
        epochs=6,
        learning_rate=1e-2,
        batch_size=16,
        **fields,
    )
    inputs = Inputs(train=task.train, validation=task.validation, teacher=ModelTeacher(tiny_taskmodel("bert", seed=1)))
    return run(Recipe(steps=(technique,)), source, inputs, dry_run_first=False)


def test_the_price_of_a_layer_decides_how_deep(tmp_path):
    task = tiny_task(examples=64)
    source = tiny_taskmodel("bert")
    free, dear = (learned(ponder, source, task) for ponder in (0.0, 1.0))
    facts = [model.lineage[-1].facts for model in (free, dear)]
    assert facts[0]["mean_layers"] > facts[1]["mean_layers"] + 0.5
    assert facts[1]["mean_layers"] == np.mean(predict(dear, task.validation).layers)
    assert sum(facts[1]["texts_by_layers"].values()) == len(task.validation)
    assert measure(dear, task).layers == pytest.approx(facts[1]["mean_layers"])
    assert is_one_layer(dear.model.inner)
    assert sum(p.numel() for p in dear.model.parameters()) < sum(p.numel() for p in source.model.parameters())
    found, again = predict(dear, task.validation), predict(load(dear.save(tmp_path / "saved")), task.validation)
    assert again.layers == found.layers
    np.testing.assert_array_equal(again.logits, found.logits)


def test_numbers_are_answered_after_as_many_layers_as_they_need(tmp_path):
    task = tiny_task("regression")
    technique = AdaptiveDepth(ponder=1.0, max_steps=2)
    result = run(Recipe(steps=(technique,)), tiny_taskmodel("bert", task.spec), Inputs(train=task.train))
    export_onnx(result, tmp_path / "onnx", examples=task.validation)
    found, expected = predict(Runtime(tmp_path / "onnx"), task.validation), predict(result, task.validation)
    assert found.layers == expected.layers == [3] * len(task.validation)
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-4)


def test_pieces_of_a_batch_give_the_ponder_cost_of_the_whole():
    task, models = tiny_task(), []
    for pieces in (1, 4):
        technique = AdaptiveDepth(ponder=1.0, start=0.4, max_steps=1, batch_size=8, gradient_accumulation_steps=pieces)
        inputs = Inputs(train=task.train[:8])
        source = tiny_taskmodel("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        models.append(run(Recipe(steps=(technique,)), source, inputs, dry_run_first=False))
    first, second = (model.lineage[-1].facts["history"][-1]["terms"]["ponder"] for model in models)
    assert first == pytest.approx(second, rel=1e-5)


def test_what_shares_its_layers_already_is_taken_as_it_is():
    task = tiny_task()
    for source in (
        tiny_taskmodel("albert"),
        LayerSharing(recover=False).apply(tiny_taskmodel("bert"), Inputs(), torch.Generator()).model,
    ):
        shared = {name: tensor.clone() for name, tensor in layers(source.model)[0].state_dict().items()}
        technique = AdaptiveDepth(max_steps=1, learning_rate=1e-12, start=0.3)
        result = run(Recipe(steps=(technique,)), source, Inputs(train=task.train), dry_run_first=False)
        assert "shared" not in result.lineage[-1].facts
        own = layers(result.model.inner)[0].state_dict()
        assert all(torch.allclose(own[name], tensor, atol=1e-6) for name, tensor in shared.items())
        assert torch.sigmoid(result.model.halting.bias).item() == pytest.approx(0.3, abs=1e-6)


def test_the_start_of_untrained_halting_is_the_whole_depth():
    model = tiny_taskmodel("bert")
    network = AdaptiveDepthForSequenceClassification.around(model.model, start=0.1).eval()
    with torch.no_grad():
        found = network(**tensors(model, tiny_task().validation[:4]))
    assert found.ponder.tolist() == pytest.approx([3 + 0.8] * 4)
    assert network.halting.bias.item() == pytest.approx(-math.log(9))


@pytest.mark.parametrize(
    ("family", "kind", "changes", "fields", "message"),
    [
        ("bert", "tagging", {}, {}, "works in classification and regression; this task is tagging"),
        ("gpt2", "classification", {}, {}, "halts by the first token, which in gpt2 sees none of the others"),
        ("bert", "classification", {"num_hidden_layers": 1}, {}, "needs a model of 2 layers or more"),
        ("albert", "classification", {"num_hidden_groups": 2}, {}, "needs an albert of one group of layers, this one"),
        ("albert", "classification", {}, {"init": "mean"}, "init is for layers that differ, and these share"),
        ("bert", "classification", {}, {"init": (3,)}, r"share.adaptive_depth: init \[3\] must name one layer"),
        (
            "bert",
            "classification",
            {},
            {"objective": {"distill.pkd": {}}},
            "distill.pkd reads more than logits, and the states are those of all layers",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(family, kind, changes, fields, message):
    task = tiny_task(kind)
    model = tiny_taskmodel(family, task.spec, **changes)
    inputs = Inputs(train=task.train, teacher=ModelTeacher(model))
    with pytest.raises(UserError, match=message):
        run(Recipe(steps=(AdaptiveDepth(**fields),)), model, inputs)
