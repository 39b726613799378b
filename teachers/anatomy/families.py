"""The table of model families: what each calls the things that all of them have.

Another package adds a family by an entry point of the group ``compress.families``, named by its model type, that leads
to a ``Family``; its module registers config and networks with transformers' Auto classes.

Data only; ``teachers.anatomy.encoder`` reads it. ``teachers.anatomy.family`` says what a ``Family`` holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from eval.plugins import Registry
from teachers.anatomy.decoders import DECODERS
from teachers.anatomy.encoder_decoders import BART, T5
from teachers.anatomy.family import BERT_HEADS, CONFIG, EMBEDDINGS, PARTS, TAGGING, Family

__all__ = ["FAMILIES", "Family", "register_family"]

_ROBERTA = Family(
    "roberta",
    "roberta",
    heads={
        "dense": "classifier.dense",
        "classifier": "classifier.out_proj",
        "tagger": "classifier",
        "qa": "qa_outputs",
        "mlm_dense": "lm_head.dense",
        "mlm_norm": "lm_head.layer_norm",
        "mlm_decoder": "lm_head.decoder",
    },
    positions_after_padding=True,
)
_LONGFORMER = Family(
    "longformer",
    "longformer",
    parts={
        **PARTS,
        "global_query": "attention.self.query_global",
        "global_key": "attention.self.key_global",
        "global_value": "attention.self.value_global",
    },
    head_numbers=("num_heads", "embed_dim"),
    heads=_ROBERTA.heads,
    positions_after_padding=True,
    global_parts={"global_query": "query", "global_key": "key", "global_value": "value"},
    post_norm=False,
    plain_attention=False,
    adds_mask=False,
)
_MPNET = Family(
    "mpnet",
    "mpnet",
    parts={
        **PARTS,
        "query": "attention.attn.q",
        "key": "attention.attn.k",
        "value": "attention.attn.v",
        "attention_output": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
    embeddings={name: path for name, path in EMBEDDINGS.items() if name != "token_types"},
    heads=_ROBERTA.heads,
    token_types="never",
    positions_after_padding=True,
    post_norm=False,
    plain_attention=False,
    head_bias="encoder.relative_attention_bias",
    returns_pair=True,
    only={"pad_token_id": 1},
)
_DISTILBERT = Family(
    "distilbert",
    "distilbert",
    layers="transformer.layer",
    config={
        "layers": "n_layers",
        "hidden_size": "dim",
        "heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "vocab_size": "vocab_size",
        "activation": "activation",
        "max_positions": "max_position_embeddings",
    },
    parts={
        "query": "attention.q_lin",
        "key": "attention.k_lin",
        "value": "attention.v_lin",
        "attention_output": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "ffn_in": "ffn.lin1",
        "ffn_out": "ffn.lin2",
        "ffn_norm": "output_layer_norm",
    },
    head_numbers=("n_heads", "all_head_size"),
    embeddings={name: path for name, path in EMBEDDINGS.items() if name != "token_types"},
    heads={
        "dense": "pre_classifier",
        "mlm_dense": "vocab_transform",
        "mlm_norm": "vocab_layer_norm",
        "mlm_decoder": "vocab_projector",
        **TAGGING,
    },
    token_types="never",
)
_ALBERT = Family(
    "albert",
    "albert",
    layers="encoder.albert_layer_groups",
    config={**CONFIG, "embedding_size": "embedding_size"},
    parts={
        "query": "attention.query",
        "key": "attention.key",
        "value": "attention.value",
        "attention_output": "attention.dense",
        "attention_norm": "attention.LayerNorm",
        "ffn_in": "ffn",
        "ffn_out": "ffn_output",
        "ffn_norm": "full_layer_layer_norm",
    },
    heads={
        "dense": "{base}.pooler",
        "mlm_dense": "predictions.dense",
        "mlm_norm": "predictions.LayerNorm",
        "mlm_decoder": "predictions.decoder",
        **TAGGING,
    },
    projection="encoder.embedding_hidden_mapping_in",
    projects_always=True,
    entry=("embeddings", "encoder.embedding_hidden_mapping_in"),
    only={"inner_group_num": 1},
)
_ELECTRA = Family(
    "electra",
    "electra",
    config={**CONFIG, "embedding_size": "embedding_size"},
    heads={
        "dense": "classifier.dense",
        "classifier": "classifier.out_proj",
        "tagger": "classifier",
        "qa": "qa_outputs",
        "mlm_dense": "generator_predictions.dense",
        "mlm_norm": "generator_predictions.LayerNorm",
        "mlm_decoder": "generator_lm_head",
    },
    projection="embeddings_project",
    entry=("embeddings", "embeddings_project"),
)
_XLNET = Family(
    "xlnet",
    "transformer",
    layers="layer",
    config={
        "layers": "n_layer",
        "hidden_size": "d_model",
        "heads": "n_head",
        "intermediate_size": "d_inner",
        "vocab_size": "vocab_size",
        "activation": "ff_activation",
    },
    parts={
        "query": "rel_attn.q",
        "key": "rel_attn.k",
        "value": "rel_attn.v",
        "attention_output": "rel_attn.o",
        "attention_norm": "rel_attn.layer_norm",
        "ffn_in": "ff.layer_1",
        "ffn_out": "ff.layer_2",
        "ffn_norm": "ff.layer_norm",
    },
    tensors={
        "rel_attn.r.weight": "k position",
        "rel_attn.r_w_bias": "q:2",
        "rel_attn.r_r_bias": "q:2",
        "rel_attn.r_s_bias": "q:2",
        "rel_attn.seg_embed": ". k:2",
    },
    head_numbers=("n_head", ""),
    embeddings={"words": "word_embedding"},
    heads={
        "dense": "sequence_summary.summary",
        "classifier": "logits_proj",
        "tagger": "classifier",
        "qa": "qa_outputs",
        "mlm_decoder": "lm_loss",
    },
    token_types="always",
    typed_layers=True,
    pad_type_id=3,
    post_norm=False,
    predicts_words=False,
    plain_attention=False,
    adds_mask=False,
    entry=(),
    time_first=True,
    two_streams=True,
    returns_pair=True,
    only={"same_length": False},
)
TRANSFORMER_XL = replace(_XLNET, causal=True)
"""XLNet with ``attn_type: uni``: the relative positions and the memory of Transformer-XL; no later token is seen."""
_MOBILEBERT = Family(
    "mobilebert",
    "mobilebert",
    config={**CONFIG, "embedding_size": "embedding_size"},
    parts={
        **PARTS,
        "ffn_in.*": "ffn.*.intermediate.dense",
        "ffn_out.*": "ffn.*.output.dense",
        "ffn_norm.*": "ffn.*.output.LayerNorm",
    },
    post_norm=False,
    projection="embeddings.embedding_transformation",
    projects_always=True,
)
_DEBERTA = Family(
    "deberta-v2",
    "deberta",
    config={**CONFIG, "embedding_size": "embedding_size"},
    parts={
        **PARTS,
        "query": "attention.self.query_proj",
        "key": "attention.self.key_proj",
        "value": "attention.self.value_proj",
        "position_query": "attention.self.pos_query_proj",
        "position_key": "attention.self.pos_key_proj",
    },
    heads={**BERT_HEADS, "dense": "pooler.dense"},
    post_norm=False,
    plain_attention=False,
    adds_mask=False,
    projection="embeddings.embed_proj",
    entry=("embeddings", "encoder.conv"),
    returns_pair=True,
)
_MODERNBERT = Family(
    "modernbert",
    "model",
    layers="layers",
    config={**CONFIG, "activation": "hidden_activation"},
    parts={
        "query_key_value": "attn.Wqkv",
        "attention_output": "attn.Wo",
        "attention_norm": "attn_norm",
        "gated_in": "mlp.Wi",
        "ffn_out": "mlp.Wo",
        "ffn_norm": "mlp_norm",
    },
    embeddings={"words": "embeddings.tok_embeddings", "norm": "embeddings.norm"},
    heads={"dense": "head.dense", "norm": "head.norm", "classifier": "classifier", "mlm_decoder": "decoder"},
    token_types="never",
    rotary=True,
    post_norm=False,
    plain_attention=False,
    adds_mask=False,
    closing=("final_norm",),
    layer_kinds="layer_types",
)
_BUILT_IN: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("bert", "bert"),
        _ROBERTA,
        replace(_ROBERTA, model_type="xlm-roberta"),
        replace(_ROBERTA, model_type="camembert"),
        _LONGFORMER,
        _MPNET,
        Family("ernie", "ernie", embeddings={**EMBEDDINGS, "task_types": "embeddings.task_type_embeddings"}),
        _DISTILBERT,
        _ALBERT,
        _ELECTRA,
        _XLNET,
        _MOBILEBERT,
        _DEBERTA,
        _MODERNBERT,
        *DECODERS,
        BART,
        replace(BART, model_type="marian"),
        T5,
    )
}


def _problem(name: str, thing: Any) -> str:
    if not isinstance(thing, Family):
        return "is no teachers.anatomy.families.Family"
    return "" if thing.model_type == name else f"is the family of model type {thing.model_type!r}; name it so"


FAMILIES: Registry[Family] = Registry("family", "compress.families", _BUILT_IN, _problem)
"""The families that work, by model type; custom architectures add themselves when their module is imported."""


def register_family(config: Any) -> None:
    """Import the package that gives a family, so that transformers' Auto classes know it; else there is nothing to do.

    Args:
        config: What a ``config.json`` holds.

    Raises:
        UserError: If the package cannot be loaded.
    """
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if isinstance(model_type, str) and model_type in FAMILIES:
        FAMILIES.get(model_type)
