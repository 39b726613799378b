"""The recipe: what goes in, the steps, what comes out; typed values that a YAML file maps to one to one."""

from __future__ import annotations

from compress.recipe.checks import problems
from compress.recipe.from_yaml import parse_recipe, read_recipe, recipe_from_plain
from compress.recipe.schema import Recipe
from compress.recipe.to_yaml import recipe_to_plain, recipe_to_yaml

__all__ = [
    "Recipe",
    "parse_recipe",
    "problems",
    "read_recipe",
    "recipe_from_plain",
    "recipe_to_plain",
    "recipe_to_yaml",
]
