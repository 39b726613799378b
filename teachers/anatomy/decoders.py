"""The decoders, whose tokens see themselves and those before them alone: what they call the things that they have."""

from __future__ import annotations

from dataclasses import replace

from teachers.anatomy.encoder_decoders import BART
from teachers.anatomy.family import CONFIG, Family

GPT2 = Family(
    "gpt2",
    "transformer",
    layers="h",
    config={
        "layers": "n_layer",
        "hidden_size": "n_embd",
        "heads": "n_head",
        "intermediate_size": "n_inner",
        "vocab_size": "vocab_size",
        "activation": "activation_function",
        "max_positions": "n_positions",
    },
    parts={
        "query_key_value": "attn.c_attn",
        "attention_output": "attn.c_proj",
        "attention_norm": "ln_1",
        "ffn_in": "mlp.c_fc",
        "ffn_out": "mlp.c_proj",
        "ffn_norm": "ln_2",
    },
    head_numbers=("num_heads", "split_size"),
    embeddings={"words": "wte", "positions": "wpe"},
    heads={"classifier": "score", "tagger": "classifier", "qa": "qa_outputs", "mlm_decoder": "lm_head"},
    token_types="never",
    post_norm=False,
    predicts_words=False,
    adds_mask=False,
    entry=("wte", "wpe"),
    closing=("ln_f",),
    causal=True,
    only={"scale_attn_by_inverse_layer_idx": False},
)
GPT_NEO = replace(
    GPT2,
    model_type="gpt_neo",
    config={
        **CONFIG,
        "layers": "num_layers",
        "heads": "num_heads",
        "activation": "activation_function",
    },
    parts={
        **{role: path for role, path in GPT2.parts.items() if role != "query_key_value"},
        "query": "attn.attention.q_proj",
        "key": "attn.attention.k_proj",
        "value": "attn.attention.v_proj",
        "attention_output": "attn.attention.out_proj",
    },
    head_numbers=("num_heads", "embed_dim"),
    plain_attention=False,
    scaled_scores=False,
    layer_kinds="attention_layers",
    returns_pair=True,
    only={},
    old_constants=("attn.attention.bias", "attn.attention.masked_bias"),
)
OPT = replace(
    GPT2,
    model_type="opt",
    base="model",
    layers="decoder.layers",
    config={**CONFIG, "intermediate_size": "ffn_dim", "activation": "activation_function"},
    parts=BART.parts,  # both come from fairseq
    head_numbers=("num_heads", "embed_dim"),
    embeddings={"words": "decoder.embed_tokens", "positions": "decoder.embed_positions"},
    entry=("decoder.embed_tokens", "decoder.embed_positions"),
    closing=("decoder.final_layer_norm",),
    follow={"word_embed_proj_dim": "hidden_size"},
    only={"do_layer_norm_before": True, "word_embed_proj_dim": "hidden_size"},
)
GPT_NEOX = replace(
    GPT2,
    model_type="gpt_neox",
    base="gpt_neox",
    layers="layers",
    config=CONFIG,
    parts={
        "query": "attention.query",
        "key": "attention.key",
        "value": "attention.value",
        "attention_output": "attention.dense",
        "attention_norm": "input_layernorm",
        "ffn_in": "mlp.dense_h_to_4h",
        "ffn_out": "mlp.dense_4h_to_h",
        "ffn_norm": "post_attention_layernorm",
    },
    head_numbers=("", ""),
    embeddings={"words": "embed_in"},
    rotary=True,
    plain_attention=False,
    entry=("embed_in",),
    closing=("final_layer_norm",),
    only={},
)
LLAMA = replace(
    GPT_NEOX,
    model_type="llama",
    base="model",
    parts={
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "attention_output": "self_attn.o_proj",
        "attention_norm": "input_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_out": "mlp.down_proj",
        "ffn_norm": "post_attention_layernorm",
    },
    embeddings={"words": "embed_tokens"},
    entry=("embed_tokens",),
    closing=("norm",),
    own_head_width="head_dim",
    key_heads="num_key_value_heads",
    follow={"num_key_value_heads": "num_attention_heads"},
    odd_heads=("AutoModelForQuestionAnswering",),
)
DECODERS = (GPT2, GPT_NEO, OPT, GPT_NEOX, LLAMA)
