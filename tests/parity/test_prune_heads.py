"""Head importance against gradients taken by hand, and a cut network against one whose heads are masked."""

import numpy as np
import pytest
import torch

from compress import load
from compress.artifact.structure import structure_of
from compress.distill.minilm import MiniLMDistillation
from compress.distill.tinybert import TinyBertDistillation
from compress.engine.steps import run
from compress.export import export_onnx
from compress.prune.head_importance import certainty, example_scores, measured, normalised, taylor, token_scores
from compress.prune.heads import HeadPruning, kept_heads
from compress.recipe import Recipe
from compress.share.layers import LayerSharing
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from eval.task import Examples
from teachers.anatomy.attention_heads import eager_attention, head_counts
from teachers.anatomy.encoder import layer_parts, layers
from teachers.anatomy.head_bias import score_bias
from teachers.losses.task_loss import task_loss
from teachers.signals.model_teacher import ModelTeacher
from teachers.training.scoring import rows_of
from tests.tiny import FAMILIES, HEADS, HIDDEN, LAYERS, in_turn, tiny_task, tiny_taskmodel

SIZE = HIDDEN // HEADS


def masked(model, dropped):
    """Set the dropped heads' part of the output projection to 0: what they give counts no more."""
    for index, heads in dropped.items():
        output = layer_parts(model.model, layers(model.model)[index])["attention_output"]
        size = output.in_features // HEADS
        with torch.no_grad():
            for head in heads:
                output.weight[:, head * size : (head + 1) * size] = 0
    return model


def test_the_numbers_of_the_definition():
    context, gradient = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), torch.tensor([[0.5, 0.0], [-1.0, 1.0]])
    gates = (context * gradient).sum(dim=-1)
    assert gates.tolist() == [0.5, -4.0]
    one, mask = gates[None, :, None], torch.ones(1, 2)
    assert token_scores(one, mask).tolist() == [[4.5]]
    assert example_scores(one, mask).tolist() == [[3.5]]
    padded = torch.tensor([[[0.5], [-4.0], [9.0]]])
    assert token_scores(padded, torch.tensor([[1, 1, 0]])).tolist() == [[4.5]]
    assert example_scores(padded, torch.tensor([[1, 1, 0]])).tolist() == [[3.5]]
    (layer,) = normalised([torch.tensor([3.0, 4.0])])
    assert torch.allclose(layer, torch.tensor([0.6, 0.8]))
    assert taylor([torch.tensor([[1.0, 2.0], [3.0, 0.0]])], [torch.tensor([[1.0, -1.0], [2.0, 5.0]])]).tolist() == [
        5,
        36,
    ]


def test_attention_to_one_token_is_certain_and_to_all_is_not():
    even = torch.zeros(1, 3, 4)
    assert torch.allclose(certainty(even, even, torch.tensor([[1, 1, 0]]), 2), torch.zeros(1, 2), atol=1e-6)
    queries, keys = torch.ones(1, 3, 1), torch.tensor([[[500.0], [0.0], [900.0]]])
    found = certainty(queries, keys, torch.tensor([[1, 1, 0]]), 1)
    assert torch.allclose(found, torch.tensor([[np.log(2)]], dtype=torch.float32), atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "gpt2", "opt"])
