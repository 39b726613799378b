"""XLNet's permutation language modelling: orders by construction, two streams against standard code and slow loops."""

import math

import numpy as np
import pytest
import torch
import transformers

from eval.encoding import IGNORED
from teachers.data.encoded_dataset import Batch
from teachers.pretraining.objectives.plm import PermutationLM
from teachers.pretraining.objectives.two_streams import QueryHead, permutation_mask, target_mapping
from teachers.pretraining.pretraining_task import PretextLoss, mean_loss, reads_last
from teachers.pretraining.text.sequence import Drawn
from teachers.signals.hooks import observe
from teachers.taskmodel import TaskModel, save_taskmodel
from tests.tiny import tiny_spec, tiny_tokenizer

IDS = torch.tensor([[11, 12, 13, 14, 15, 16], [21, 22, 23, 24, 25, 5]])
MASK = torch.tensor([[1] * 6, [1] * 5 + [0]])
TYPES = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 0]])
ORDER = torch.tensor([[2, 4, 0, 1, 3, 0], [3, 1, 2, 0, 0, IGNORED]])
"""Of the first text the fourth token comes first, then the first, the fifth and the second; 0 is seen by all."""
TARGETS = torch.tensor([[11, 12, IGNORED, 14, IGNORED, IGNORED], [21, IGNORED, 23, IGNORED, IGNORED, IGNORED]])


def drawn(count=512, special=2):
    words = np.arange(count)
    words[count - special :] = -1
    return Drawn(np.arange(count) + 7, words, np.zeros(count, dtype=int), words)


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """Return an XLNet in linear form, and the same as the standard class loads it."""
    from teachers.anatomy.forms.linear_form import in_linear_form

    torch.manual_seed(0)
    config = transformers.XLNetConfig(
        vocab_size=106, d_model=16, n_layer=2, n_head=2, d_inner=32, mem_len=None, initializer_range=0.3
    )
    own = in_linear_form(transformers.XLNetLMHeadModel(config)).eval()
    with torch.no_grad():
        own.lm_loss.bias.normal_()
    folder = tmp_path_factory.mktemp("xlnet")
    save_taskmodel(TaskModel(own, tiny_tokenizer("xlnet"), tiny_spec()), folder)
    return own, transformers.XLNetLMHeadModel.from_pretrained(folder).eval()


def batch_of(**memory):
    inputs = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES}
    return Batch(inputs, {"plm": TARGETS, "plm_order": ORDER, **memory}, torch.arange(2))


def answers(network, batch):
    """Return the logits and labels of all targets, as a training computes them."""
    loss = PretextLoss({"plm": QueryHead(network)}, {"plm": 1.0}, reads_last(network, 2))
    prepared = loss.prepare(batch)
    with torch.no_grad():
        signals = observe(network, prepared.inputs, loss.reads)
        (found,) = loss.heads["plm"](*signals.hidden_states.values(), prepared).values()
        return found, loss(signals, prepared)["plm"]


def test_who_sees_whom_in_the_order_3_1_4_2():
    order = torch.tensor([[2, 4, 1, 3]])
    seen = 1 - permutation_mask(order)[0]
    content = torch.maximum(seen, torch.eye(4))
    assert (seen[0].nonzero()[:, 0] + 1).tolist() == [3], "the query of the first token"
    assert (content[0].nonzero()[:, 0] + 1).tolist() == [1, 3], "its content"
    assert seen[2].sum() == 0, "the first of the order sees nothing"
    for i, j in np.ndindex(4, 4):
        assert seen[i, j] == (order[0, j] < order[0, i])


def test_two_streams_are_those_of_the_standard_class_on_a_hand_made_order(networks):
    own, standard = networks
    found, loss = answers(own, batch_of())
    places = [[0, 1, 3], [0, 2]]
    expected = []
    for row, targets in enumerate(places):
        length = int(MASK[row].sum())
        hidden = torch.ones(1, length, length)
        for i in range(length):
            for j in range(length):
                if ORDER[row, j] == 0 or ORDER[row, j] < ORDER[row, i]:
                    hidden[0, i, j] = 0
        mapping = torch.zeros(1, len(targets), length)
        mapping[0, range(len(targets)), targets] = 1
        with torch.no_grad():
            expected.append(
                standard(
                    input_ids=IDS[row : row + 1, :length],
                    token_type_ids=TYPES[row : row + 1, :length],
                    perm_mask=hidden,
                    target_mapping=mapping,
                ).logits[0]
            )
    torch.testing.assert_close(found.logits, torch.cat(expected), atol=1e-5, rtol=1e-5)
    assert found.labels.tolist() == [11, 12, 14, 21, 23]
    likelihoods = torch.cat(expected).log_softmax(-1)[range(5), found.labels]
    assert loss.item() == pytest.approx(-likelihoods.mean().item(), rel=1e-5)


def stream(layer, states, query, place, seen):
    """Return one token of a layer's output by the formula: ``seen`` are places, distances are relative."""
    attention, width = layer.rel_attn, states.shape[1]
    heads, size = attention.n_head, attention.d_head
    frequencies = 1 / 10000 ** (torch.arange(0, width, 2.0) / width)
    vectors = []
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        q, scores, values = attention.q.weight[rows] @ query, [], []
        for other in seen:
            k = attention.k.weight[rows] @ states[other]
            angle = (place - other) * frequencies
            r = attention.r.weight[rows] @ torch.cat([angle.sin(), angle.cos()])
            segment = attention.seg_embed[int(TYPES[0, place] != TYPES[0, other]), head]
            score = (q + attention.r_w_bias[head]) @ k + (q + attention.r_r_bias[head]) @ r
            scores.append((score + (q + attention.r_s_bias[head]) @ segment) / math.sqrt(size))
            values.append(attention.v.weight[rows] @ states[other])
        vectors.append(torch.stack(scores).softmax(0) @ torch.stack(values))
    out = attention.layer_norm(attention.o.weight @ torch.cat(vectors) + query)
    return layer.ff(out[None])[0]


