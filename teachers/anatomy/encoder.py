"""Anatomy of an encoder: its layers, its parts and its shape, the same for every family.

This file and its table, ``teachers.anatomy.families``, are the only ones that know attribute names of model families.
Layers count from 0.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from eval.errors import UserError
from teachers.anatomy.families import FAMILIES, TRANSFORMER_XL, Family

UNLIMITED = 1 << 20
"""What ``max_tokens`` returns for a family without a longest input."""
BY_LENGTH = ("dynamic", "longrope")
"""Rotations by position whose frequencies depend on the longest text of a batch."""


@dataclass(frozen=True)
class Shape:
    """The dimensions of an encoder.

    Attributes:
        layers: Transformer layers.
        hidden_size: Channels of the residual stream.
        heads: Attention heads of a layer.
        intermediate_size: Neurons of the feed-forward network.
        embedding_size: Channels of the word embeddings; None for families where it is the hidden size.
        vocab_size: Rows of the word embeddings.
        activation: Activation of the feed-forward network.
        max_positions: Most tokens of an input; None for a family without a longest input.
        decoder_layers: Layers of a decoder that reads the encoder's states; None for a family without one.
    """

    layers: int
    hidden_size: int
    heads: int
    intermediate_size: int
    embedding_size: int | None
    vocab_size: int
    activation: str
    max_positions: int | None
    decoder_layers: int | None = None


def family_of(model: Any) -> Family:
    """Return the family of a model or of its config.

    Raises:
        UserError: If the toolkit does not know this kind of model.
    """
    config = getattr(model, "config", model)
    name = str(getattr(config, "model_type", type(config).__name__))
    if name not in FAMILIES:
        raise UserError(f"model type {name!r} is not supported; those that work: {', '.join(sorted(FAMILIES))}")
    family = FAMILIES.get(name)
    for option, allowed in (("add_cross_attention", False), *family.only.items()):
        wanted = getattr(config, allowed) if isinstance(allowed, str) else allowed
        if (given := getattr(config, option, wanted)) != wanted:
            raise UserError(f"{name} with {option} = {given} is not supported; only {option} = {wanted} is")
    rotation = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rotation in BY_LENGTH:
        raise UserError(f"{name} with rope_type = {rotation} is not supported: it rotates by the length of a text")
    return TRANSFORMER_XL if name == "xlnet" and config.attn_type == "uni" else family


def inner_family(model: Any) -> Family:
    """Return the family of the encoder inside of a network, or of the network itself if that is of no known one."""
    config = getattr(base_encoder(model), "config", None)
    return family_of(config if getattr(config, "model_type", None) in FAMILIES else model)


def model_inputs(config: Any) -> tuple[str, ...]:
    """Return the names of the arrays that a model takes, in its own order."""
    family = family_of(config)
    typed = family.token_types == "always" or (
        family.token_types == "config" and getattr(config, "type_vocab_size", 0) > 1
    )
    types = ("token_type_ids",) if typed else ()
    return ("input_ids", "attention_mask", *types, *family.more_inputs)


def first_position(config: Any) -> int:
    """Return the row of the position table that the first token uses: 2 for RoBERTa and MPNet, 0 elsewhere."""
    return int(config.pad_token_id) + 1 if family_of(config).positions_after_padding else 0


def max_tokens(config: Any) -> int:
    """Return the most tokens that fit into one input, special tokens counted; ``UNLIMITED`` where nothing bounds it."""
    name = family_of(config).config.get("max_positions")
    return UNLIMITED if name is None else int(getattr(config, name)) - first_position(config)


def reaches(module: nn.Module) -> list[int]:
    """Return the numbers of tokens beyond which shapes inside of a module follow another rule, for exporters.

    Of attention that does not see all of a text it is how many tokens to each side it sees; a network whose shapes
    follow the length in steps says it as ``shape_reach``.
    """
    parts: list[Any] = [part for part in module.modules() if hasattr(part, "one_sided_attn_window_size")]
    halves = [half for part in parts if (half := part.one_sided_attn_window_size) + 3 <= max_tokens(part.config)]
    return [*halves, *(part.shape_reach for part in module.modules() if hasattr(part, "shape_reach"))]


def classifier_place(config: Any) -> int:
    """Return the place of the token that stands for the whole text: the first, or the last (-1) for XLNet."""
    return -1 if getattr(config, "summary_type", "first") == "last" else 0


def shape_of(config: Any) -> Shape:
    """Return the dimensions that a config describes."""
    names = family_of(config).config
    values = {name: getattr(config, own, None) for name, own in names.items()}
    values["max_positions"] = max_tokens(config) if "max_positions" in names else None
    if "embedding_size" in names and values["embedding_size"] is None:
        values["embedding_size"] = values["hidden_size"]
    if "intermediate_size" in names and values["intermediate_size"] is None:
        values["intermediate_size"] = 4 * int(values["hidden_size"] or 0)  # as GPT-2 does
    return Shape(**{field.name: values.get(field.name) for field in fields(Shape)})  # type: ignore[arg-type]


def attention_width(config: Any) -> int:
    """Return the channels of all heads of a layer together; MobileBERT's bottleneck, the hidden size elsewhere."""
    family = family_of(config)
    if family.model_type == "mobilebert" and config.use_bottleneck:
        return int(config.intra_bottleneck_size)
    if family.own_head_width:
        return int(getattr(config, family.own_head_width)) * shape_of(config).heads
    return shape_of(config).hidden_size


