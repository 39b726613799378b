"""The table of model families: what each calls the things that all of them have.

Another package adds a family by an entry point of the group ``compress.families``, named by its model type, that leads
to a ``Family``; its module registers config and networks with transformers' Auto classes.

Data only; ``teachers.anatomy.encoder`` reads it. Names of a layer's parts are the same for every family (``query``,
``attention_output``, ``ffn_in`` …), so code above these two files never spells an attribute of a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eval.plugins import Registry

_CONFIG = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "activation": "hidden_act",
    "max_positions": "max_position_embeddings",
}
_PARTS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
_EMBEDDINGS = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
_TAGGING = {"classifier": "classifier", "qa": "qa_outputs"}
_BERT_HEADS = {
    "dense": "{base}.pooler.dense",
    "mlm_dense": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm",
    "mlm_decoder": "cls.predictions.decoder",
    **_TAGGING,
}

PART_AXES: Mapping[str, str] = {
    "query": "q .",
    "key": "k .",
    "value": "v .",
    "query_key_value": "q|k|v .",
    "position_query": "q .",
    "position_key": "k .",
    "attention_output": ". v",
    "ffn_in": "ffn .",
    "gated_in": "ffn|ffn .",
    "ffn_out": ". ffn",
}
"""Which axis of a part's weight runs over what, first axis (and bias) first; see ``teachers.anatomy.axes``."""