def test_entropy_is_that_of_the_attention_of_the_network(family):
    """A token of a decoder sees those before it alone, and the first one nothing that it could choose from."""
    task = tiny_task("classification")
    model, total = tiny_taskmodel(family, task.spec), torch.zeros(LAYERS, HEADS)
    texts = list(task.train[:6])
    for text in texts:
        inputs = rows_of(model, Examples([text], "one"), 0).batch([0]).inputs
        with torch.no_grad(), eager_attention(model.model):
            maps = torch.stack(model.model(**inputs, output_attentions=True).attentions)[:, 0]
        count = (maps > 0).sum(dim=-1)
        total += (count.log() + (maps * maps.clamp_min(1e-30).log()).sum(dim=-1)).mean(dim=-1)
    found = torch.stack(measured(model, Examples(texts, "six"), "entropy", 0))
    assert torch.allclose(found.float(), total / len(texts), atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert", "deberta-v2", "xlnet"])
def test_a_gate_by_finite_differences(family):
    """The score of one text is how much its loss changes with the gate, which scales the head's output columns."""
    task = tiny_task("classification")
    model = tiny_taskmodel(family, task.spec)
    text = task.train[:1]
    scores = measured(model, text, "paper", 0)
    rows = rows_of(model, text, 0)
    batch, step = rows.batch([0]), 1e-2
    output = layer_parts(model.model, layers(model.model)[1])["attention_output"]
    whole = output.weight.detach().clone()
    for head in range(HEADS):
        losses = []
        for gate in (1 + step, 1 - step):
            with torch.no_grad():
                output.weight.copy_(whole)
                output.weight[:, head * SIZE : (head + 1) * SIZE] *= gate
                losses.append(task_loss(task.spec, model.model.double()(**batch.inputs).logits.double(), batch))
                model.model.float()
        slope = abs(float(losses[0] - losses[1])) / (2 * step)
        found = float(scores[0 if family == "albert" else 1][head])
        assert found == pytest.approx(slope, rel=2e-2, abs=1e-5), (family, head)


@pytest.mark.parametrize(("importance", "score"), [("paper", example_scores), ("code", token_scores)])
def test_the_score_is_the_product_of_context_and_its_gradient(importance, score):
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    examples = task.train[:6]
    rows = rows_of(model, examples, 0)
    seen = {}
    handles = [
        layer_parts(model.model, layer)["attention_output"].register_forward_pre_hook(
            lambda _module, args, i=index: seen.__setitem__(i, args[0])
        )
        for index, layer in enumerate(layers(model.model))
    ]
    expected, tokens = torch.zeros(LAYERS, HEADS, dtype=torch.float64), 0
    for row in range(len(rows)):  # one text at a time, so without padding
        batch = rows.batch([row])
        loss = task_loss(task.spec, model.model(**batch.inputs).logits, batch)
        gradients = torch.autograd.grad(loss, [seen[i] for i in range(LAYERS)])
        tokens += int(batch.mask.sum())
        for index, gradient in enumerate(gradients):
            product = (seen[index] * gradient).unflatten(-1, (HEADS, SIZE)).sum(dim=-1)
            expected[index] += score(product.detach().double(), batch.mask)[0]
    for handle in handles:
        handle.remove()
    per = torch.full((LAYERS, 1), float(tokens if importance == "code" else len(rows)))
    per[-1] = len(rows)
    found = torch.stack(measured(model, examples, importance, 0))
    assert torch.allclose(found, expected / per, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_taylor_reads_all_weights_of_a_head(family):
    task = tiny_task("classification")
    model = tiny_taskmodel(family, task.spec)
    examples = task.train[:8]
    batch = rows_of(model, examples, 0).batch(range(8))
    task_loss(task.spec, model.model(**batch.inputs).logits, batch).backward()
    parts = layer_parts(model.model, layers(model.model)[2])
    expected = torch.zeros(HEADS)
    for head in range(HEADS):
        span = slice(head * SIZE, (head + 1) * SIZE)
        for role in ("query", "key", "value"):
            for p in filter(lambda each: each is not None, (parts[role].weight, parts[role].bias)):
                expected[head] += (p[span] * p.grad[span]).square().sum()
        if family == "xlnet":
            own = layers(model.model)[2].rel_attn
            expected[head] += (own.r.weight[span] * own.r.weight.grad[span]).square().sum()
            expected[head] += (own.seg_embed[:, head] * own.seg_embed.grad[:, head]).square().sum()
            for p in (own.r_w_bias, own.r_r_bias, own.r_s_bias):
                expected[head] += (p[head] * p.grad[head]).square().sum()
        output = parts["attention_output"].weight
        expected[head] += (output[:, span] * output.grad[:, span]).square().sum()
    model.model.zero_grad()
    assert torch.allclose(measured(model, examples, "taylor", 0)[2].float(), expected, rtol=1e-3)
    assert all(parameter.grad is None for parameter in model.model.parameters())


def test_taylor_of_weights_that_no_text_runs_through():
    """No token of tagging has Longformer's global attention, whose projections then are worth nothing."""
    task = tiny_task("tagging")
    step = HeadPruning(count=3, importance="taylor")
    result = run(Recipe(steps=(step,)), tiny_taskmodel("longformer", task.spec), Inputs(calibration=task.train[:4]))
    assert sum(result.lineage[-1].facts["heads"]) == LAYERS * HEADS - 3
    assert np.all(np.array(result.lineage[-1].facts["importance"]) > 0)


def test_the_least_important_go_first_and_every_layer_keeps_some():
    scores = [torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.9, 0.4, 0.15])]
    assert kept_heads(scores, 2) == [[1, 2], [0, 1]]
    assert kept_heads(scores, 4) == [[2], [0]]
    assert kept_heads(scores, 6) == [[2], [0]]
    assert kept_heads(scores, 2, least=2) == [[1, 2], [0, 1]]
    assert kept_heads(scores, 3, least=2) == [[1, 2], [0, 1]]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cut_equals_a_mask(family):
    task = tiny_task("classification")
    model, whole = tiny_taskmodel(family, task.spec), tiny_taskmodel(family, task.spec)
    dropped = {0: (1,), 1: (1,), 2: (1,)} if family == "albert" else {0: (1, 2), 2: (0, 1, 3)}
    result = run(Recipe(steps=(HeadPruning(heads=dropped),)), model)
    masked(whole, dropped)
    inputs = whole.encoder.collate(whole.encoder.encode(task.validation[:6]))
    np.testing.assert_allclose(result.forward(inputs), whole.forward(inputs), atol=1e-6)
    expected = [3, 3, 3] if family == "albert" else [2, 4, 1]
    assert result.lineage[-1].facts["heads"] == expected
    assert head_counts(result.model) == expected
    assert "modules" in structure_of(result.model)


