"""What the toolkit asks of a model family: the names of what all of them have, and how it computes.

Names of a layer's parts are the same for every family (``query``, ``attention_output``, ``ffn_in`` …), so code above
never spells an attribute of a model. The table of families is ``teachers.anatomy.families``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CONFIG = {
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "activation": "hidden_act",
    "max_positions": "max_position_embeddings",
}
PARTS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "ffn_in": "intermediate.dense",
    "ffn_out": "output.dense",
    "ffn_norm": "output.LayerNorm",
}
EMBEDDINGS = {
    "words": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
}
TAGGING = {"classifier": "classifier", "qa": "qa_outputs"}
BERT_HEADS = {
    "dense": "{base}.pooler.dense",
    "mlm_dense": "cls.predictions.transform.dense",
    "mlm_norm": "cls.predictions.transform.LayerNorm",
    "mlm_decoder": "cls.predictions.decoder",
    **TAGGING,
}

PART_AXES: Mapping[str, str] = {
    "query": "q .",
    "key": "k .",
    "value": "v .",
    "query_key_value": "q|k|v .",
    "position_query": "q .",
    "position_key": "k .",
    "global_query": "q .",
    "global_key": "k .",
    "global_value": "v .",
    "attention_output": ". v",
    "cross_query": "q .",
    "cross_key": "k .",
    "cross_value": "v .",
    "cross_output": ". v",
    "ffn_in": "ffn .",
    "ffn_gate": "ffn .",
    "ffn_up": "ffn .",
    "gated_in": "ffn|ffn .",
    "ffn_out": ". ffn",
}
"""Which axis of a part's weight runs over what, first axis (and bias) first; see ``teachers.anatomy.axes``."""


@dataclass(frozen=True)
class Family:
    """One family of encoders, or of decoders.

    Attributes:
        model_type: The name in its ``config.json``.
        base: Attribute of a model with a head that holds the encoder.
        layers: Path from the encoder to its list of layers; None for a network without transformer layers.
        config: Our name of a dimension -> the family's own; a dimension that it lacks is absent.
        parts: Role in a layer -> path of the module from the layer; ``*`` stands for each of several.
        tensors: For parts that are bare tensors: path from the layer -> what its axes run over.
        head_numbers: Attributes in which an attention module keeps the number of its heads, and of their channels;
            empty for one that it does not keep.
        embeddings: Role -> path from the encoder.
        projection: Path from the encoder to what takes factorised embeddings to the hidden size.
        heads: Role -> path from the model with a head; ``{base}`` stands for the encoder.
        token_types: ``config`` (as many as the config says), ``always`` or ``never``.
        typed_layers: Whether layers read the token types too, not the embeddings alone.
        pad_type_id: Token type that the family gives to padding.
        positions_after_padding: Positions are counted from the id of the padding token plus one.
        rotary: Queries and keys are rotated by position, so their channels come in pairs of fixed frequency.
        global_parts: Role of a projection for tokens with global attention -> role of the one for all tokens, whose
            weights it begins with where another family becomes this one; empty where every token sees all others.
        post_norm: The layer is BERT's: attention, add, norm, two-layer FFN, add, norm. Layers of two such families
            can be exchanged.
        projects_always: With factorised embeddings, the projection to the hidden size is there even if the two sizes
            are equal.
        predicts_words: Whether transformers has a masked-language head for it.
        plain_attention: Whether attention scores are the scaled products of queries and keys, without terms for
            relative positions or rotation.
        scaled_scores: Whether the products of queries and keys are divided by the root of the channels of a head.
        head_bias: Path from the encoder to a table ``[buckets, heads]`` of what all layers add to these products by
            distance; empty where there is none. Heads at the same place of different layers share a column.
        adds_mask: Whether it also takes a mask ``[B, 1, 1, L]`` that is added to attention scores as it is.
        entry: Paths from the encoder to what only the first layer's input passes through, those that exist.
        closing: Paths from the encoder to what only the last layer's output passes through, those that exist.
        causal: Whether a token sees itself and those before it alone, so that the last one knows the whole text.
        time_first: Whether layers compute on ``[L, B, d]``.
        two_streams: Whether it can predict tokens in any order: a second stream knows the place of a token and not the
            token, and hidden states of earlier segments are taken as memory.
        decoder: Path from the base to the list of a decoder's layers, which read the states of the encoder; empty for
            a family without one. ``layers`` are then those of the encoder.
        decoder_parts: Role in a layer of the decoder -> path of the module from the layer; ``cross_…`` are those that
            look at the encoder.
        own_head_width: Dimension of the config that says how wide a head is; empty where heads share the hidden size.
        key_heads: Dimension of the config that says how many heads keys and values have; empty where they have as many
            as queries.
        layer_kinds: Entry of the config that lists the kind of each layer, by what its tokens see; empty where all are
            alike.
        returns_pair: Whether a layer returns its states as the first of a pair.
        only: Options of the config -> the one value that works here, or the name of a dimension that it must equal.
        odd_heads: Auto classes of transformers whose networks hold this family by another name than ``base``, so that
            they are not taken.
        old_constants: Ends of the names of constants that older versions of transformers saved beside the weights.
        reads_weights: Whether standard code looks at the weight of a linear layer beside calling it.
        follow: Dimensions of a config that are those of others: the decoder's, where the two stacks are alike.
        more_inputs: Names of further arrays that it takes for each token.
    """

    model_type: str
    base: str
    layers: str | None = "encoder.layer"
    config: Mapping[str, str] = field(default_factory=lambda: CONFIG)
    parts: Mapping[str, str] = field(default_factory=lambda: PARTS)
    tensors: Mapping[str, str] = field(default_factory=dict)
    head_numbers: tuple[str, str] = ("num_attention_heads", "all_head_size")
    embeddings: Mapping[str, str] = field(default_factory=lambda: EMBEDDINGS)
    projection: str = ""
    heads: Mapping[str, str] = field(default_factory=lambda: BERT_HEADS)
    token_types: str = "config"
    typed_layers: bool = False
    pad_type_id: int = 0
    positions_after_padding: bool = False
    rotary: bool = False
    global_parts: Mapping[str, str] = field(default_factory=dict)
    post_norm: bool = True
    projects_always: bool = False
    predicts_words: bool = True
    plain_attention: bool = True
    scaled_scores: bool = True
    head_bias: str = ""
    adds_mask: bool = True
    entry: tuple[str, ...] = ("embeddings",)
    closing: tuple[str, ...] = ("pooler",)
    causal: bool = False
    time_first: bool = False
    two_streams: bool = False
    decoder: str = ""
    decoder_parts: Mapping[str, str] = field(default_factory=dict)
    own_head_width: str = ""
    key_heads: str = ""
    layer_kinds: str = ""
    returns_pair: bool = False
    only: Mapping[str, Any] = field(default_factory=dict)
    odd_heads: tuple[str, ...] = ()
    old_constants: tuple[str, ...] = ()
    reads_weights: bool = False
    follow: Mapping[str, str] = field(default_factory=dict)
    more_inputs: tuple[str, ...] = ()
