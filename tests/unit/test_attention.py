"""Scores and relations between tokens, taken from queries, keys and values of every family that has them."""

import math

import pytest
import torch

from compress.distill.components.attention import attention_mse, match_heads, relation_kl, relation_scores, seen_keys
from eval.errors import UserError
from teachers.anatomy.attention_heads import head_counts, keep_heads
from teachers.anatomy.encoder import has_plain_attention, is_causal
from teachers.anatomy.head_bias import buckets_from_table, score_bias
from teachers.signals.hooks import SignalSpec, observe
from teachers.training.scoring import rows_of
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family not in ("xlnet", "deberta-v2", "modernbert")]
)
def test_scores_give_the_attention_that_the_network_itself_computes(family, pruned):
    task = tiny_task("classification")
    model = tiny_taskmodel(family, task.spec)
    if pruned:
        keep_heads(model.model, 2, (0, 3))
    assert has_plain_attention(model.model) == (family != "mpnet")
    batch = rows_of(model, task.train, 1).batch([0, 3, 5])
    with torch.no_grad():
        seen = observe(model.model, batch.inputs, SignalSpec(queries=(0, 2), keys=(0, 2)))
        model.model.set_attn_implementation("eager")
        expected = model.model(**batch.inputs, output_attentions=True).attentions
    for layer in (0, 2):
        bias = score_bias(model.model, layer, batch.mask.shape[1])
        assert (bias is not None) == (family == "mpnet")
        scores = relation_scores(seen.queries[layer], seen.keys[layer], head_counts(model.model)[layer], bias)
        found = scores.masked_fill(~seen_keys(batch.mask, is_causal(model.model)), -1e9).softmax(dim=-1)
        assert torch.allclose(found, expected[layer], atol=1e-6)


def test_a_graph_reads_mpnets_buckets_from_a_table_that_says_what_transformers_computes():
    encoder = tiny_taskmodel("mpnet", tiny_task().spec).model.mpnet.encoder
    for length in (1, 9, 129, 300):
        states = torch.zeros(1, length, 32)
        expected = encoder.compute_position_bias(states)
        with buckets_from_table(encoder), buckets_from_table(encoder):  # an early exit's network is lent inside another
            assert torch.equal(encoder.compute_position_bias(states), expected)
        assert "compute_position_bias" not in vars(encoder)


def test_fused_projections_are_told_apart():
    task = tiny_task("classification")
    model = tiny_taskmodel("modernbert", task.spec)
    batch = rows_of(model, task.train, 1).batch([0, 1])
    with torch.no_grad():
        seen = observe(model.model, batch.inputs, SignalSpec((), (1,), (1, 2), (0,)))
    assert (set(seen.queries), set(seen.keys), set(seen.values)) == ({1}, {1, 2}, {0})
    assert seen.queries[1].shape == seen.values[0].shape == (*batch.mask.shape, 32)
    assert not torch.allclose(seen.queries[1], seen.keys[1])


def test_a_family_without_such_modules_is_refused_by_name(monkeypatch):
    task = tiny_task("classification")
    model = tiny_taskmodel("bert", task.spec)
    batch = rows_of(model, task.train, 1).batch([0])
    monkeypatch.setattr("teachers.signals.hooks.layer_parts", lambda network, layer: {})
    with pytest.raises(UserError, match="the queries of bert cannot be read"):
        observe(model.model, batch.inputs, SignalSpec(queries=(0,)))


def test_nothing_stays_hooked():
    task = tiny_task("classification")
    model = tiny_taskmodel("albert", task.spec)
    batch = rows_of(model, task.train, 1).batch([0])
    seen = observe(model.model, batch.inputs, SignalSpec(queries=(0, 1, 2)))
    assert len({tensor.sum().item() for tensor in seen.queries.values()}) == 3
    assert not any(module._forward_hooks for module in model.model.modules())


def test_relation_scores_by_hand():
    values = torch.tensor([[[1.0], [2.0]]])
    rows = relation_scores(values, values, 1).softmax(dim=-1)[0, 0]
    expected = torch.tensor([[0.268941, 0.731059], [0.119203, 0.880797]])
    assert torch.allclose(rows, expected, atol=1e-6)


def test_score_mse_by_hand():
    """The sheet's numbers: 0.5 over all four entries as in the code, 2/3 over the three that are not masked."""
    student, teacher = torch.tensor([[[[1.0, 2.0], [0.0, -7.0]]]]), torch.tensor([[[[0.0, 2.0], [1.0, 5.0]]]])
    mask = torch.tensor([[1, 0]])
    assert attention_mse(student, teacher, mask, "code").item() == pytest.approx((1 + 1) / 4)
    assert attention_mse(student, teacher, mask).item() == pytest.approx(1.0)
    full = torch.tensor([[1, 1]])
    assert attention_mse(student, teacher, full).item() == pytest.approx((1 + 0 + 1 + 144) / 4)


def test_relation_kl_is_zero_for_equal_scores_and_ignores_padding():
    generator = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(2, 3, 4, 4, generator=generator) for _ in range(2))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    assert relation_kl(student, student, mask).item() == pytest.approx(0.0, abs=1e-7)
    total = 0.0
    for row, count in enumerate((4, 3)):
        sentence = 0.0
        for head in range(3):
            for query in range(count):
                p = teacher[row, head, query, :count].softmax(dim=-1).tolist()
                q = student[row, head, query, :count].softmax(dim=-1).tolist()
                sentence += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        total += sentence / (3 * count)
    assert relation_kl(student, teacher, mask).item() == pytest.approx(total / 2, rel=1e-5)
    wide = [torch.nn.functional.pad(x, (0, 2, 0, 2), value=5.0) for x in (student, teacher)]
    padded = torch.nn.functional.pad(mask, (0, 2))
    assert relation_kl(*wide, padded).item() == pytest.approx(total / 2, rel=1e-5)
    assert attention_mse(*wide, padded).item() == pytest.approx(attention_mse(student, teacher, mask).item(), rel=1e-5)


def test_unequal_heads_are_averaged_to_a_common_number():
    student, teacher = torch.arange(4.0).reshape(1, 4, 1, 1), torch.arange(6.0).reshape(1, 6, 1, 1)
    own, other = match_heads(student, teacher)
    assert own.flatten().tolist() == [0.5, 2.5]
    assert other.flatten().tolist() == [1.0, 4.0]
    assert match_heads(student, student)[0] is student
