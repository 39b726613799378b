"""From a recipe back to plain values and YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from compress.reading.variables import escape
from compress.reading.yaml_places import TAG
from compress.recipe.schema import Recipe


def recipe_to_yaml(recipe: Recipe) -> str:
    """Return YAML text from which ``parse_recipe`` makes an equal recipe.

    Examples:
        >>> from compress.prune.layers import LayerPruning
        >>> from compress.recipe import Recipe
        >>> print(recipe_to_yaml(Recipe(name="small", steps=(LayerPruning(keep=(0, 2)),))), end="")
        name: small
        steps:
        - prune.layers:
            keep: [0, 2]
    """
    values = _escaped(recipe_to_plain(recipe))
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)


def recipe_to_plain(recipe: Recipe) -> dict[str, Any]:
    """Return the values that were given, as plain JSON values in the order and shape of the YAML file."""
    given = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {key: given[key] for key in Recipe.model_fields if key in given and (key != "steps" or given[key])}


class _Dumper(yaml.SafeDumper):
    """Writes text with unusual characters in double quotes; PyYAML reads its own other styles of it back wrongly."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(f"{TAG}str", text, style=None if text.isprintable() else '"'),
)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value
