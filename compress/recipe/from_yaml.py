"""From YAML to a recipe, or to everything that is wrong with it, each with its line."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compress.reading.block_reader import BlockReader
from compress.reading.field_types import bare, is_block
from compress.reading.overrides import apply_overrides
from compress.reading.validation_errors import FieldError
from compress.reading.wording import shown
from compress.reading.yaml_places import Document, Location, decode, read_yaml
from compress.recipe.checks import parts_given, recipe_problems
from compress.recipe.schema import Recipe, Written
from compress.technique import Technique
from eval.errors import UserError
from eval.files.paths import near_path

logger = logging.getLogger("compress.recipe")


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a YAML file.

    Args:
        path: The file.
        overrides: ``path=value`` each, as after ``--set``.

    Raises:
        UserError: With every error of the file at once, each with its line.

    Examples:
        >>> from pathlib import Path
        >>> text = "{teacher: {model: runs/teacher}, steps: [{prune.layers: {keep: [0, 2]}}]}"
        >>> _ = Path("small.yaml").write_text(text)
        >>> read_recipe("small.yaml", ["seed=7"]).seed
        7
        >>> read_recipe("small.yaml", ["steps.0.prune.layers.kep=[0]"])
        Traceback (most recent call last):
        ...
        eval.errors.UserError: --set steps.0.prune.layers.kep=[0]: step 1, prune.layers: unknown field 'kep'; did you
        mean 'keep'?
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else error.strerror or str(error)
        near = "" if path.exists() else near_path(path)
        raise UserError(f"{path}: the recipe cannot be read ({reason}){near}") from error
    return parse_recipe(decode(raw, str(path)), str(path), overrides)


def parse_recipe(text: str, source: str = "recipe", overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from YAML text; see ``read_recipe``."""
    document = read_yaml(text, source)
    if document.data is None:
        raise UserError(f"{source}: the recipe is empty; 'compress init' writes one to start from")
    if not isinstance(document.data, dict):
        raise UserError(f"{source}: got {shown(document.data)}, a recipe must be a mapping such as 'seed: 13'")
    if document.data.keys() & {"limits", "optimise"} and "steps" not in document.data:
        raise UserError(f"{source}: is a budget; compress search {source} finds a recipe within it")
    return _read(document, overrides)


def recipe_from_plain(values: dict[str, Any], source: str = "recipe", overrides: Sequence[str] = ()) -> Recipe:
    """Make a recipe from plain values, such as ``recipe_to_plain`` gives; messages begin with ``source``."""
    return _read(Document(source, values), overrides)


def _read(document: Document, overrides: Sequence[str]) -> Recipe:
    apply_overrides(document, overrides)
    reader = BlockReader(document)
    recipe, errors = reader.attempt(Recipe, document.data)
    for error in errors:
        reader.tell(error, _told)
    rest, steps = (recipe, None) if recipe is not None else _what_is_right(document.data, errors)
    if rest is not None:
        for location, sentence in recipe_problems(rest, parts_given(document.data), steps):
            reader.report(location, sentence)
    if reader.problems or recipe is None:
        raise UserError(*reader.sorted_problems())
    if warning := reader.warning_of_old_names():
        logger.warning(warning)
    recipe._written = Written(document)
    return recipe


def _told(field: Location) -> tuple[str, Location]:
    """Return what messages call the part of a recipe that a field belongs to, and the field in it."""
    match field:
        case ("steps", int(index), str(name), *inside):
            return f"step {index + 1}, {name}", tuple(inside)
        case (("steps" | "export") as part, int(index), *inside):
            return f"{part.removesuffix('s')} {index + 1}", tuple(inside)
        case (str(part), *inside) if part in Recipe.model_fields:
            if is_block(bare(Recipe.model_fields[part].annotation)[0]):
                return part, tuple(inside)
    return "", field


def _what_is_right(
    data: dict[str, Any], errors: Sequence[FieldError]
) -> tuple[Recipe | None, list[tuple[int, Technique]] | None]:
    """Return a recipe of the parts without errors, and its steps with their places in the document."""
    wrong = {error.location[: 2 if error.location[:1] in (("steps",), ("export",)) else 1] for error in errors}
    rest: dict[str, Any] = {}
    places: list[int] = []
    for key, value in data.items():
        if (key,) in wrong:
            continue
        if key in ("steps", "export") and isinstance(value, list):
            kept = [index for index in range(len(value)) if (key, index) not in wrong]
            value = [value[index] for index in kept]
            places = kept if key == "steps" else places
        rest[key] = value
    recipe, _ = BlockReader(Document("what is right", rest)).attempt(Recipe, rest)
    return recipe, None if recipe is None else list(zip(places, recipe.steps, strict=True))
