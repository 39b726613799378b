"""How large a network may be: said from its config alone, before anything of it is built."""

from __future__ import annotations

import math
import os
from typing import Any

from eval.errors import UserError, quantity
from teachers.anatomy.encoder import attention_width, shape_of

MOST_PARAMETERS = 2_000_000_000
"""More weigh 8 GB in float32; the largest encoders of these families have 1.5 billion."""
MOST_LAYERS = 256
VARIABLE = "COMPRESS_MAX_PARAMETERS"
"""Names another limit."""


def parameters_about(config: Any) -> int:
    """Return about how many parameters a network of this config has: tables, attention and feed-forward networks."""
    shape = shape_of(config)
    hidden, width = shape.hidden_size or 0, attention_width(config) or 0
    layers = min(shape.layers or 0, getattr(config, "num_hidden_groups", None) or shape.layers or 0)
    tables = (shape.vocab_size or 0) * (shape.embedding_size or hidden) + (shape.max_positions or 0) * hidden
    return tables + layers * (4 * width * width + 2 * width * (shape.intermediate_size or 0))


def size_problems(config: Any, where: str) -> list[str]:
    """Return why no network of this config can be built here, one sentence each: its size, or numbers that are none.

    Args:
        config: A transformers config of a supported family.
        where: Begins the sentences.

    Raises:
        UserError: If the limit in the environment is no number.
    """
    endless = [name for name, value in vars(config).items() if isinstance(value, float) and not math.isfinite(value)]
    return [
        *(f"{where}: {name}: got {getattr(config, name)}, must be a finite number" for name in endless),
        *layer_problems(shape_of(config).layers or 0, where),
        *window_problems(config, where),
        *parameter_problems(parameters_about(config), where),
    ]


def layer_problems(layers: int, where: str) -> list[str]:
    """Return why there cannot be so many layers; nothing if there can."""
    return [f"{where}: {layers:,} layers; at most {MOST_LAYERS} are possible"] if layers > MOST_LAYERS else []


def window_problems(config: Any, where: str) -> list[str]:
    """Return why layers cannot have the windows of a config; nothing if they can, or have none."""
    given, layers = getattr(config, "attention_window", None), shape_of(config).layers
    if given is None:
        return []
    windows = given if isinstance(given, list) else [given]
    found = []
    if isinstance(given, list) and len(given) != layers:
        found.append(
            f"{where}: attention_window has {quantity(len(given), 'number')} for "
            f"{quantity(layers, 'layer')}; give one for each"
        )
    if odd := [window for window in windows if window < 2 or window % 2]:
        found.append(f"{where}: attention_window {', '.join(map(str, odd))}: must be an even number, at least 2")
    return found


def parameter_problems(parameters: int, where: str) -> list[str]:
    """Return why there cannot be so many parameters; nothing if there can."""
    most = _most()
    if parameters <= most:
        return []
    return [
        f"{where}: about {parameters / 1e9:,.1f} billion parameters, which are {4 * parameters / 1e9:,.0f} GB in "
        f"float32; at most {most / 1e9:g} billion are possible, or what the variable {VARIABLE} says"
    ]


def _most() -> int:
    given = os.environ.get(VARIABLE)
    if given is None:
        return MOST_PARAMETERS
    if not (given.isascii() and given.isdigit()):
        raise UserError(f"{VARIABLE}: got {given[:50]!r}; must be a whole number, such as {MOST_PARAMETERS}")
    return int(given[:30])
