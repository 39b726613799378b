"""An adapter put into a network, in place, and merged into its weights where that is possible."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from torch import nn

from eval.errors import UserError
from teachers.adapters.adapter_block import Adapter, Houlsby, Lora, Pfeiffer
from teachers.adapters.bottleneck import LinearWithBottleneck, NormWithBottleneck
from teachers.anatomy.encoder import (
    base_encoder,
    decoder_layer_names,
    family_of,
    has_decoder,
    head_parameters,
    layer_names,
    part_names,
)
from teachers.seeding import seeded

FUSED = "query_key_value"
"""The part of families that have one matrix for queries, keys and values."""


def install(network: Any, adapter: Adapter, seed: int = 0) -> None:
    """Put an adapter into a network, in place, and let it and the head alone be trained.

    Args:
        network: A standard network; its answers do not change (LoRA) or hardly (bottlenecks).
        adapter: Which.
        seed: Seeds its weights.

    Raises:
        UserError: If the family has no such parts, or PEFT is not installed.
    """
    head = _head_names(network)
    norms: set[str] = set()
    with seeded(seed):
        if isinstance(adapter, Lora):
            _install_lora(network, adapter)
        elif isinstance(adapter, Houlsby):
            norms = _install_houlsby(network, adapter)
        else:
            _install_pfeiffer(network, adapter)
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name in head | norms or _is_adapters(name))


def task_parameters(network: Any) -> dict[str, nn.Parameter]:
    """Return the parameters that differ from task to task in a network with an adapter: its own and the head's."""
    houlsby = any(isinstance(part, LinearWithBottleneck) for part in network.modules())
    own = _head_names(network) | (_norm_names(network) if houlsby else set())
    return {name: p for name, p in network.named_parameters() if name in own or _is_adapters(name)}


def merge(network: Any) -> bool:
    """Add LoRA's products to the weights, in place, so that a standard network is left; return whether it is one.

    Bottlenecks have an activation within, so nothing that they do fits into the matrices beside them: they stay.
    """
    if any(isinstance(part, (LinearWithBottleneck, NormWithBottleneck)) for part in network.modules()):
        return False
    from peft.tuners.lora import LoraLayer

    for path, part in [*network.named_modules()]:
        if isinstance(part, LoraLayer):
            part.merge(safe_merge=True)
            network.set_submodule(path, part.get_base_layer())
    del network.peft_config
    return True


def lora_config(network: Any, adapter: Lora) -> Any:
    """Return the config of PEFT that says the same.

    Raises:
        UserError: If a layer lacks a part, or PEFT is not installed.
    """
    try:
        with _quiet():
            from peft import LoraConfig
    except ImportError as error:
        raise UserError("adapter: lora needs PEFT; run: pip install 'nlp-compress[adapters]'") from error
    return LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=_targets(network, adapter),
        modules_to_save=sorted({name.rpartition(".")[0] for name in _head_names(network)}) or None,
        bias="none",
    )


def _install_lora(network: Any, adapter: Lora) -> None:
    config = lora_config(network, adapter)
    from peft import inject_adapter_in_model

    config.modules_to_save = None  # the head is trained as it is, not a copy of it
    with _quiet():
        inject_adapter_in_model(config, network)


def _targets(network: Any, adapter: Lora) -> list[str]:
    """Return the paths of the matrices that LoRA changes."""
    found: dict[str, None] = {}
    lacking: dict[str, None] = {}
    for layer in _layer_names(network):
        parts = part_names(network, network.get_submodule(layer))
        for role in adapter.parts:
            own = role if role in parts or role not in ("query", "key", "value") else FUSED
            if own in parts:
                found[f"{layer}.{parts[own]}"] = None
            else:
                lacking[role] = None
    if lacking:
        known = list(part_names(network, network.get_submodule(layer_names(network)[0])))
        raise UserError(
            f"adapter: lora.parts: a layer of {family_of(network).model_type} has no {' and '.join(lacking)}; "
            f"it has {', '.join(known) or 'no matrices that are modules'}"
        )
    return list(found)


def _install_houlsby(network: Any, adapter: Houlsby) -> set[str]:
    for path in _paths(network, ("attention_output", "cross_output", "ffn_out"), nn.Linear, "houlsby"):
        old = network.get_submodule(path)
        new = LinearWithBottleneck(old.in_features, old.out_features, adapter.size, old.bias is not None)
        _exchange(network, path, old, new)
    return _norm_names(network)


def _install_pfeiffer(network: Any, adapter: Pfeiffer) -> None:
    if not family_of(base_encoder(network)).post_norm:
        raise UserError(
            f"adapter: pfeiffer needs layers that end in a norm, as BERT's, and {family_of(network).model_type} has "
            "others; take houlsby or lora"
        )
    for path in _paths(network, ("ffn_norm",), nn.LayerNorm, "pfeiffer"):
        old = network.get_submodule(path)
        _exchange(network, path, old, NormWithBottleneck(old.normalized_shape[0], adapter.size, old.eps))


def _paths(network: Any, roles: tuple[str, ...], kind: type[nn.Module], what: str) -> list[str]:
    """Return the paths of these parts of all layers, each once."""
    found: dict[str, None] = {}
    decoders = decoder_layer_names(network)
    for layer in _layer_names(network):
        parts = part_names(network, network.get_submodule(layer))
        for role in roles if layer in decoders else [role for role in roles if not role.startswith("cross_")]:
            path = f"{layer}.{parts.get(role)}"
            if role not in parts or type(network.get_submodule(path)) is not kind:
                raise UserError(
                    f"adapter: {what} needs {' and '.join(roles)} of each layer as a {kind.__name__}; "
                    f"{family_of(network).model_type} has {role} otherwise"
                )
            found[path] = None
    return list(found)


def _exchange(network: Any, path: str, old: nn.Module, new: nn.Module) -> None:
    """Put a module with a part more in the place of another one, whose parameters it takes over."""
    for name, parameter in old.named_parameters(recurse=False):
        setattr(new, name, parameter)
    network.set_submodule(path, new.train(old.training))


def _layer_names(network: Any) -> list[str]:
    """Return the paths of all layers, those of a decoder beside the encoder too."""
    return [*layer_names(network), *decoder_layer_names(network)]


def _norm_names(network: Any) -> set[str]:
    """Return the names of the parameters of all layers' norms, which transformers calls LayerNorm, RMSNorm, NoNorm."""
    layers = tuple(f"{name}." for name in _layer_names(network))
    return {
        f"{path}.{name}"
        for path, part in network.named_modules()
        if type(part).__name__.endswith("Norm") and path.startswith(layers)
        for name, _ in part.named_parameters(recurse=False)
    }


def _head_names(network: Any) -> set[str]:
    """Return the names of the parameters of the head; none for a bare encoder, or where it is tied to the words."""
    return set() if base_encoder(network) is network and not has_decoder(network) else set(head_parameters(network))


def _is_adapters(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name or ".adapter." in name


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what PEFT says of every network, and bitsandbytes, which it imports if it is there, of the machine."""
    logger = logging.getLogger("bitsandbytes")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"peft\..*")
            yield
    finally:
        logger.setLevel(level)
