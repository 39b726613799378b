"""Decoders beside GPT-2: the numbers and the files of the standard classes, and what each of them refuses."""

import copy

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing

from compress.distill.minilm import MiniLMDistillation
from compress.engine.steps import problems
from compress.prune.heads import HeadPruning
from compress.student.student import Student
from compress.technique import Inputs
from eval.errors import UserError
from teachers.anatomy.attention_heads import head_counts, keep_heads, key_widths, rotated_channels
from teachers.anatomy.encoder import family_of, layer_parts, layers, reshaped
from teachers.anatomy.layer_changes import replace_layers
from teachers.fitting_tokenizer import make_ready
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import build_taskmodel, load_taskmodel, save_taskmodel
from tests.tiny import DECODERS, LAYERS, tiny_config, tiny_spec, tiny_taskmodel, tiny_tokenizer

SPEC = tiny_spec("causal-lm")
SHARED_KEYS = {"num_key_value_heads": 2}


def logits(network, mask=None):
    ids = torch.arange(4, 24).reshape(2, 10)
    with torch.no_grad():
        return network(ids, attention_mask=torch.ones_like(ids) if mask is None else mask).logits


@pytest.mark.parametrize(
    ("family", "changes"),
    [*((family, {}) for family in DECODERS), ("llama", SHARED_KEYS), ("gpt_neox", {"use_parallel_residual": False})],
)
def test_a_saved_folder_is_a_standard_one(family, changes, tmp_path):
    model = tiny_taskmodel(family, SPEC, **changes)
    save_taskmodel(model, tmp_path)
    standard = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert standard.config.use_cache
    assert standard.config.architectures == [type(standard).__name__] == [type(model.model).__name__]
    torch.testing.assert_close(logits(standard), logits(model.model), atol=1e-6, rtol=0)
    mask = torch.tensor([[1] * 10, [1] * 6 + [0] * 4])
    torch.testing.assert_close(logits(standard, mask), logits(model.model, mask), atol=1e-6, rtol=0)
    again = load_taskmodel(tmp_path)
    assert again.digest == model.digest
    standard.save_pretrained(tmp_path)
    assert torch.equal(logits(load_taskmodel(tmp_path).model), logits(model.model))


@pytest.mark.parametrize("family", DECODERS)
def test_a_cut_head_leaves_what_the_others_give(family):
    model = tiny_taskmodel(family, SPEC).model
    muted = copy.deepcopy(model)
    with torch.no_grad():
        layer_parts(muted, layers(muted)[1])["attention_output"].weight[:, 8:16] = 0  # the second of four heads
    keep_heads(model, 1, [0, 2, 3])
    assert head_counts(model) == [4, 3, 4]
    torch.testing.assert_close(logits(model), logits(muted), atol=1e-5, rtol=0)


def test_the_vector_of_padding_which_begins_texts_is_trained():
    network = tiny_taskmodel("llama", SPEC).model
    network(torch.zeros(1, 3, dtype=torch.long)).logits[0, 0, 5].backward()
    assert network.config.pad_token_id == 0
    assert network.model.embed_tokens.weight.grad[0].any()


def test_layers_of_gpt_neo_keep_their_kind(tmp_path):
    model = tiny_taskmodel("gpt_neo", SPEC)
    replace_layers(model.model, [1, 2])
    save_taskmodel(model, tmp_path)
    standard = transformers.GPTNeoForCausalLM.from_pretrained(tmp_path).eval()
    assert standard.config.attention_layers == ["local", "global"]
    torch.testing.assert_close(logits(standard), logits(model.model), atol=1e-6, rtol=0)
    assert reshaped(tiny_config("gpt_neo"), layers=5).attention_layers == ["global", "local"] * 2 + ["global"]


def test_masks_that_older_versions_saved_are_passed_over(tmp_path):
    model = tiny_taskmodel("gpt_neo", SPEC)
    save_taskmodel(model, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    for name in ("bias", "masked_bias"):
        state[f"transformer.h.0.attn.attention.{name}"] = torch.ones(1)
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    assert load_taskmodel(tmp_path).digest == model.digest


def test_keys_that_heads_share():
    model = tiny_taskmodel("llama", SPEC, **SHARED_KEYS)
    assert key_widths(model.model) == [16] * LAYERS
    said = "this llama has 2 heads of keys and values for 4 of queries"
    assert said in problems((HeadPruning(heads={0: (1,)}),), model, Inputs())[0]
    with pytest.raises(UserError, match="heads of keys and values for 4 of queries; leave out heads, or use init"):
        Student(heads=2, init="width").build(model)
    assert Student(intermediate_size=40, init="width").build(model).model.config.intermediate_size == 40
    assert reshaped(model.model.config, heads=2).num_key_value_heads == 2
    inputs = Inputs(train=[], teacher=ModelTeacher(model))
    assert "the student's 16" in MiniLMDistillation(relation_heads=32).check(model, inputs)[0]


@pytest.mark.parametrize("family", ["gpt_neox", "llama"])
def test_narrower_heads_keep_their_frequencies(family):
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
    source = tiny_taskmodel(family, SPEC, num_attention_heads=2, **(rope if family == "gpt_neox" else {}))
    built = Student(hidden_size=16, init="width").build(source)
    inner, other = (getattr(one.model, family_of(one.model).base) for one in (source, built))
    assert rotated_channels(source.model.config) == (8 if family == "gpt_neox" else 16)
    assert rotated_channels(built.model.config) == (4 if family == "gpt_neox" else 8)
    assert torch.equal(other.rotary_emb.inv_freq, inner.rotary_emb.inv_freq[::2])
    keys = [layer_parts(one.model, layers(one.model)[0])["key"].weight for one in (source, built)]
    half = rotated_channels(built.model.config) // 2
    for kept in range(half):
        assert any((keys[0][head * 16 + 2 * kept][:, None] == keys[1][kept]).any() for head in range(2))


def test_a_text_begins_with_the_token_that_begins_texts():
    tokenizer = copy.deepcopy(tiny_tokenizer("gpt2"))
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.pad_token = None
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    config = tiny_config("llama", vocab_size=len(tokenizer))
    make_ready(tokenizer, config)
    start, end = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert tokenizer("").input_ids == [start]
    first, second = (tokenizer(text, add_special_tokens=False).input_ids for text in ("a", "b"))
    assert tokenizer("a", "b").input_ids == [start, *first, end, *second]
    assert config.pad_token_id == end


@pytest.mark.parametrize(
    ("family", "changes", "kind", "said"),
    [
        ("opt", {"do_layer_norm_before": False}, "causal-lm", "opt with do_layer_norm_before = False is not supported"),
        ("opt", {"word_embed_proj_dim": 16}, "causal-lm", "word_embed_proj_dim = 16 is not .* = 32 is"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "causal-lm",
            "llama with rope_type = dynamic is not supported",
        ),
        ("llama", {}, "qa", "llama has no head for qa; those that have: bert, roberta"),
        ("opt", {}, "tagging", "opt has no head for tagging; those that have: bert, roberta"),
    ],
)
def test_what_is_refused_by_name(family, changes, kind, said):
    with pytest.raises(UserError, match=said):
        build_taskmodel(tiny_config(family, **changes), tiny_tokenizer(family), tiny_spec(kind))