@dataclass(frozen=True)
class Family:
    """One family of encoders.

    Attributes:
        model_type: The name in its ``config.json``.
        base: Attribute of a model with a head that holds the encoder.
        layers: Path from the encoder to its list of layers; None for a network without transformer layers.
        config: Our name of a dimension -> the family's own; a dimension that it lacks is absent.
        parts: Role in a layer -> path of the module from the layer; ``*`` stands for each of several.
        tensors: For parts that are bare tensors: path from the layer -> what its axes run over.
        head_numbers: Attributes in which an attention module keeps the number of its heads, and of their channels.
        embeddings: Role -> path from the encoder.
        projection: Path from the encoder to what takes factorised embeddings to the hidden size.
        heads: Role -> path from the model with a head; ``{base}`` stands for the encoder.
        token_types: ``config`` (as many as the config says), ``always`` or ``never``.
        typed_layers: Whether layers read the token types too, not the embeddings alone.
        pad_type_id: Token type that the family gives to padding.
        positions_after_padding: Positions are counted from the id of the padding token plus one.
        rotary: Queries and keys are rotated by position, so their channels come in pairs of fixed frequency.
        post_norm: The layer is BERT's: attention, add, norm, two-layer FFN, add, norm. Layers of two such families
            can be exchanged.
        projects_always: With factorised embeddings, the projection to the hidden size is there even if the two sizes
            are equal.
        predicts_words: Whether transformers has a masked-language head for it.
        plain_attention: Whether attention scores are the scaled products of queries and keys, without terms for
            relative positions or rotation.
        head_bias: Path from the encoder to a table ``[buckets, heads]`` of what all layers add to these products by
            distance; empty where there is none. Heads at the same place of different layers share a column.
        adds_mask: Whether it also takes a mask ``[B, 1, 1, L]`` that is added to attention scores as it is.
        entry: Paths from the encoder to what only the first layer's input passes through, those that exist.
        closing: Paths from the encoder to what only the last layer's output passes through, those that exist.
    """

    model_type: str
    base: str
    layers: str | None = "encoder.layer"
    config: Mapping[str, str] = field(default_factory=lambda: _CONFIG)
    parts: Mapping[str, str] = field(default_factory=lambda: _PARTS)
    tensors: Mapping[str, str] = field(default_factory=dict)
    head_numbers: tuple[str, str] = ("num_attention_heads", "all_head_size")
    embeddings: Mapping[str, str] = field(default_factory=lambda: _EMBEDDINGS)
    projection: str = ""
    heads: Mapping[str, str] = field(default_factory=lambda: _BERT_HEADS)
    token_types: str = "config"
    typed_layers: bool = False
    pad_type_id: int = 0
    positions_after_padding: bool = False
    rotary: bool = False
    post_norm: bool = True
    projects_always: bool = False
    predicts_words: bool = True
    plain_attention: bool = True
    head_bias: str = ""
    adds_mask: bool = True
    entry: tuple[str, ...] = ("embeddings",)
    closing: tuple[str, ...] = ("pooler",)


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
_MPNET = Family(
    "mpnet",
    "mpnet",
    parts={
        **_PARTS,
        "query": "attention.attn.q",
        "key": "attention.attn.k",
        "value": "attention.attn.v",
        "attention_output": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
    embeddings={name: path for name, path in _EMBEDDINGS.items() if name != "token_types"},
    heads=_ROBERTA.heads,
    token_types="never",
    positions_after_padding=True,
    post_norm=False,
    plain_attention=False,
    head_bias="encoder.relative_attention_bias",
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
    embeddings={name: path for name, path in _EMBEDDINGS.items() if name != "token_types"},
    heads={
        "dense": "pre_classifier",
        "mlm_dense": "vocab_transform",
        "mlm_norm": "vocab_layer_norm",
        "mlm_decoder": "vocab_projector",
        **_TAGGING,
    },
    token_types="never",
)
_ALBERT = Family(
    "albert",
    "albert",
    layers="encoder.albert_layer_groups",
    config={**_CONFIG, "embedding_size": "embedding_size"},
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
        **_TAGGING,
    },
    projection="encoder.embedding_hidden_mapping_in",
    projects_always=True,
    entry=("embeddings", "encoder.embedding_hidden_mapping_in"),
)
_ELECTRA = Family(
    "electra",
    "electra",
    config={**_CONFIG, "embedding_size": "embedding_size"},
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
        "attention_norm": "rel_attn.layer_norm",
        "ffn_in": "ff.layer_1",
        "ffn_out": "ff.layer_2",
        "ffn_norm": "ff.layer_norm",
    },
    tensors={
        "rel_attn.q": ". q:2",
        "rel_attn.k": ". k:2",
        "rel_attn.v": ". v:2",
        "rel_attn.o": ". v:2",
        "rel_attn.r": "position k:2",
        "rel_attn.r_w_bias": "q:2",
        "rel_attn.r_r_bias": "q:2",
        "rel_attn.r_s_bias": "q:2",
        "rel_attn.seg_embed": ". k:2",
    },
    embeddings={"words": "word_embedding"},
    heads={
        "dense": "sequence_summary.summary",
        "classifier": "logits_proj",
        "tagger": "classifier",
        "qa": "qa_outputs",
    },
    token_types="always",
    typed_layers=True,
    pad_type_id=3,
    post_norm=False,
    predicts_words=False,
    plain_attention=False,
    adds_mask=False,
    entry=(),
)
_MOBILEBERT = Family(
    "mobilebert",
    "mobilebert",
    config={**_CONFIG, "embedding_size": "embedding_size"},
    parts={
        **_PARTS,
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
    config={**_CONFIG, "embedding_size": "embedding_size"},
    parts={
        **_PARTS,
        "query": "attention.self.query_proj",
        "key": "attention.self.key_proj",
        "value": "attention.self.value_proj",
        "position_query": "attention.self.pos_query_proj",
        "position_key": "attention.self.pos_key_proj",
    },
    heads={**_BERT_HEADS, "dense": "pooler.dense"},
    post_norm=False,
    plain_attention=False,
    adds_mask=False,
    projection="embeddings.embed_proj",
    entry=("embeddings", "encoder.conv"),
)
_MODERNBERT = Family(
    "modernbert",
    "model",
    layers="layers",
    config={**_CONFIG, "activation": "hidden_activation"},
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
)

_BUILT_IN: dict[str, Family] = {
    family.model_type: family
    for family in (
        Family("bert", "bert"),
        _ROBERTA,
        replace(_ROBERTA, model_type="xlm-roberta"),
        replace(_ROBERTA, model_type="camembert"),
        _MPNET,
        Family("ernie", "ernie", embeddings={**_EMBEDDINGS, "task_types": "embeddings.task_type_embeddings"}),
        _DISTILBERT,
        _ALBERT,
        _ELECTRA,
        _XLNET,
        _MOBILEBERT,
        _DEBERTA,
        _MODERNBERT,
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