def key_heads(config: Any) -> int:
    """Return how many heads the keys and values of a layer have; fewer than the queries where these share them."""
    name = family_of(config).key_heads
    return int(getattr(config, name)) if name else shape_of(config).heads


def reshaped(config: Any, **changes: int | str) -> Any:
    """Return a copy of a config with other dimensions, named as in ``Shape``; what depends on them follows.

    An embedding size equal to the hidden size stays equal to it unless it is given. The kinds of layers of
    ModernBERT and GPT-Neo go on in the same rhythm, further layers of Longformer have the window of the last.
    """
    old, names = shape_of(config), family_of(config).config
    new = copy.deepcopy(config)
    if "intermediate_size" in names:
        setattr(new, names["intermediate_size"], old.intermediate_size)
    if "hidden_size" in changes and old.embedding_size == old.hidden_size:
        changes = {"embedding_size": changes["hidden_size"], **changes}
    for name, value in changes.items():
        if name == "max_positions":
            value = int(value) + first_position(config)
        setattr(new, names[name], value)
    family = family_of(config)
    for name, other in family.follow.items():
        if getattr(new, other) != getattr(config, other):
            setattr(new, name, getattr(new, other))
    if family.own_head_width and not {"hidden_size", "heads"}.isdisjoint(changes):
        shape = shape_of(new)
        setattr(new, family.own_head_width, shape.hidden_size // shape.heads)
    _follow(new)
    return new


def _follow(config: Any) -> None:
    shape, kind = shape_of(config), config.model_type
    if kind == "xlnet":
        config.d_head = shape.hidden_size // shape.heads
    elif kind == "deberta-v2":
        config.pooler_hidden_size = shape.hidden_size
    elif kind == "albert":
        config.num_hidden_groups = min(config.num_hidden_groups, shape.layers)
    elif kind == "mobilebert":
        config.true_hidden_size = attention_width(config)
    elif kind == "longformer" and isinstance(config.attention_window, list):
        given = config.attention_window
        config.attention_window = [given[min(i, len(given) - 1)] for i in range(shape.layers)]
    if name := family_of(config).layer_kinds:
        kinds = list(getattr(config, name))
        rhythm = next((i for i in range(1, len(kinds)) if kinds[i] == kinds[0]), len(kinds))
        every = (*kinds, *(kinds[i % rhythm] for i in range(len(kinds), shape.layers)))
        set_layer_kinds(config, every[: shape.layers])


def set_layer_kinds(config: Any, kinds: Sequence[str]) -> None:
    """Write into a config, in place, of which kind each of its layers is, in every form in which it says that."""
    setattr(config, family_of(config).layer_kinds, list(kinds))
    if hasattr(config, "attention_types"):  # what GPT-Neo makes its list of when it is read
        config.attention_types = [[[kind], 1] for kind in kinds]


def new_config(model_type: str, like: Any, tokenizer: Any) -> Any:
    """Return a config of another family with the dimensions and special tokens of ``like``; the rest is its default.

    Args:
        model_type: The wanted family.
        like: The config whose dimensions are taken, as far as the family has them.
        tokenizer: The tokenizer that will feed the model.
    """
    from transformers import AutoConfig

    family, source = FAMILIES.get(model_type), shape_of(like)
    new = AutoConfig.for_model(model_type)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
        value = getattr(tokenizer, name)
        if hasattr(new, name) and (value is not None or name == "pad_token_id"):
            setattr(new, name, value)
    if family.token_types == "config":
        new.type_vocab_size = max(getattr(like, "type_vocab_size", 1), 1)
    if hasattr(like, "layer_norm_eps") and hasattr(new, "layer_norm_eps"):
        new.layer_norm_eps = like.layer_norm_eps
    if model_type == "xlnet":
        # Its own tokenizer puts the token that stands for the text last; all others put it first.
        new.mem_len = None
        new.summary_type = "last" if tokenizer.padding_side == "left" else "first"
    wanted = {name: value for name in family.config if (value := getattr(source, name)) is not None}
    return reshaped(new, **wanted)


def base_encoder(model: Any) -> Any:
    """Return the encoder inside a model with a head, or the model itself if it has none."""
    return getattr(model, family_of(model).base, model)


def layer_count(model: Any) -> int:
    """Return how many transformer layers an input passes through; 0 for a network without them."""
    return shape_of(model.config).layers if family_of(model).layers is not None else 0


def has_decoder(model: Any) -> bool:
    """Whether a decoder reads what the encoder makes of a text, in a model or in one of its config."""
    return bool(family_of(model).decoder)


def decoder_stack(model: Any) -> Any:
    """Return the module around the layers of the decoder that reads an encoder's states; None without one."""
    place = family_of(model).decoder.rpartition(".")[0]
    return base_encoder(model).get_submodule(place) if place else None


def decoder_layers(model: Any) -> list[nn.Module]:
    """Return one module for each layer of the decoder that reads an encoder's states; none without such a decoder."""
    return [model.get_submodule(name) for name in decoder_layer_names(model)]


def decoder_layer_names(model: Any) -> list[str]:
    """Return for each layer of the decoder the path of its module from the model."""
    family = family_of(model)
    if not family.decoder:
        return []
    prefix = family.decoder if base_encoder(model) is model else f"{family.base}.{family.decoder}"
    return [f"{prefix}.{i}" for i in range(shape_of(model.config).decoder_layers or 0)]


def constants(model: Any) -> list[nn.Parameter]:
    """Return parameters that are computed and neither trained nor saved: Marian's sinusoids of the positions."""
    tables = [part for part in model.modules() if type(part).__name__.endswith("SinusoidalPositionalEmbedding")]
    return [parameter for table in tables for parameter in table.parameters()]


def decoder_start(config: Any) -> int:
    """Return the token that a decoder begins with; that of padding where the config does not say it, as of T5."""
    start = getattr(config, "decoder_start_token_id", None)
    return int((config.pad_token_id if start is None else start) or 0)


def is_causal(model: Any) -> bool:
    """Whether a token sees itself and those before it alone, in a model or in one of its config."""
    return family_of(model).causal


def has_plain_attention(model: Any) -> bool:
    """Whether attention scores are the scaled products of queries and keys, masked or not, and nothing else."""
    return family_of(model).plain_attention


def layers(model: Any) -> list[nn.Module]:
    """Return one module for each layer, in order; ALBERT's shared layer stands there as often as it is run."""
    return [model.get_submodule(name) for name in layer_names(model)]


def layer_names(model: Any) -> list[str]:
    """Return for each layer the path of its module from the model, which is the prefix of its tensors' names."""
    family = family_of(model)
    if family.layers is None:
        raise UserError(f"{family.model_type} has no transformer layers")
    prefix = family.layers if base_encoder(model) is model else f"{family.base}.{family.layers}"
    if family.model_type == "albert":
        return [f"{prefix}.{group}.albert_layers.0" for group in albert_groups(model.config)]
    return [f"{prefix}.{i}" for i in range(layer_count(model))]


def albert_groups(config: Any) -> list[int]:
    """Return for each layer of ALBERT the group of shared weights that it runs."""
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return [int(i / per_group) for i in range(config.num_hidden_layers)]


def part_names(model: Any, layer: nn.Module) -> dict[str, str]:
    """Return role -> path of the module from the layer, for the roles of ``families`` that this layer has.

    MobileBERT's further feed-forward networks are ``ffn_in.0``, ``ffn_out.0`` and so on. In a layer of a decoder beside
    an encoder, the parts that look at the encoder are ``cross_…``.
    """
    family, modules = family_of(model), dict(layer.named_modules())
    parts = family.decoder_parts if layer in decoder_layers(model) else family.parts
    found: dict[str, str] = {}
    for role, path in parts.items():
        before, star, _ = path.partition(".*")
        numbers = [str(i) for i in range(len(list(modules[before].children())))] if star and before in modules else [""]
        found |= {role.replace("*", number): path.replace("*", number) for number in numbers}
    return {role: path for role, path in found.items() if path in modules}


def layer_parts(model: Any, layer: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a layer by role; see ``part_names``."""
    return {role: layer.get_submodule(path) for role, path in part_names(model, layer).items()}


def embedding_parts(model: Any) -> dict[str, nn.Module]:
    """Return ``words``, ``positions``, ``token_types`` and ``norm`` of the embeddings, those that exist."""
    modules = dict(base_encoder(model).named_modules())
    return {role: modules[path] for role, path in family_of(model).embeddings.items() if path in modules}


def word_embeddings(model: Any) -> nn.Embedding:
    """Return the table of word embeddings ``[V, E]``; the inner one where it is factorised by ``share.embeddings``."""
    outer = model.get_input_embeddings()
    table: nn.Embedding = getattr(outer, "table", outer)
    return table


def embedding_projection(model: Any) -> nn.Linear | None:
    """Return what takes factorised embeddings to the hidden size, if the model has it."""
    found = dict(base_encoder(model).named_modules()).get(family_of(model).projection or "none")
    return found if isinstance(found, nn.Linear) else None


def mixes_neighbours(config: Any) -> bool:
    """Whether embeddings read the words beside a word too, so that padding is seen unless its vector is 0."""
    return family_of(config).model_type == "mobilebert" and bool(config.trigram_input)


def head_parts(model: Any) -> dict[str, nn.Module]:
    """Return the modules of the head by role, those that exist.

    ``dense`` is the hidden layer of a classifier, ``classifier`` its last layer or a tagger's only one, ``qa`` gives
    start and end, ``mlm_dense``, ``mlm_norm`` and ``mlm_decoder`` predict words.
    """
    family, modules = family_of(model), dict(model.named_modules())
    paths = {role: path.format(base=family.base) for role, path in family.heads.items()}
    found = {role: modules[path] for role, path in paths.items() if path in modules}
    tagger = found.pop("tagger", None)
    if isinstance(tagger, nn.Linear):
        found["classifier"] = tagger
    return found


def share_encoder(source: Any, target: Any) -> None:
    """Let ``target``, in place, run the encoder of ``source``; its head, and with it a pooler, stays its own.

    Raises:
        UserError: If their encoders differ in family or shape.
    """
    given, own = base_encoder(source), base_encoder(target)
    families = [family_of(getattr(base_encoder(model), "config", model.config)) for model in (source, target)]
    shapes = [
        {name: p.shape for name, p in encoder.named_parameters() if not name.startswith("pooler.")}
        for encoder in (given, own)
    ]
    if families[0] is not families[1] or shapes[0] != shapes[1]:
        raise UserError("an encoder is shared by models of one family and shape, and these two differ")
    for name, part in [*given.named_children(), *given.named_parameters(recurse=False)]:
        if name != "pooler":
            setattr(own, name, part)


def head_parameters(model: Any) -> dict[str, nn.Parameter]:
    """Return the parameters of the head by name: all outside of the encoder, and a pooler inside of it.

    Beside a decoder they are those of the output layer, unless it is tied to the word embeddings.
    """
    if has_decoder(model):
        words = {id(parameter) for parameter in word_embeddings(model).parameters()}
        writes = model.get_output_embeddings()
        own = set() if writes is None else set(map(id, writes.parameters())) - words
        return {name: parameter for name, parameter in model.named_parameters() if id(parameter) in own}
    base = family_of(model).base
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if not name.startswith(f"{base}.") or name.startswith(f"{base}.pooler.")
    }