def test_what_a_head_of_bert_base_takes():
    width, size = 768, 64
    assert 4 * size * width + 3 * size == 196_800
    model = tiny_taskmodel("bert")
    result = run(Recipe(steps=(HeadPruning(heads={0: (1,), 1: (0, 2)}),)), model)
    per_head = 4 * SIZE * HIDDEN + 3 * SIZE
    assert model.size().parameters - result.size().parameters == 3 * per_head
    assert model.size().macs - result.size().macs > 3 * 128 * 4 * SIZE * HIDDEN


def test_rounds_keep_the_numbers_of_the_heads():
    """Heads of two rounds are named as in the model that came in."""
    task = tiny_task("classification")
    inputs = Inputs(calibration=task.train)
    model, whole = (tiny_taskmodel("bert", task.spec) for _ in range(2))
    outcome = HeadPruning(count=6, steps=3).apply(model, inputs, torch.Generator())
    dropped = {i: [h for h in range(HEADS) if h not in kept] for i, kept in enumerate(outcome.facts["kept"])}
    assert sum(map(len, dropped.values())) == 6
    masked(whole, dropped)
    assert np.allclose(
        np.stack(predict(outcome.model, task.validation[:6]).logits),
        np.stack(predict(whole, task.validation[:6]).logits),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("importance", "kind"),
    in_turn(("paper", "code", "taylor", "entropy"), ("classification", "tagging", "qa", "masked-lm"), 2),
)
def test_every_importance_on_every_kind_of_task(importance, kind, tmp_path):
    task = tiny_task(kind)
    inputs = Inputs(calibration=task.train[:12])
    result = run(Recipe(steps=(HeadPruning(importance=importance),)), tiny_taskmodel("bert", task.spec), inputs)
    assert sum(result.lineage[-1].facts["heads"]) == 12 - 4
    assert np.allclose([np.square(layer).sum() for layer in result.lineage[-1].facts["importance"]], 1, atol=1e-4)
    result.save(tmp_path / "a")
    assert load(tmp_path / "a").digest == result.digest


