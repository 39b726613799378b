"""GPT-2 with linear layers: the numbers and the files are those of the standard class."""

import copy
import json

import pytest
import torch
import transformers
from torch import nn
from transformers.pytorch_utils import Conv1D

from compress.artifact.structure import structure_of
from compress.distill.components.attention import attention_mse, relation_kl, relation_scores
from compress.distill.minilm import minilm_relations
from teachers.anatomy.attention_heads import head_counts, keep_heads
from teachers.anatomy.encoder import layer_names, layers, reshaped, shape_of
from teachers.anatomy.forms.linear_form import in_linear_form
from teachers.anatomy.parts import matrices
from teachers.anatomy.pooling import last_real
from teachers.signals.hooks import SignalSpec, observe
from teachers.taskmodel import load_taskmodel, save_taskmodel
from teachers.training.scoring import rows_of
from tests.tiny import LAYERS, tiny_config, tiny_task, tiny_taskmodel, tiny_tokenizer


def test_a_saved_folder_is_a_standard_one(tmp_path):
    model = tiny_taskmodel("gpt2")
    save_taskmodel(model, tmp_path)
    standard = transformers.GPT2ForSequenceClassification.from_pretrained(tmp_path).eval()
    assert isinstance(standard.transformer.h[0].mlp.c_fc, Conv1D)
    assert standard.config.use_cache
    assert standard.config.architectures == ["GPT2ForSequenceClassification"]
    ids = torch.arange(4, 16).reshape(2, 6)
    with torch.no_grad():
        assert torch.equal(standard(ids).logits, model.model(ids).logits)
    again = load_taskmodel(tmp_path)
    assert again.digest == model.digest
    assert type(again.model) is type(model.model)


def test_every_matrix_of_a_layer_is_a_linear_layer_and_the_network_is_standard_for_it():
    model = tiny_taskmodel("gpt2").model
    assert len(matrices(model, "layers")) == 4 * LAYERS
    assert structure_of(model) == {}
    assert type(copy.deepcopy(model)) is type(model)


def test_other_networks_stay_as_they_are():
    bert = tiny_taskmodel("bert").model
    kind = type(bert)
    assert type(in_linear_form(bert)) is kind


def test_a_cut_head_leaves_what_the_others_give():
    model = tiny_taskmodel("gpt2").model
    ids = torch.arange(4, 16).reshape(2, 6)
    muted = copy.deepcopy(model)
    out = layers(muted)[1].attn.c_proj.weight
    with torch.no_grad():
        out[:, 8:16] = 0  # the second of four heads of 8 channels
    keep_heads(model, 1, [0, 2, 3])
    assert head_counts(model) == [4, 3, 4]
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, muted(ids).logits, atol=1e-6)
    assert isinstance(model.get_submodule(layer_names(model)[1]).attn.c_attn, nn.Linear)


def test_a_decoders_base_learns_to_pad_and_to_begin_texts():
    tokenizer = tiny_taskmodel("gpt2").tokenizer
    end = tokenizer.eos_token_id
    assert tokenizer.pad_token_id == end
    assert tokenizer("").input_ids == [end]
    assert tokenizer("a", "b").input_ids == [end, *tokenizer("a").input_ids[1:], end, *tokenizer("b").input_ids[1:]]


def test_a_tokenizer_that_pads_already_stays(tmp_path):
    tokenizer = copy.deepcopy(tiny_tokenizer("gpt2"))
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.backend_tokenizer.post_processor = transformers.GPT2Tokenizer().backend_tokenizer.post_processor
    config = tiny_config("gpt2", vocab_size=len(tokenizer), num_labels=2)
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = load_taskmodel(tmp_path, tiny_task().spec)
    assert model.model.config.pad_token_id == len(tokenizer) - 1
    assert model.tokenizer("good").input_ids == tokenizer("good").input_ids


@pytest.fixture(scope="module")
def read():
    task = tiny_task()
    model = tiny_taskmodel("gpt2", task.spec)
    batch = rows_of(model, task.train, 1).batch([0, 3, 5])
    with torch.no_grad():
        seen = observe(model.model, batch.inputs, SignalSpec(queries=(0, 1), keys=(0, 1), values=(0, 1)))
    return seen, batch.mask


def visible_pairs(mask):
    """Yield text, query and key of everything that is seen, in slow loops."""
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        yield from ((row, query, key) for query in range(length) for key in range(query + 1))


def test_attention_scores_of_what_comes_later_do_not_count(read):
    seen, mask = read
    one, two = (relation_scores(seen.queries[i], seen.keys[i], 4) for i in (0, 1))
    squares = [(one[r, :, q, k] - two[r, :, q, k]).square().mean() for r, q, k in visible_pairs(mask)]
    assert attention_mse(one, two, mask, causal=True).item() == pytest.approx(torch.stack(squares).mean().item())
    assert attention_mse(one, two, mask).item() != pytest.approx(torch.stack(squares).mean().item())


def test_relations_to_what_comes_later_do_not_count(read):
    seen, mask = read
    one, two = (relation_scores(seen.queries[i], seen.keys[i], 4) for i in (0, 1))
    texts = []
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        rows = []
        for query in range(length):
            student, teacher = (x[row, :, query, : query + 1].log_softmax(dim=-1) for x in (one, two))
            rows.append((teacher.exp() * (teacher - student)).sum(dim=-1).mean())
        texts.append(torch.stack(rows).mean())
    expected = torch.stack(texts).mean().item()
    assert relation_kl(one, two, mask, causal=True).item() == pytest.approx(expected, rel=1e-5)
    sides = [{name: getattr(seen, name)[i] for name in ("queries", "keys", "values")} for i in (0, 1)]
    found = minilm_relations(*sides, mask, 4, "v1", causal=True)
    assert found["attention"].item() == pytest.approx(expected, rel=1e-5)


def test_the_last_real_token_stands_for_a_text():
    states = torch.arange(12.0).reshape(2, 3, 2)
    assert last_real(states, torch.tensor([[1, 1, 0], [1, 1, 1]])).tolist() == [[2.0, 3.0], [10.0, 11.0]]


def test_a_standard_base_is_read_as_it_is_published(tmp_path):
    """No padding in its tokenizer, no n_inner in its config, the head of the next word."""
    ready = tiny_tokenizer("gpt2")
    vocabulary = ready.get_vocab()
    merges = json.loads(ready.backend_tokenizer.to_str())["model"]["merges"]
    transformers.GPT2Tokenizer(vocab=vocabulary, merges=[tuple(one) for one in merges]).save_pretrained(tmp_path)
    config = transformers.GPT2Config(
        vocab_size=len(vocabulary), n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    standard = transformers.GPT2LMHeadModel(config).eval()
    standard.save_pretrained(tmp_path)
    model = load_taskmodel(tmp_path)
    assert (model.task.kind, model.encoder.settings.max_length, model.encoder.settings.end_id) == ("causal-lm", 64, 0)
    assert shape_of(model.model.config).intermediate_size == 128
    ids = torch.arange(4, 16).reshape(2, 6)
    with torch.no_grad():
        assert torch.allclose(standard(ids).logits, model.model(ids).logits, atol=1e-6)
    classifier = load_taskmodel(tmp_path, tiny_task().spec)
    assert classifier.tokenizer("").input_ids == [0]
    thinner = reshaped(model.model.config, hidden_size=16)
    assert (thinner.n_embd, thinner.n_inner) == (16, 128)
    (tmp_path / "again").mkdir()
    save_taskmodel(model, tmp_path / "again")
    assert load_taskmodel(tmp_path / "again").digest == model.digest