def test_two_streams_are_the_papers_formula(networks):
    own, _ = networks
    order = ORDER[0].tolist()
    with torch.no_grad():
        content = own.transformer.word_embedding.weight[IDS[0]]
        query = dict.fromkeys((0, 1, 3), own.transformer.mask_emb[0, 0])
        for layer in own.transformer.layer:
            before = {i: [j for j in range(6) if order[j] == 0 or order[j] < order[i]] for i in range(6)}
            query = {i: stream(layer, content, one, i, before[i]) for i, one in query.items()}
            content = torch.stack([stream(layer, content, content[i], i, sorted({*before[i], i})) for i in range(6)])
        expected = torch.stack(list(query.values())) @ own.lm_loss.weight.T + own.lm_loss.bias
    found, _ = answers(own, batch_of())
    torch.testing.assert_close(found.logits[:3], expected, atol=1e-4, rtol=1e-4)


def test_a_target_knows_its_place_and_neither_itself_nor_what_comes_later_in_the_order(networks):
    own, _ = networks
    expected, _ = answers(own, batch_of())
    batch = batch_of()
    for place, changed in ((3, [0, 1, 2]), (0, [0, 1]), (1, [0])):  # the fourth token comes first
        other = IDS.clone()
        other[0, place] = 40
        found, _ = answers(own, Batch({**batch.inputs, "input_ids": other}, batch.targets, batch.rows))
        moved = [(found.logits[i] - expected.logits[i]).abs().max() > 1e-4 for i in range(3)]
        numbers = {0: [1], 1: [], 3: [0, 1]}[place]  # those later in the order than it
        assert [i for i, one in enumerate(moved) if one] == numbers, changed


def test_memory_is_what_the_standard_class_returns_for_the_tokens_before(networks):
    own, standard = networks
    before, order = torch.tensor([[31, 32, 33], [IGNORED] * 3]), torch.tensor([[1, 0, 2], [IGNORED] * 3])
    found, _ = answers(own, batch_of(memory=before, memory_order=order))
    with torch.no_grad():
        hidden = permutation_mask(order[:1])
        types = torch.zeros(1, 3, dtype=torch.int64)
        mems = standard.transformer(before[:1], token_type_ids=types, perm_mask=hidden, use_mems=True).mems
        expected = standard(
            input_ids=IDS[:1],
            token_type_ids=TYPES[:1],
            mems=mems,
            perm_mask=permutation_mask(ORDER[:1]),
            target_mapping=target_mapping(TARGETS[:1] != IGNORED),
        ).logits[0]
        zeros = [torch.zeros_like(one) for one in mems]
        first = standard(
            input_ids=IDS[1:, :5],
            token_type_ids=TYPES[1:, :5],
            mems=zeros,
            perm_mask=permutation_mask(ORDER[1:, :5]),
            target_mapping=target_mapping(TARGETS[1:, :5] != IGNORED),
        ).logits[0]
    torch.testing.assert_close(found.logits, torch.cat([expected, first]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("units", ["span", "token"])
@pytest.mark.parametrize("context", ["seen", "ordered"])
def test_the_last_sixth_of_an_order_is_asked_for(units, context):
    one = drawn()
    PermutationLM(units=units, context=context).ask(None)(one, np.random.default_rng(0))
    asked, order = one.targets["plm"] != IGNORED, one.targets["plm_order"]
    assert 80 <= asked.sum() <= 85 if units == "span" else asked.sum() == math.ceil(510 / 6)
    assert (one.targets["plm"][asked] == one.ids[asked]).all()
    assert not asked[-2:].any(), "no special token"
    assert one.ids.tolist() == drawn().ids.tolist(), "nothing is hidden"
    if context == "ordered":
        assert sorted(order) == list(range(1, 513))
        assert order[~asked].max() < order[asked].min(), "targets are the last of the order"
    else:
        assert (order[~asked][:-2] == 0).all()
        assert len({*order[asked], *order[-2:]}) == asked.sum() + 2, "targets and special tokens have an order"
        assert (order[asked] > 0).all()
    if units == "span":
        lengths = np.diff(np.flatnonzero(np.diff(np.pad(asked, 1).astype(int))))[::2]
        assert lengths.min() >= 1
        assert lengths.max() <= 5


def test_orders_are_uniform():
    chance = np.random.default_rng(1)
    first = np.zeros(512)
    for _ in range(60):
        one = drawn()
        PermutationLM(context="ordered", units="token").ask(None)(one, chance)
        first[one.targets["plm_order"] <= 256] += 1
    halves = first[:256].sum(), first[256:].sum()
    assert abs(halves[0] - halves[1]) < 0.05 * sum(halves)


def test_no_target_gives_no_loss(networks):
    own, _ = networks
    batch = batch_of()
    none = {"plm": torch.full_like(TARGETS, IGNORED), "plm_order": torch.zeros_like(ORDER)}
    found, loss = answers(own, Batch(batch.inputs, none, batch.rows))
    assert (len(found.labels), loss.item()) == (0, 0.0)
    assert mean_loss(found, torch.zeros(1)).item() == 0.0
