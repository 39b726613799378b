"""The settings in which recipes differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from compress.recipe import Recipe, recipe_to_plain
from eval.naming import without_paths

ABSENT = "-"
"""Stands for a setting that a recipe does not give."""


def differing_settings(recipes: Sequence[Recipe]) -> dict[str, list[str]]:
    r"""Return the settings that are not the same in all recipes -> the value in each; names of recipes are left out.

    Examples:
        >>> from compress.recipe import parse_recipe
        >>> text = "name: a\nteacher: {model: t}\nsteps: [prune.layers: {keep: [0, 2]}]"
        >>> differing_settings([parse_recipe(text), parse_recipe(text.replace("2", "1"))])
        {'steps.1.keep': ['[0, 2]', '[0, 1]']}
    """
    flat = [dict(_flat("", without_paths(recipe_to_plain(recipe)))) for recipe in recipes]
    every = dict.fromkeys(path for settings in flat for path in settings if path != "name")
    found = {path: [settings.get(path, ABSENT) for settings in flat] for path in every}
    return {path: values for path, values in found.items() if len(set(values)) > 1}


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(f"{path}.{key}".lstrip("."), part)
    elif isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        for number, part in enumerate(value, start=1):
            yield from _listed(f"{path}.{number}", part)
    elif isinstance(value, list) and path in ("steps", "export"):
        yield from ((f"{path}.{number}", str(part)) for number, part in enumerate(value, start=1))
    else:
        yield path, "none" if value is None else str(value)


def _listed(path: str, part: Any) -> Iterator[tuple[str, str]]:
    """Yield a step or an export: its name, then its settings."""
    if isinstance(part, Mapping) and len(part) == 1:
        name, settings = next(iter(part.items()))
        yield path, str(name)
        yield from _flat(path, settings) if isinstance(settings, Mapping) else ()
    else:
        yield from _flat(path, part)
