"""Q-BERT against numbers by hand, a slow loop over groups, and whole Hessians that are small enough to write out."""

import math

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from compress.artifact.artifact import load
from compress.engine.steps import run
from compress.export import export_onnx
from compress.modules.low_bit import asymmetric, fake_quantized, group_height
from compress.modules.packed import PackedEmbedding, PackedLinear
from compress.modules.rounding import MovingGrid, Rounding
from compress.quantize.bit_widths import CHOICES, halves, reversed_order, under_budget
from compress.quantize.hessian import Curvature, sensitivity, top_eigenvalue
from compress.quantize.layer_curvature import layer_eigenvalues, portions
from compress.quantize.qbert import QBert
from compress.recipe import Recipe
from compress.registry import get
from compress.share.embeddings import FactorisedEmbeddings
from compress.share.layers import LayerSharing
from compress.technique import Inputs
from eval.inference import predict
from teachers.anatomy.encoder import layers, word_embeddings
from teachers.losses.task_loss import task_loss
from teachers.signals.hooks import observe
from teachers.taskmodel import TaskModel, evaluating
from teachers.training.scoring import rows_of
from tests.tiny import tiny_task, tiny_taskmodel

LEAST = {"portions": 2, "portion_examples": 8, "power_steps": 30, "max_steps": 3, "batch_size": 8}


# ---- the grid


def test_two_bits_by_hand():
    weight = torch.tensor([[-0.9], [-0.15], [0.35], [2.1]])
    step, low = asymmetric(weight, 2, height=4)
    assert (step.item(), low.item()) == (pytest.approx(1.0), pytest.approx(-0.9))
    rounded = fake_quantized(weight, 2, height=4)
    assert rounded.flatten().tolist() == pytest.approx([-0.9, 0.1, 0.1, 2.1])
    assert (rounded - weight).square().mean().item() == pytest.approx(0.03125)
    assert torch.allclose(fake_quantized(weight, 2, height=2), weight), "two groups of two are exact"


@pytest.mark.parametrize("bits", CHOICES)
@pytest.mark.parametrize(("rows", "groups"), [(12, 3), (12, 5), (7, 128)])
def test_groups_against_a_slow_loop(bits, rows, groups):
    weight = torch.randn(rows, 6, generator=torch.Generator().manual_seed(bits))
    height = group_height(rows, groups)
    expected = torch.zeros_like(weight)
    for start in range(0, rows, height):
        group = weight[start : start + height]
        step = (group.max() - group.min()) / (2**bits - 1)
        for row in range(len(group)):
            for column in range(6):
                code = round(float((group[row, column] - group.min()) / step))
                expected[start + row, column] = code * step + group.min()
        assert len(expected[start : start + height].unique()) <= 2**bits
    found = fake_quantized(weight, bits, height)
    assert torch.allclose(found, expected, atol=1e-6)
    assert found.min() == weight.min()
    assert found.max() == pytest.approx(weight.max().item())


def test_groups_are_as_many_as_asked_for_and_a_remainder():
    assert group_height(768, 128) == 6
    assert group_height(768, 12) == 64
    assert group_height(768, 1) == 768
    assert group_height(32, 128) == 1
    assert asymmetric(torch.randn(10, 2), 4, group_height(10, 4))[0].shape == (5, 1)


def test_finer_groups_never_lose():
    weight = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
    errors = [(fake_quantized(weight, 2, group_height(24, g)) - weight).abs().max() for g in (1, 2, 4, 8, 24)]
    assert errors == sorted(errors, reverse=True)


def test_equal_weights_are_exact_and_gradients_pass():
    weight = torch.full((2, 3), 0.7, requires_grad=True)
    rounded = fake_quantized(weight, 2, height=2)
    assert torch.equal(rounded, weight)
    weight = torch.randn(4, 4, requires_grad=True)
    (fake_quantized(weight, 2, height=2) * torch.arange(16.0).reshape(4, 4)).sum().backward()
    assert torch.equal(weight.grad, torch.arange(16.0).reshape(4, 4))


def test_clipping_leaves_out_the_ends():
    weight = torch.cat([torch.linspace(-1, 1, 999), torch.tensor([50.0])]).reshape(1, -1)
    step, low = asymmetric(weight, 8, 1, clip=0.01)
    assert low.item() == pytest.approx(-1 + 0.02, abs=1e-3)
    assert (low + 255 * step).item() == pytest.approx(1 - 0.02, abs=5e-3)
    packed = PackedLinear.of(_linear(weight), clip=0.01, bits=8)
    assert packed.matrix().max().item() == pytest.approx((low + 255 * step).item())


