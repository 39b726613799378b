"""Parts of a network that standard classes do not have; each says in plain JSON how it is built again.

A module of our own, or of another package (entry-point group ``compress.modules``), is an ``nn.Module`` with
``describe() -> dict``, the arguments of its class, all plain JSON. Its parameters and persistent buffers are what is
saved. If many of its numbers are 0, it may name them in ``sparse_tensors``; they are then written without their zeros,
if that takes fewer bytes. A module that packs several numbers into a byte writes and reads them itself:
``saved_bytes(name)``, ``without_zeros() -> (which are not 0, those)`` and ``with_zeros(which, those)``.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from eval.plugins import Registry

KINDS: dict[str, str] = {
    "masked_linear": "compress.modules.masked:MaskedLinear",
    "masked_embedding": "compress.modules.masked:MaskedEmbedding",
    "packed_linear": "compress.modules.packed:PackedLinear",
    "packed_embedding": "compress.modules.packed:PackedEmbedding",
    "int8_linear": "compress.modules.fake_quant:Int8Linear",
    "int8_embedding": "compress.modules.fake_quant:Int8Embedding",
    "low_rank": "compress.modules.low_rank:LowRankLinear",
    "factorised_embedding": "compress.modules.factorised:FactorisedEmbedding",
    "linear_with_bottleneck": "teachers.adapters.bottleneck:LinearWithBottleneck",
    "norm_with_bottleneck": "teachers.adapters.bottleneck:NormWithBottleneck",
    "fewer_heads": "teachers.anatomy.head_bias:FewerHeads",
    "relative_attention": "teachers.anatomy.forms.xlnet_form:LinearRelativeAttention",
    "factorised_decoder": "compress.modules.factorised:FactorisedDecoder",
}
"""Kind in a saved structure -> the class of our own that it is, ``module:Class``; loaded on use."""


def _problem(kind: str, thing: Any) -> str:
    del kind
    fits = isinstance(thing, type) and issubclass(thing, nn.Module) and hasattr(thing, "describe")
    return "" if fits else "is no nn.Module with a method describe(), which returns the arguments of its class"


REGISTRY: Registry[type[nn.Module]] = Registry("kind of module", "compress.modules", KINDS, _problem)
"""Those kinds and the ones of other packages."""

STOCK: dict[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "linear": (nn.Linear, ("in_features", "out_features")),
    "embedding": (nn.Embedding, ("num_embeddings", "embedding_dim", "padding_idx")),
    "layer_norm": (nn.LayerNorm, ("normalized_shape", "eps", "elementwise_affine")),
    "identity": (nn.Identity, ()),
}
"""Kind -> a class of torch, and the arguments that it keeps as attributes."""


def described(module: nn.Module, path: str = "") -> dict[str, Any]:
    """Return how a module is built again, as plain JSON; its weights are kept apart.

    Raises:
        TypeError: If it is of no kind that is known here.
    """
    own = {REGISTRY.place(kind): kind for kind in REGISTRY.names()}
    target = f"{type(module).__module__}:{type(module).__qualname__}"
    if target in own:
        arguments: dict[str, Any] = module.describe()  # type: ignore[operator]
        return {"kind": own[target], **arguments}
    for kind, (cls, names) in STOCK.items():
        if type(module) is cls:
            values = {name: getattr(module, name) for name in names}
            values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
            if "bias" in module._parameters:
                values["bias"] = module.bias is not None
            return {"kind": kind, **values}
    raise TypeError(
        f"{path}: a {type(module).__name__} cannot be saved; it is not in compress.modules.KINDS. Another package "
        f'declares it by an entry point: [project.entry-points."compress.modules"] "NAME" = "{target}"'
    )


def built(description: dict[str, Any]) -> nn.Module:
    """Return a module as ``described`` described it, with new weights.

    Raises:
        KeyError: If the kind is not known.
        UserError: If a package gives the kind and it cannot be loaded.
        TypeError: If the arguments are not those of its class.
    """
    arguments = dict(description)
    kind = arguments.pop("kind")
    if kind in STOCK:
        return STOCK[kind][0](**arguments)
    if kind not in REGISTRY:
        raise KeyError(f"{kind!r} is no kind of module that is installed; lineage.json names the package of each step")
    return REGISTRY.get(kind)(**arguments)
