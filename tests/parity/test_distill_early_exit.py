"""FastBERT against the numbers of its formulas and the properties of its inference, in torch and in the export."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from benchmarks.early_exit import curve
from compress.architectures.early_exit_network import EarlyExitForSequenceClassification, added, goes_on, uncertainty
from compress.artifact.artifact import Artifact
from compress.distill.early_exit import EarlyExit, early_exit_kl
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.runtime.answering import ExportError, Runtime
from compress.modules.int8_scheme import Int8
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from eval.measurement import measure
from eval.task import Examples
from teachers.anatomy.encoder import layer_count
from teachers.anatomy.segments import run_layers
from tests.tiny import FAMILIES, at_first, tiny_task, tiny_taskmodel


def tensors(model, examples):
    return {
        name: torch.from_numpy(values) for name, values in model.encoder.collate(model.encoder.encode(examples)).items()
    }


def with_exits(family="bert", speed=0.5, **changes):
    """Return a model with branches whose answers differ in certainty from text to text."""
    model = tiny_taskmodel(family, **changes)
    torch.manual_seed(5)
    first = -1 if family == "xlnet" else 0
    exits = list(range(layer_count(model.model) - 1))
    network = EarlyExitForSequenceClassification.around(
        model.model, exits=exits, branch_size=16, first=first, speed=speed
    )
    with torch.no_grad():
        for layer, branch in enumerate(network.branches.values()):
            for parameter in branch.parameters():
                parameter.normal_(std=0.5)
            branch.classifier.weight.mul_(2 + 3 * layer)
    return replace(model, model=network)


def test_uncertainty_by_hand():
    known = [((0.5, 0.5), 1.0), ((0.9, 0.1), 0.468996), ((0.8, 0.1, 0.1), 0.581672), ((0.99, 0.01), 0.080793)]
    for probabilities, expected in known:
        assert uncertainty(torch.tensor([probabilities]).log()).item() == pytest.approx(expected, abs=1e-6)
    assert uncertainty(torch.tensor([[200.0, -200.0]])).item() == 0.0
    assert uncertainty(torch.zeros(1, 3)).item() == 1.0


def test_leaving_by_hand():
    logits = torch.tensor([[0.9, 0.1], [0.5, 0.5], [1.0, 1e-30]]).log()
    exact = uncertainty(logits)[0].item()
    assert goes_on(logits, exact).tolist() == [False, True, False]  # u = speed leaves
    assert goes_on(logits, 0.4).tolist() == [True, True, False]
    assert goes_on(logits, 1.0).tolist() == [False, False, False]
    assert goes_on(logits, 0.0).tolist() == [True, True, True]


def test_loss_by_hand():
    teacher = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    branch = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert early_exit_kl(branch[:, None], teacher).item() == pytest.approx(0.089037, abs=1e-6)
    assert early_exit_kl(torch.stack([branch, branch], dim=1), teacher).item() == pytest.approx(2 * 0.089037, abs=2e-6)
    assert early_exit_kl(torch.stack([teacher + 3.0, teacher], dim=1), teacher).item() == pytest.approx(0.0, abs=1e-6)


def test_the_loss_is_the_slow_loop():
    generator = torch.Generator().manual_seed(3)
    exits, last = torch.randn(5, 3, 4, generator=generator), torch.randn(5, 4, generator=generator)
    total = 0.0
    for row in range(5):
        p = [math.exp(x) for x in last[row].tolist()]
        for number in range(3):
            q = [math.exp(x) for x in exits[row, number].tolist()]
            total += sum(a / sum(p) * math.log(a / sum(p) / (b / sum(q))) for a, b in zip(p, q, strict=True)) / 5
    assert early_exit_kl(exits, last).item() == pytest.approx(total, rel=1e-5)


def test_a_branch_is_the_slow_loop():
    model = with_exits()
    branch = model.model.branches["0"]
    generator = torch.Generator().manual_seed(1)
    states, mask = torch.randn(2, 5, 32, generator=generator), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    with torch.no_grad():
        found = branch(states, added(mask, states.dtype))
        for row in range(2):
            x = torch.tanh(branch.narrow(states[row][mask[row] == 1]))
            query, key, value = branch.query(x), branch.key(x), branch.value(x)
            heads = []
            for head in (slice(0, 8), slice(8, 16)):
                share = (query[0, head] @ key[:, head].T / math.sqrt(8)).softmax(dim=-1)
                heads.append(share @ value[:, head])
            expected = branch.classifier(torch.tanh(branch.dense(branch.output(torch.cat(heads)))))
            torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gpt2"])
def test_layers_one_by_one_are_the_network(family):
    model = tiny_taskmodel(family)
    inputs = tensors(model, tiny_task().train[:5])
    with torch.no_grad():
        whole = model.model(**inputs, output_hidden_states=True)
        hidden = run_layers(model.model, inputs, 0, 1)
        assert torch.equal(hidden, whole.hidden_states[1])
        hidden = run_layers(model.model, inputs, 1, 2, hidden)
        assert torch.equal(hidden, whole.hidden_states[2])
        assert torch.equal(run_layers(model.model, inputs, 2, 3, hidden), whole.logits)
        assert torch.equal(model.model(**inputs).logits, whole.logits)


@pytest.mark.parametrize(
    ("family", "changes"), [("albert", {"num_hidden_groups": 2}), ("deberta-v2", {"conv_kernel_size": 3})]
)
def test_layers_of_special_configs(family, changes):
    model = tiny_taskmodel(family, **changes)
    inputs = tensors(model, tiny_task().train[:5])
    with torch.no_grad():
        hidden = run_layers(model.model, inputs, 1, 2, run_layers(model.model, inputs, 0, 1))
        assert torch.equal(run_layers(model.model, inputs, 2, 3, hidden), model.model(**inputs).logits)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gpt2"])
def test_answers_are_the_slow_loop(family):
    task = tiny_task()
    model = with_exits(family)
    inputs = tensors(model, task.validation)
    with torch.no_grad():
        states = model.model(**inputs, output_hidden_states=True)
        mask = added(inputs["attention_mask"], torch.float32)
        exits = [model.model.branches[str(i)](states.hidden_states[i + 1], mask) for i in range(2)]
        model.model.config.speed = float(uncertainty(exits[0]).median()) + 1e-4
        found = model.model.answer(**inputs)
    layers = []
    for row in range(len(task.validation)):
        left = [i for i in range(2) if uncertainty(exits[i][row : row + 1]).item() <= model.model.config.speed]
        layers.append(left[0] + 1 if left else 3)
        expected = exits[left[0]][row] if left else states.logits[row]
        torch.testing.assert_close(found.logits[row], expected, atol=1e-5, rtol=1e-4)
    assert found.layers.tolist() == layers
    assert 1 in layers
    assert max(layers) > 1


def test_speed_decides_how_deep():
    task = tiny_task()
    model = with_exits()
    plain = model.model.inner(**tensors(model, task.validation)).logits
    means = []
    for speed in (0.0, 1e-6, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
        model.model.config.speed = speed
        together, alone = predict(model, task.validation), predict(model, task.validation, batch_size=1)
        assert together.layers == alone.layers
        np.testing.assert_allclose(together.logits, alone.logits, atol=1e-5, rtol=1e-5)
        assert [a["label"] for a in together.answers] == [a["label"] for a in alone.answers]
        means.append(np.mean(together.layers))
    assert means == sorted(means, reverse=True)
    assert len(set(means)) > 4
    assert (means[0], means[1], means[-1]) == (3, 3, 1)
    model.model.config.speed = 1e-6
    assert torch.equal(model.model.answer(**tensors(model, task.validation)).logits, plain)
    model.model.config.speed = 1.0
    assert measure(model, task).layers == 1.0


def test_layers_that_nobody_needs_do_not_run():
    model = with_exits(speed=1.0)
    ran = []
    for index in range(3):
        layer = model.model.inner.bert.encoder.layer[index]
        layer.register_forward_hook(lambda _module, args, _output, index=index: ran.append((index, len(args[0]))))
    predict(model, tiny_task().validation[:6])
    assert ran == [(0, 6)]
    model.model.config.speed = 0.0
    ran.clear()
    predict(model, tiny_task().validation[:6])
    assert ran == [(0, 6), (1, 6), (2, 6)]


def test_training_learns_the_last_answers_and_leaves_the_model_as_it_is():
    task = tiny_task(examples=64)
    source = tiny_taskmodel("bert", task.spec)
    texts = Examples([{"text": example["text"]} for example in task.train], "texts")
    technique = EarlyExit(branch_size=16, epochs=20, learning_rate=5e-3, batch_size=16)
    result = run(Recipe(steps=(technique,)), source, Inputs(train=texts, validation=task.validation))
    own = {name.removeprefix("inner."): tensor for name, tensor in result.model.state_dict().items()}
    assert all(torch.equal(own[name], tensor) for name, tensor in source.model.state_dict().items())
    inputs = tensors(source, task.validation)
    with torch.no_grad():
        assert torch.equal(result.model(**inputs).logits, source.model(**inputs).logits)
    facts = result.lineage[-1].facts
    losses = [entry["loss"] for entry in facts["history"]]
    assert losses[-1] < losses[0] / 5
    assert facts["mean_layers"] == np.mean(predict(result, task.validation).layers)
    assert all(parameter.requires_grad for parameter in result.model.parameters())


def test_the_teacher_is_never_noisy():
    model = with_exits(hidden_dropout_prob=0.5)
    inputs = tensors(model, tiny_task().train[:4])
    expected = model.model(**inputs).logits
    model.model.train()
    assert not any(module.training for module in model.model.inner.modules())
    outputs = model.model(**inputs)
    assert torch.equal(outputs.logits, expected)
    early_exit_kl(outputs.exit_logits, outputs.logits).backward()
    assert all(parameter.grad is None for parameter in model.model.inner.parameters())
    assert all(parameter.grad is not None for parameter in model.model.branches.parameters())


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("regression", {}, "needs a classification task of two classes or more, this one is regression"),
        ("tagging", {}, "this one is tagging"),
        ("classification", {"exits": (0, 2)}, r"exits \[0, 2\]: needs ascending layers from 0 to 1, each once"),
        ("classification", {"exits": (1, 0)}, "needs ascending layers from 0 to 1"),
        ("classification", {"exits": ()}, "needs ascending layers"),
        ("classification", {"branch_heads": 3}, "branch_heads 3 must divide branch_size 128"),
    ],
)
def test_what_cannot_be_is_refused_by_name(kind, fields, message):
    task = tiny_task(kind)
    with pytest.raises(UserError, match=message):
        run(Recipe(steps=(EarlyExit(**fields),)), tiny_taskmodel("bert", task.spec), Inputs(train=task.train))


def test_a_single_layer_has_no_early_exit():
    task = tiny_task()
    with pytest.raises(UserError, match="needs a model of 2 layers or more"):
        run(Recipe(steps=(EarlyExit(),)), tiny_taskmodel("bert", num_hidden_layers=1), Inputs(train=task.train))


def exported(model, folder, **options):
    folder.mkdir(parents=True)
    return export_onnx(model, folder / "onnx", examples=tiny_task().validation, **options)


@pytest.mark.parametrize("family", at_first([family for family in FAMILIES if family != "gpt2"], "bert", "albert"))
def test_the_export_leaves_where_the_model_leaves(family, tmp_path):
    task = tiny_task()
    model = with_exits(family, speed=0.4)
    exported(model, tmp_path / family)
    assert Runtime(tmp_path / family / "onnx").manifest["speed"] == 0.4
    depths = set()
    for speed in (None, 1e-6, *(tenths / 10 for tenths in range(11)), 0.95, 0.98):
        model.model.config.speed = 0.4 if speed is None else speed
        runtime = Runtime(tmp_path / family / "onnx", speed=speed)
        expected = predict(model, task.validation)
        for batch_size in (1, 7, 32):
            found = predict(runtime, task.validation, batch_size)
            assert found.layers == expected.layers
            np.testing.assert_allclose(found.logits, expected.logits, atol=1e-4)
        depths |= set(expected.layers)
    assert depths == {1, 2, 3}


def test_an_8_bit_export_leaves_early_too(tmp_path):
    task, model = tiny_task(), with_exits(speed=0.4)
    scheme = Int8(exclude=("inner.bert.encoder.layer.1", "branches.1.narrow"))
    report = exported(model, tmp_path / "int8", int8=scheme, agreement=0.9)
    assert report.scheme == "int8"
    assert {"inner.bert.encoder.layer.1.output.dense", "branches.1.narrow"} <= set(report.quantized["float"])
    assert "inner.bert.encoder.layer.0.output.dense" not in report.quantized["float"]
    assert report.bytes < report.float_bytes
    runtime = Runtime(tmp_path / "int8" / "onnx")
    found, alone = predict(runtime, task.validation), predict(runtime, task.validation, batch_size=1)
    assert found.layers == alone.layers
    np.testing.assert_allclose(found.logits, alone.logits, atol=1e-5)
    assert len(set(found.layers)) > 1


def test_shared_layers_are_stored_once(tmp_path):
    model = with_exits("albert")
    report = exported(model, tmp_path / "albert")
    weights = 4 * sum(parameter.numel() for parameter in model.model.parameters())
    graph = onnx.load(str(tmp_path / "albert" / "onnx" / "model.onnx")).graph
    assert sum(weight.ByteSize() for weight in graph.initializer) > 64 * 32 * 4
    assert report.bytes < weights + 120_000


def test_an_export_runs_by_itself(tmp_path):
    task, model = tiny_task(), with_exits(speed=0.4)
    exported(model, tmp_path / "alone")
    folder = tmp_path / "alone" / "onnx"
    texts = [example["text"] for example in task.validation[:6]]
    for speed in ("0.4", "1"):
        program = subprocess.run(
            [sys.executable, "-I", str(folder / "predict.py"), "--speed", speed, *texts],
            check=True,
            capture_output=True,
            text=True,
        )
        model.model.config.speed = float(speed)
        expected = predict(model, task.validation[:6]).answers
        assert [json.loads(line)["label"] for line in program.stdout.splitlines()] == [a["label"] for a in expected]
    assert "leaves early" in (folder / "README.md").read_text()
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    inputs = model.encoder.collate(model.encoder.encode(task.validation[:6]))
    model.model.config.speed = 0.4
    np.testing.assert_allclose(session.run(["logits"], inputs)[0], model.forward(inputs), atol=1e-4)
    assert measure(Runtime(folder, speed=1.0), task).layers == 1.0


def test_a_speed_that_cannot_be_is_refused(tmp_path):
    exported(with_exits(), tmp_path / "early")
    exported(tiny_taskmodel("bert"), tmp_path / "plain")
    with pytest.raises(ExportError, match=r"speed: got 1\.5, allowed are 0"):
        Runtime(tmp_path / "early" / "onnx", speed=1.5)
    with pytest.raises(ExportError, match="has no early exits"):
        Runtime(tmp_path / "plain" / "onnx", speed=0.5)


def test_a_saved_model_answers_the_same(tmp_path):
    task = tiny_task()
    technique = EarlyExit(branch_size=16, exits=(1,), max_steps=2, speed=0.9)
    result = run(Recipe(steps=(technique,)), tiny_taskmodel("bert"), Inputs(train=task.train))
    assert result.model.stops == [2, 3]
    loaded = Artifact.from_pretrained(result.save(tmp_path / "saved"))
    expected, found = predict(result, task.validation), predict(loaded, task.validation)
    assert found.layers == expected.layers
    np.testing.assert_array_equal(found.logits, expected.logits)


def test_the_curve_runs_from_all_layers_to_one(tmp_path):
    plain, slow, fast = curve(with_exits(), tiny_task(), tmp_path, speeds=(0.0, 1.0), seconds=0.01)
    assert (plain.layers, slow.layers, fast.layers) == (3, 3, 1)
    assert plain.score == slow.score
    assert min(point.mean_ms for point in (plain, slow, fast)) > 0