@pytest.mark.parametrize("clip", [0.0, 0.001, 0.01, 0.49])
@pytest.mark.parametrize("columns", [1, 2, 7, 1500])
def test_the_ends_are_quantiles_of_each_group(columns, clip):
    weight = torch.randn(6, columns, generator=torch.Generator().manual_seed(columns))
    step, low = asymmetric(weight, 4, 2, clip=clip)
    groups = weight.reshape(3, -1)
    wanted = [groups.quantile(place, dim=1, keepdim=True) for place in (clip, 1 - clip)]
    torch.testing.assert_close(low, wanted[0])
    torch.testing.assert_close(low + 15 * step, wanted[1], atol=1e-5, rtol=1e-5)


def _linear(weight):
    made = nn.Linear(weight.shape[1], weight.shape[0])
    made.weight = nn.Parameter(weight)
    return made


def test_activations_by_moving_averages():
    grid = MovingGrid(8, momentum=0.99).train()
    assert torch.allclose(grid(torch.tensor([-1.0, 0.5, 3.0])), torch.tensor([-1.0, 0.5, 3.0]), atol=4 / 255 / 2)
    grid(torch.tensor([-2.0, 5.0]))
    assert grid.low.item() == pytest.approx(-1.01)
    assert grid.high.item() == pytest.approx(3.02)
    grid.eval()
    x = torch.tensor([-9.0, 0.3, 9.0], requires_grad=True)
    step = 4.03 / 255
    rounded = grid(x)
    assert rounded.tolist() == pytest.approx([-1.01, round((0.3 + 1.01) / step) * step - 1.01, 3.02], abs=1e-6)
    assert grid.high.item() == pytest.approx(3.02), "only training moves it"
    rounded.sum().backward()
    assert x.grad.tolist() == [1, 1, 1]


def test_rounding_comes_and_goes():
    linear = nn.Linear(6, 4)
    before, x = linear.weight.detach().clone(), torch.randn(3, 6)
    rounding = Rounding()
    rounding.weights(linear, 2, 2, 0.0)
    rounding.inputs(linear, 8)
    low, high = x.min(), x.max()
    step = (high - low) / 255
    rounded = ((x - low) / step).round() * step + low
    assert torch.allclose(linear(x), rounded @ fake_quantized(before, 2, 2).T + linear.bias, atol=1e-6)
    rounding.undo()
    assert type(linear) is nn.Linear
    assert torch.equal(linear.weight, before)
    assert [name for name, _ in linear.named_modules()] == [""]
    assert torch.allclose(linear(x), x @ before.T + linear.bias, atol=1e-6)


# ---- the Hessian


def quadratic(matrix):
    weight = torch.zeros(len(matrix), requires_grad=True)
    return weight, lambda: 0.5 * weight @ matrix @ weight


def test_products_with_a_known_hessian():
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    weight, loss = quadratic(matrix)
    curvature = Curvature([loss], [weight])
    for vector in (torch.tensor([1.0, 0.0]), torch.tensor([0.3, -2.0])):
        assert torch.equal(curvature.times((vector,))[0], matrix @ vector)
    halved = Curvature([lambda: loss() / 2, lambda: loss() / 2], [weight])
    assert torch.allclose(halved.times((vector,))[0], matrix @ vector)
    value = top_eigenvalue(curvature, torch.Generator().manual_seed(0), tolerance=1e-7)
    assert value == pytest.approx(3.618034, abs=1e-5)


def test_the_sign_of_the_largest_eigenvalue_stays():
    weight, loss = quadratic(torch.diag(torch.tensor([1.0, -5.0, 2.0])))
    value = top_eigenvalue(Curvature([loss], [weight]), torch.Generator().manual_seed(0), 1e-8)
    assert value == pytest.approx(-5.0, abs=1e-4)
    weight = torch.zeros(2, requires_grad=True)
    assert top_eigenvalue(Curvature([lambda: (weight * 0.0).sum() ** 2], [weight]), torch.Generator()) == 0.0


def test_sensitivity_by_hand():
    assert sensitivity([4, 2, 3]) == pytest.approx(3.816497, abs=1e-6)
    assert sensitivity([-4, 2, 3]) == pytest.approx(3.424539, abs=1e-6)


