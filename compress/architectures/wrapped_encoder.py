"""What custom architectures around a standard network share: a config that holds its config, and their registration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from compress.architectures.registration import register
from teachers.anatomy.encoder import max_tokens, model_inputs, shape_of


class AroundConfig(PreTrainedConfig):  # type: ignore[misc]
    """Base of the configs of networks around a standard one, which is their ``inner``.

    Args:
        inner: Config of the standard network, or its fields.
        kwargs: What every config of transformers has.
    """

    sub_configs = {"inner": AutoConfig}  # noqa: RUF012 (transformers reads it so)

    def __init__(self, inner: PreTrainedConfig | dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.inner = AutoConfig.for_model(**inner) if isinstance(inner, dict) else inner or AutoConfig.for_model("bert")
        super().__init__(**kwargs)

    @property
    def vocab_size(self) -> int:
        """Rows of the word embeddings."""
        return shape_of(self.inner).vocab_size

    @property
    def hidden_size(self) -> int:
        """Channels of the residual stream."""
        return shape_of(self.inner).hidden_size

    @property
    def max_position_embeddings(self) -> int:
        """Most tokens of an input."""
        return max_tokens(self.inner)

    @property
    def type_vocab_size(self) -> int:
        """More than 1 where the standard network takes token types."""
        return 2 if "token_type_ids" in model_inputs(self.inner) else 1


def register_around(config: type[AroundConfig], classes: Mapping[Any, Any]) -> None:
    """Make a network around a standard one known to transformers and to ``TaskModel``.

    Args:
        config: Its config.
        classes: Auto class -> the class that holds such a head.
    """
    dimensions = {name: name for name in ("hidden_size", "vocab_size")} | {"max_positions": "max_position_embeddings"}
    register(config, classes, base="inner", dimensions=dimensions)