def test_a_network_that_was_cut_is_cut_again():
    task = tiny_task("classification")
    steps = (HeadPruning(count=4), HeadPruning(count=4), HeadPruning(count=1))
    result = run(Recipe(steps=steps), tiny_taskmodel("bert", task.spec), Inputs(calibration=task.train[:8]))
    assert sum(result.lineage[-1].facts["heads"]) == 3
    with pytest.raises(UserError, match="there are 0 to choose from"):
        run(Recipe(steps=steps[:1]), result, Inputs(calibration=task.train[:8]))


def test_heads_of_mpnet_keep_their_columns_of_the_shared_bias(tmp_path):
    """Cut twice, saved, loaded and exported: every head that is left adds the bias that it has always added."""
    task = tiny_task("classification")
    model, whole = (tiny_taskmodel("mpnet", task.spec) for _ in range(2))
    rounds = ({0: (1,), 2: (0, 2)}, {0: (0, 1)})  # of layer 0 heads 0, 2 and 3 are left, then 3
    result = run(Recipe(steps=tuple(HeadPruning(heads=dropped) for dropped in rounds)), model)
    attention = [layer.attention.attn for layer in layers(result.model)]
    assert [getattr(each, "chosen", None) for each in attention] == [(3,), None, (1, 3)]
    masked(whole, {0: (0, 1, 2), 2: (0, 2)})
    inputs = whole.encoder.collate(whole.encoder.encode(task.validation[:6]))
    np.testing.assert_allclose(result.forward(inputs), whole.forward(inputs), atol=1e-6)
    shared = score_bias(whole.model, 0, 9)
    for layer, columns in enumerate(([3], [0, 1, 2, 3], [1, 3])):
        assert torch.equal(score_bias(result.model, layer, 9), shared[columns])
    result.save(tmp_path / "a")
    assert np.array_equal(load(tmp_path / "a").forward(inputs), result.forward(inputs))
    assert export_onnx(result, tmp_path / "b", int8=False, examples=task.validation).gate.max_abs_difference < 1e-5


def test_heads_of_xlnet_take_their_biases_with_them(tmp_path):
    """Cut twice, saved, loaded and exported; every tensor of the attention has the rows of the heads that are left."""
    task = tiny_task("classification")
    model, whole = (tiny_taskmodel("xlnet", task.spec) for _ in range(2))
    rounds = ({0: (1,), 2: (0, 2)}, {0: (0, 1)})  # of layer 0 heads 0, 2 and 3 are left, then 3
    result = run(Recipe(steps=tuple(HeadPruning(heads=dropped) for dropped in rounds)), model)
    for layer, kept in enumerate(([3], [0, 1, 2, 3], [1, 3])):
        now, before = layers(result.model)[layer].rel_attn, layers(whole.model)[layer].rel_attn
        assert (now.n_head, now.d_head) == (len(kept), SIZE)
        for name in ("r_w_bias", "r_r_bias", "r_s_bias"):
            assert torch.equal(getattr(now, name), getattr(before, name)[kept])
        assert torch.equal(now.seg_embed, before.seg_embed[:, kept])
        assert torch.equal(now.r.weight, before.r.weight.unflatten(0, (HEADS, SIZE))[kept].flatten(0, 1))
    per_head = 5 * SIZE * HIDDEN + 5 * SIZE
    assert model.size().parameters - result.size().parameters == 5 * per_head
    masked(whole, {0: (0, 1, 2), 2: (0, 2)})
    inputs = whole.encoder.collate(whole.encoder.encode(task.validation[:6]))
    np.testing.assert_allclose(result.forward(inputs), whole.forward(inputs), atol=1e-6)
    result.save(tmp_path / "a")
    assert np.array_equal(load(tmp_path / "a").forward(inputs), result.forward(inputs))
    assert load(tmp_path / "a").digest == result.digest
    assert export_onnx(result, tmp_path / "b", int8=False, examples=task.validation).gate.max_abs_difference < 1e-5


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert", "gpt2"])
def test_layers_that_share_their_attention_lose_its_heads_together(family, tmp_path):
    task = tiny_task("classification")
    sharing = LayerSharing(groups=1, share="attention", recover=False)
    whole = run(Recipe(steps=(sharing,)), tiny_taskmodel(family, task.spec))
    result = run(Recipe(steps=(sharing, HeadPruning(heads={1: (0, 2)}))), tiny_taskmodel(family, task.spec))
    masked(whole, {0: (0, 2)})
    inputs = whole.encoder.collate(whole.encoder.encode(task.validation[:6]))
    np.testing.assert_allclose(result.forward(inputs), whole.forward(inputs), atol=1e-6)
    result.save(tmp_path / "a")
    assert np.array_equal(load(tmp_path / "a").forward(inputs), result.forward(inputs))