def test_eigenvalues_of_a_network_against_its_whole_hessian():
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec, hidden_size=4, intermediate_size=4, num_attention_heads=2)
    technique = QBert(portions=1, portion_examples=8, power_steps=300, tolerance=1e-7)
    generator = torch.Generator().manual_seed(3)
    inputs = Inputs(train=task.train)
    found = layer_eigenvalues(technique, model, inputs, generator)
    (portion,) = portions(technique, model, inputs, torch.Generator().manual_seed(3))
    rows = rows_of(model, portion, 0)
    batch = rows.batch(range(len(rows)))
    model.model.set_attn_implementation("eager")
    for layer, (value,) in zip(layers(model.model), found, strict=True):
        names = [n for n, m in layer.named_modules() if isinstance(m, nn.Linear)]
        weights = [layer.get_submodule(n).weight for n in names]
        signals = observe(model.model, batch.inputs)
        gradient = torch.autograd.grad(task_loss(task.spec, signals.logits, batch), weights, create_graph=True)
        flat = torch.cat([g.flatten() for g in gradient])
        rows_found = [
            torch.cat([h.flatten() for h in torch.autograd.grad(element, weights, retain_graph=True)])
            for element in flat
        ]
        values = torch.linalg.eigvalsh(torch.stack(rows_found).double())
        largest = values[values.abs().argmax()].item()
        assert value == pytest.approx(largest, rel=5e-3)


def test_several_batches_give_the_mean_loss():
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    one, several = (
        layer_eigenvalues(
            QBert(portions=1, portion_examples=12, power_steps=50, tolerance=1e-6, batch_size=size),
            model,
            Inputs(train=task.train),
            torch.Generator().manual_seed(0),
        )
        for size in (12, 5)
    )
    assert np.allclose(one, several, rtol=1e-3)


def test_portions_are_disjoint_and_of_one_size():
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    cut = portions(QBert(portions=3, portion_examples=5), model, Inputs(train=task.train), torch.Generator())
    assert [len(portion) for portion in cut] == [5, 5, 5]
    assert len({id(example) for portion in cut for example in portion}) == 15
    tenths = portions(QBert(portion_examples=None), model, Inputs(train=task.train), torch.Generator())
    assert [len(portion) for portion in tenths] == [len(task.train) // 10] * 10


# ---- bits


def test_halves_and_their_reverse():
    assert halves([0.1, 5.0, 2.0, 0.3], (3, 2)) == [2, 3, 3, 2]
    assert halves([1.0, 3.0, 2.0], (4, 2)) == [2, 4, 4]
    assert reversed_order([0.1, 5.0, 2.0, 0.3]) == [5.0, 0.1, 0.3, 2.0]
    eigenvalues = [[0.1], [5.0], [2.0], [0.3]]
    assert QBert(bits=(3, 2)).chosen(eigenvalues, [1] * 4)[0] == [2, 3, 3, 2]
    assert QBert(bits=(3, 2), reverse=True).chosen(eigenvalues, [1] * 4)[0] == [3, 2, 2, 3]


def test_a_budget_is_kept_and_spent_where_it_matters():
    omegas, sizes = [8.0, 0.5, 2.0, 0.01], [100, 100, 100, 100]
    for budget in (2.0, 2.5, 3.0, 4.2, 8.0):
        bits = under_budget(omegas, sizes, budget)
        assert sum(bits) / 4 <= budget
        ranked = [bits[layer] for layer in sorted(range(4), key=lambda layer: -omegas[layer])]
        assert ranked == sorted(ranked, reverse=True)
    assert under_budget(omegas, sizes, 2.0) == [2, 2, 2, 2]
    assert under_budget(omegas, sizes, 3.0) == [4, 3, 3, 2]
    assert under_budget(omegas, sizes, 8.0) == [8, 8, 8, 8]
    assert under_budget([1.0, 1.0], [300, 100], 2.25) == [2, 3], "a large layer does not fit"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bits": 4, "budget": 3.0}, "bits or budget, not both"),
        ({"bits": (2, 3)}, "the sensitive half comes first"),
        ({"bits": 4, "reverse": True}, "nothing to reverse"),
    ],
)
def test_what_contradicts_itself_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        QBert(**fields)


# ---- the whole


