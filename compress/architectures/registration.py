"""Makes a custom architecture known to transformers' Auto classes and to the table of families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig

from teachers.anatomy.families import FAMILIES, Family


def register(config: Any, classes: Mapping[Any, Any], *, base: str, dimensions: Mapping[str, str], **more: Any) -> None:
    """Register an architecture without transformer layers.

    Args:
        config: The class of its config.
        classes: Auto class -> the class that holds such a head.
        base: Attribute of the network that holds its encoder.
        dimensions: Our name of a dimension -> the config's own.
        more: Further fields of its ``Family``.
    """
    AutoConfig.register(config.model_type, config)
    for auto, network in classes.items():
        auto.register(config, network)
    nothing: dict[str, Any] = {"parts": {}, "embeddings": {}, "heads": {}}
    family = Family(
        config.model_type,
        base=base,
        layers=None,
        config=dimensions,
        post_norm=False,
        predicts_words=False,
        plain_attention=False,
        **(nothing | more),
    )
    FAMILIES.add(config.model_type, family)
