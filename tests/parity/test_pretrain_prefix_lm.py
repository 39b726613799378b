"""UniLM: which tokens see which by the paper's words, nothing that leaks from later tokens, and a run from text."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from eval.encoding import IGNORED
from eval.errors import UserError
from teachers.anatomy.attention_heads import eager_attention
from teachers.anatomy.encoder import base_encoder, family_of, mixes_neighbours
from teachers.data.encoded_dataset import Batch
from teachers.pretraining.network import check_directions
from teachers.pretraining.objectives.directed_head import DirectedHead, visible
from teachers.pretraining.objectives.prefix_lm import DIRECTIONS, PrefixLM, steps_of, target_begins, types_of
from teachers.pretraining.pretrain import RECORD, pretrain
from teachers.pretraining.settings import PretextTask, Pretraining
from teachers.pretraining.text.sequence import Drawn
from tests.parity.drawn_text import MASK
from tests.tiny import FAMILIES, tiny_spec, tiny_taskmodel

TAKING = ("bert", "roberta", "mpnet", "ernie", "distilbert", "albert", "electra")
IDS = [2, 20, 21, 22, 3, 30, 31, 32, 33, 3]
"""A source of three tokens between special ones, and a target of four."""
BEGINS = 5


def pair_of(types=False):
    ids = np.array(IDS)
    words = np.where(ids < 10, -1, np.cumsum(ids >= 10) - 1)
    return Drawn(ids, words, np.where(np.arange(10) < BEGINS, 0, 1), words.copy())


def answers(network, ids, steps, mask=None):
    """Return the last hidden states under the mask, ``[L, d]``."""
    real = torch.ones(1, len(ids), dtype=torch.long) if mask is None else mask
    batch = Batch(
        {"input_ids": torch.tensor([ids]), "attention_mask": real},
        {"prefix_lm_steps": torch.as_tensor(steps)[None]},
        torch.arange(1),
    )
    with torch.no_grad():
        return base_encoder(network)(**DirectedHead(network, "prefix_lm").prepare(batch).inputs).last_hidden_state[0]


def test_the_papers_masks():
    """Figure 1, and equation 2: of two tokens of source and two of target."""
    expected = {
        "bidirectional": [[1, 1, 1, 1]] * 4,
        "sequence_to_sequence": [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
        "left_to_right": [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
        "right_to_left": [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]],
    }
    found = {
        name: visible(torch.from_numpy(steps_of(name, 4, 2))[None], torch.ones(1, 4))[0].int().tolist()
        for name in DIRECTIONS
    }
    assert found == expected


def test_padding_is_seen_by_nothing_and_no_row_is_empty():
    steps = torch.tensor([[0, 1, 2, IGNORED, IGNORED]])
    seen = visible(steps, torch.tensor([[1, 1, 1, 0, 0]]))[0].int()
    assert seen[:, 3:].sum() == 0
    assert seen.sum(dim=1).tolist() == [1, 2, 3, 3, 3]


@pytest.mark.parametrize("family", TAKING)
def test_nothing_leaks(family):
    """Other tokens in the target change what stands at them and after them alone, through all layers."""
    network = tiny_taskmodel(family, tiny_spec("masked-lm")).model.eval()
    steps = steps_of("sequence_to_sequence", 10, BEGINS)
    before = answers(network, IDS, steps)
    for place in range(BEGINS, 10):
        after = answers(network, [*IDS[:place], *[40] * (10 - place)], steps)
        same = (before - after).abs().amax(dim=1) < 1e-5
        assert same.tolist() == [True] * place + [False] * (10 - place)
    source = answers(network, [*IDS[:3], 41, *IDS[4:]], steps)
    assert ((before - source).abs().amax(dim=1) > 1e-5).all()  # the source sees itself in both directions
    with eager_attention(network):
        assert torch.allclose(answers(network, IDS, steps), before, atol=1e-5)


@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
def test_one_direction_sees_nothing_of_the_other(direction):
    network = tiny_taskmodel("bert", tiny_spec("masked-lm")).model.eval()
    steps = steps_of(direction, 10, BEGINS)
    same = (answers(network, IDS, steps) - answers(network, [*IDS[:4], 40, *IDS[5:]], steps)).abs().amax(dim=1) < 1e-5
    assert same.tolist() == [(place < 4) == (direction == "left_to_right") and place != 4 for place in range(10)]


def test_both_directions_are_the_plain_network():
    network = tiny_taskmodel("bert", tiny_spec("masked-lm")).model.eval()
    mask = torch.tensor([[1] * 8 + [0] * 2])
    found = answers(network, IDS, steps_of("bidirectional", 10, BEGINS), mask)
    with torch.no_grad():
        plain = network.bert(torch.tensor([IDS]), attention_mask=mask).last_hidden_state[0]
    assert torch.allclose(found[:8], plain[:8], atol=1e-6)


def test_what_is_hidden_and_how_often_in_which_direction():
    text = SimpleNamespace(frame=SimpleNamespace(mask=MASK, random=lambda count, chance: np.full(count, 9)))
    ask = PrefixLM(types=True).ask(text)
    kinds, together, hidden = Counter(), [], []
    for seed in range(600):
        words = np.where(np.isin(np.arange(43), (0, 21, 42)), -1, np.arange(43))
        drawn = Drawn(np.arange(100, 143), words, np.where(np.arange(43) < 22, 0, 1), words.copy())
        ask(drawn, np.random.default_rng(seed))
        asked, steps = drawn.targets["prefix_lm"] != IGNORED, drawn.targets["prefix_lm_steps"]
        assert (drawn.targets["prefix_lm"][asked] == np.arange(100, 143)[asked]).all()
        assert not asked[[0, 21, 42]].any()
        (direction,) = [name for name in DIRECTIONS if (steps == steps_of(name, 43, 22)).all()]
        assert (drawn.types == types_of(direction, np.where(np.arange(43) < 22, 0, 1), 22)).all()
        kinds[direction] += 1
        hidden.append(asked.sum())
        together += np.diff(np.flatnonzero(np.diff([0, *asked.astype(int), 0])))[::2].tolist()
    assert [kinds[name] / 600 for name in DIRECTIONS] == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6], abs=0.06)
    assert set(hidden) == {6}  # 15% of 40
    sizes = Counter(together)
    assert set(sizes) == {1, 2, 3}
    assert sizes[1] / sum(sizes.values()) == pytest.approx(0.8, abs=0.06)


def test_types_of_each_direction():
    types = np.array([0, 0, 1, 1])
    found = {name: types_of(name, types, 2).tolist() for name in DIRECTIONS}
    assert list(found.values()) == [[0, 0, 1, 1], [4, 4, 5, 5], [2] * 4, [3] * 4]


def test_where_the_target_begins():
    chance = np.random.default_rng(0)
    assert target_begins(pair_of(), chance) == BEGINS
    words = np.array([-1, 0, 1, 2, 3, -1])
    one = Drawn(np.arange(6), words, np.zeros(6, dtype=int), words)
    assert {target_begins(one, chance) for _ in range(60)} == {2, 3, 4}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPRESS_HOME", str(tmp_path / "home"))
    places = ("Paris", "Rome", "Oslo", "Lima")
    text = "\n\n".join("\n".join(f"The film in {one} was good. {two} is warm." for two in places) for one in places)
    for name in ("train", "validation"):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def block(data, objectives, family="bert", others=(), **options):
    network = {"family": family, "layers": 2, "hidden_size": 16, "heads": 2, "max_positions": 64, "options": options}
    training = {"max_steps": 2, "batch_size": 8}
    stage = {"length": 32, "training": training, "tasks": {"text": {"objectives": objectives}, **dict(others)}}
    return Pretraining(text=str(data), tokenizer={"size": 120}, network=network, stages=[stage])


def test_from_text(data):
    asked = block(data, {"prefix_lm": {"types": True}}, type_vocab_size=6)
    task = asked.stages[0].tasks["text"]
    assert (task.format, task.unasked_pair) == ("segment_pair", "adjacent")
    folder = pretrain(asked, seed=13)
    network = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    assert network.config.type_vocab_size == 6
    assert "prefix_lm.perplexity" in (folder / RECORD).read_text(encoding="utf-8")


def test_next_sentences_are_asked_for_where_all_tokens_see_both(data, monkeypatch):
    alone = {name: float(name == "bidirectional") for name in DIRECTIONS}
    pairs = {"pair": "next_sentence", "objectives": {"prefix_lm": {"types": True, **alone}}}
    others = {"prefix_lm": {"types": True, "bidirectional": 0}}
    asked, seen = block(data, others, others={"pairs": pairs}, type_vocab_size=6), {}
    prepare = DirectedHead.prepare

    def noted(head, batch):
        seen.setdefault("next_sentence" in batch.targets, []).append(batch)
        return prepare(head, batch)

    monkeypatch.setattr(DirectedHead, "prepare", noted)
    folder = pretrain(asked, seed=13)
    for batch in seen[True]:
        assert not batch.targets["prefix_lm_steps"][batch.inputs["attention_mask"] > 0].any()
        assert set(batch.inputs["token_type_ids"].unique().tolist()) == {0, 1}
        assert set(batch.targets["next_sentence"].tolist()) <= {0, 1}
    for batch in seen[False]:
        assert (batch.targets["prefix_lm_steps"].max(dim=1).values > 0).all()
        assert min(batch.inputs["token_type_ids"][batch.inputs["attention_mask"] > 0].tolist()) >= 2
    told = (folder / RECORD).read_text(encoding="utf-8")
    assert "next_sentence.accuracy" in told
    assert told.count("prefix_lm.perplexity") >= 2


def test_refusals(data):
    for family in FAMILIES:
        config = tiny_taskmodel(family).model.config
        assert (family_of(config).adds_mask and not mixes_neighbours(config)) == (family in TAKING)
    asked = block(data, {"prefix_lm": {}})
    for family in ("deberta-v2", "mobilebert"):
        with pytest.raises(UserError, match=f"prefix_lm: {family} takes no mask"):
            check_directions(asked, tiny_taskmodel(family).model)
    with pytest.raises(UserError, match="has 2 token types, and 6 tell the direction"):
        check_directions(block(data, {"prefix_lm": {"types": True}}), tiny_taskmodel("bert").model)
    with pytest.raises(ValueError, match="not every token sees both segments; leave pair out"):
        PretextTask(pair="next_sentence", objectives="prefix_lm")
    with pytest.raises(ValueError, match="prefix_lm hides tokens itself"):
        PretextTask(objectives={"prefix_lm": {}, "mlm": {}})
    with pytest.raises(ValueError, match="must be above 0"):
        PrefixLM(**dict.fromkeys(DIRECTIONS, 0))