def test_the_result_is_what_was_trained_with_rounding(monkeypatch):
    """Before packing, the rounded network with float activations answers as the packed one does."""
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    seen = {}

    def undo(self):
        for _, handle in self.hooks:
            handle.remove()
        seen["logits"] = np.stack(predict(TaskModel(model.model, model.tokenizer, model.task), task.validation).logits)
        original(self)

    original = Rounding.undo
    monkeypatch.setattr("compress.modules.rounding.Rounding.undo", undo)
    technique = QBert(**LEAST, groups=4, word_bits=4)
    outcome = technique.apply(model, Inputs(train=task.train), torch.Generator().manual_seed(1))
    assert np.allclose(np.stack(predict(outcome.model, task.validation).logits), seen["logits"], atol=1e-5)
    assert sorted(outcome.facts["bits"]) == [2, 3, 3]
    assert outcome.facts["mean_bits"] == pytest.approx(8 / 3)
    assert len(outcome.facts["history"]) == 1
    parts = dict(model.model.named_modules())
    assert parts["bert.embeddings.word_embeddings"].bits == 4
    assert parts["bert.embeddings.position_embeddings"].bits == 8
    query = parts["bert.encoder.layer.0.attention.self.query"]
    assert (query.height, query.scale.shape) == (8, (4, 1))
    assert type(parts["classifier"]) is nn.Linear