def test_mistakes_are_named():
    task = tiny_task("classification")
    bert = tiny_taskmodel("bert", task.spec)

    def said(model=bert, **fields):
        return HeadPruning(**fields).check(model, Inputs())

    assert said() == []
    assert said(heads={0: (0, 1, 2, 3), 1: (4,), 3: (0,)}) == [
        "prune.heads: heads: layer 1 has heads 0 to 3, not [4]",
        "prune.heads: heads: the model has layers 0 to 2, not 3",
        "prune.heads: heads: layer 0 would keep 0, and least is 1",
    ]
    assert said(count=10) == [
        "prune.heads: 10 heads cannot be removed: with 1 kept in each layer there are 9 to choose from; remove fewer, "
        "or lower least"
    ]
    assert "raise it" in said(fraction=0.01)[0]
    assert "modernbert is more than products" in said(tiny_taskmodel("modernbert", task.spec), importance="entropy")[0]
    assert "xlnet is more than products" in said(tiny_taskmodel("xlnet", task.spec), importance="entropy")[0]
    with pytest.raises(ValueError, match="give one of fraction, count and heads"):
        HeadPruning(count=1, fraction=0.5)


@pytest.mark.parametrize("int8", [False, True])
def test_the_export_answers_alike(int8, tmp_path):
    task = tiny_task("classification")
    step = HeadPruning(heads={0: (0, 1, 2), 2: (3,)})
    result = run(Recipe(steps=(step,)), tiny_taskmodel("bert", task.spec))
    report = export_onnx(result, tmp_path / "out", int8=int8, examples=task.validation, agreement=0.9)
    assert report.gate.agreement >= 0.9 if int8 else report.gate.max_abs_difference < 1e-5


def test_attention_is_compared_with_the_heads_that_are_left():
    """Relations are split by the heads of each layer; a teacher without some heads is refused."""
    task = tiny_task("classification")
    pruned = run(Recipe(steps=(HeadPruning(heads={0: (0,), 1: (1, 2)}),)), tiny_taskmodel("bert", task.spec))
    method = TinyBertDistillation()
    rows = rows_of(pruned, task.train[:4], 0)
    assert method.bind(pruned, rows, ModelTeacher(tiny_taskmodel("bert", task.spec))).heads == ((3, 2, 4), 4)
    with pytest.raises(UserError, match="has lost attention heads"):
        method.bind(pruned, rows, ModelTeacher(pruned))
    (problem,) = MiniLMDistillation(relation_heads=16).check(
        run(Recipe(steps=(HeadPruning(heads={2: (0,)}),)), pruned), Inputs(teacher=ModelTeacher(pruned))
    )
    assert "relation_heads 16: must divide both widths, the student's 24 and the teacher's 32" in problem
