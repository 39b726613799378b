"""The JSON Schema of a recipe, by which editors complete and check it."""

from __future__ import annotations

from typing import Any

from compress.reading.editor_schema import EditorSchema
from compress.recipe.schema import Recipe


def recipe_json_schema() -> dict[str, Any]:
    """Return the schema of a recipe with every technique's fields, draft 2020-12, as plain JSON values."""
    found = Recipe.model_json_schema(schema_generator=EditorSchema, by_alias=True)
    return {"$schema": EditorSchema.schema_dialect, "title": "A recipe of compress", **found}