def test_bytes_are_what_the_bits_say():
    task = tiny_task("classification")
    source = tiny_taskmodel("bert", task.spec)
    result = run(Recipe(steps=(QBert(bits=2, finetune=False, groups=8, ranges="float16"),)), source)
    before, after = result.lineage[-1].size_before, result.lineage[-1].size_after
    assert (after["parameters"], after["macs"]) == (before["parameters"], before["macs"])
    matrices = [m for m in result.model.modules() if isinstance(m, PackedLinear)]
    tables = [m for m in result.model.modules() if isinstance(m, PackedEmbedding)]
    assert (len(matrices), len(tables)) == (18, 3)
    saved = sum(m.rows * m.columns * 4 - (m.rows * m.columns // 4 + 8 * 2 * 2) for m in matrices)
    saved += sum(m.rows * m.columns * 4 - (m.rows * m.columns + m.rows * 2 * 2) for m in tables)
    assert before["bytes"] - after["bytes"] == saved


def test_rounding_alone_needs_no_data_and_a_mixture_does():
    assert QBert(bits=4, finetune=False).needed() == frozenset()
    assert QBert(finetune=False).needed() == {"train"}
    assert QBert(bits=4).needed() == {"train"}


def test_eight_bits_change_little_and_two_bits_without_groups_much():
    task = tiny_task("classification")
    source = tiny_taskmodel("bert", task.spec)
    expected = np.stack(predict(source, task.validation).logits)
    errors = [
        np.abs(
            np.stack(predict(run(Recipe(steps=(QBert(finetune=False, **fields),)), source), task.validation).logits)
            - expected
        ).mean()
        for fields in ({"bits": 8}, {"bits": 4}, {"bits": 2}, {"bits": 2, "groups": 1})
    ]
    assert errors == sorted(errors)
    assert errors[0] < 0.02
    assert errors[3] > 10 * errors[0]


def test_a_stopped_run_measures_once(tmp_path, monkeypatch):
    task = tiny_task("classification")
    technique = QBert(**LEAST)
    found = []
    for _ in range(2):
        model = tiny_taskmodel("bert", task.spec)
        inputs = Inputs(train=task.train, folder=tmp_path)
        found.append(technique.apply(model, inputs, torch.Generator().manual_seed(1)))
        monkeypatch.setattr("compress.quantize.layer_curvature.top_eigenvalue", lambda *_: pytest.fail("again"))
    assert found[0].facts == found[1].facts
    assert found[0].model.digest == found[1].model.digest
    assert all(math.isfinite(value) for value in found[0].facts["sensitivity"])


def test_the_export_is_packed_too(tmp_path):
    task = tiny_task("classification")
    result = run(Recipe(steps=(QBert(**LEAST),)), tiny_taskmodel("bert", task.spec), Inputs(train=task.train))
    report = export_onnx(result, tmp_path / "q", examples=task.validation)
    assert report.gate.max_abs_difference < 1e-4
    weights = [w for w in onnx.load(tmp_path / "q" / "model.onnx").graph.initializer if len(w.dims) > 1]
    codes = sum(int(np.prod(w.dims)) for w in weights if w.data_type == onnx.TensorProto.UINT8)
    packed = [m for m in result.model.modules() if isinstance(m, (PackedLinear, PackedEmbedding))]
    assert codes == sum(m.codes.numel() for m in packed)
    floats = sum(int(np.prod(w.dims)) for w in weights if w.data_type == onnx.TensorProto.FLOAT)
    assert floats < 2 * sum(m.scale.numel() for m in packed) + 32 * 32 + 1024, "ranges, the pooler, the classifier"


@pytest.mark.parametrize("pruned", [False, True])
def test_a_tied_head_has_the_codes_of_its_table(pruned, tmp_path):
    """Pruned tables have zero points, which a head that was not pruned itself takes over with the codes."""
    task = tiny_task("causal-lm")
    source = tiny_taskmodel("gpt2", task.spec)
    steps = [get("prune.magnitude")(max_steps=1, batch_size=8)] if pruned else []
    steps.append(QBert(portions=2, portion_examples=4, power_steps=3, finetune=False, bits=4))
    result = run(Recipe(steps=tuple(steps)), source, Inputs(train=task.train, validation=task.validation))
    result.save(tmp_path / "model")
    inputs = result.encoder.collate(result.encoder.encode(task.validation[:4]))
    for model in (result, load(tmp_path / "model")):
        table, head = model.model.transformer.wte, model.model.lm_head
        assert (table.zero is not None, head.zero_points) == (pruned, pruned)
        assert all(getattr(table, name) is getattr(head, name) for name in ("codes", "scale", "offset", "zero"))
        assert np.allclose(model.forward(inputs), result.forward(inputs), atol=1e-5)
        assert np.allclose(head(torch.eye(head.columns)).T.detach(), table.matrix(), atol=1e-6)


def test_a_word_decoder_that_is_tied_is_rounded_while_it_is_trained(monkeypatch):
    task = tiny_task("masked-lm")
    model = tiny_taskmodel("bert", task.spec)
    seen = {}
    ids = torch.arange(5, 25)[None]

    def logits(network):
        with evaluating(network):
            return network(input_ids=ids).logits

    def undo(self):
        network = model.model
        table, decoder = network.bert.embeddings.word_embeddings, network.cls.predictions.decoder
        seen["same"] = torch.equal(table.weight, decoder.weight)
        seen["levels"] = max(len(row.round(decimals=4).unique()) for row in decoder.weight)
        seen["logits"] = logits(network)
        original(self)

    original = Rounding.undo
    monkeypatch.setattr("compress.modules.rounding.Rounding.undo", undo)
    technique = QBert(**{**LEAST, "bits": 8, "word_bits": 2, "activation_bits": None})
    outcome = technique.apply(model, Inputs(train=task.train), torch.Generator().manual_seed(1))
    assert seen["same"]
    assert seen["levels"] <= 4
    np.testing.assert_allclose(logits(outcome.model.model), seen["logits"], atol=1e-4)


def test_eigenvalues_of_other_weights_or_settings_are_measured_anew(tmp_path):
    task = tiny_task("classification")
    quick = {"portions": 1, "portion_examples": 4, "power_steps": 2}

    def found(seed=0, **changes):
        inputs = Inputs(train=task.train, folder=tmp_path)
        model = tiny_taskmodel("bert", task.spec, seed=seed)
        return layer_eigenvalues(QBert(**quick | changes), model, inputs, torch.Generator().manual_seed(3))

    first = found()
    kept = (tmp_path / "eigenvalues.json").read_bytes()
    assert found() == first
    assert (tmp_path / "eigenvalues.json").read_bytes() == kept
    assert found(seed=5) != first
    assert [len(values) for values in found(portions=2)] == [2] * len(first)


@pytest.mark.parametrize(("shared", "units"), [("all", 2), ("attention", 4)])
def test_what_layers_share_is_measured_once_and_stays_shared(shared, units, tmp_path):
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec, num_hidden_layers=4)
    steps = (LayerSharing(share=shared, groups=2, recover=False), QBert(**LEAST))
    result = run(Recipe(steps=steps), model, Inputs(train=task.train), dry_run_first=False)
    facts = result.lineage[-1].facts
    assert len(facts["bits"]) == len(facts["eigenvalues"]) == units
    result.save(tmp_path)
    for network in (result.model, load(tmp_path).model):
        parts = [layer.attention.self.query for layer in layers(network)]
        assert all(isinstance(part, PackedLinear) for part in parts)
        assert [parts.index(part) for part in parts] == [0, 0, 2, 2]


def test_a_factorised_table_is_packed_too(tmp_path):
    task = tiny_task("classification")
    steps = (FactorisedEmbeddings(size=8, recover=False), QBert(bits=8, word_bits=4, max_steps=2))
    result = run(Recipe(steps=steps), tiny_taskmodel("bert", task.spec), Inputs(train=task.train), dry_run_first=False)
    table = word_embeddings(result.model)
    assert isinstance(table, PackedEmbedding)
    assert (table.bits, table.embedding_dim) == (4, 8)
    result.save(tmp_path)
    before, after = (predict(model, task.train[:4]).answers for model in (result, load(tmp_path)))
    assert before == after
