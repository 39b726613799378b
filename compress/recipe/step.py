"""A step of a recipe, written ``name`` or ``{name: fields}``, and a target of an export, written likewise."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    GetJsonSchemaHandler,
    PlainSerializer,
    SerializationInfo,
    ValidationError,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from compress.export.targets.target_registry import target_names
from compress.reading.editor_schema import by_name
from compress.reading.validation_errors import FieldError, errors_in, refusal, validated
from compress.reading.wording import expected, shown
from compress.recipe.blocks import ExportBlock, export_block
from compress.registry import get, names
from compress.technique import Technique
from eval.errors import UserError, did_you_mean


def step_from_plain(given: Any, info: ValidationInfo) -> Technique:
    """Return the technique that an item of ``steps`` names, with its fields.

    Raises:
        ValidationError: With every error as a sentence.
    """
    if isinstance(given, Technique):
        return given
    name, fields = _named(given, "distill.logits: {temperature: 2.0}")
    try:
        technique = get(name)
    except UserError as error:
        raise _refused(str(error)) from error
    if not isinstance(fields, Mapping):
        raise refusal(name, [FieldError((), (), f"got {shown(fields)}, must be {expected(technique)}")], (name,))
    try:
        return validated(partial(technique.model_validate, context=info.context), technique, fields)
    except ValidationError as error:
        raise refusal(name, errors_in(error, technique, fields), (name,)) from error


def step_to_plain(step: Technique, info: SerializationInfo) -> dict[str, Any] | str:
    """Return a step as a recipe writes it: ``{name: fields}``, or the bare name."""
    fields = step.model_dump(mode="json", by_alias=True, exclude_unset=bool(info.exclude_unset))
    return {step.name: fields} if fields else step.name


def export_from_plain(given: Any) -> Any:
    """Return the values of the block that an item of ``export`` names.

    Raises:
        ValidationError: With every error as a sentence.
    """
    if isinstance(given, ExportBlock):
        return given
    name, fields = _named(given, "onnx: {int8: true}")
    if name not in target_names():
        raise _refused(f"unknown format {shown(name)}{did_you_mean(name, target_names())}")
    try:
        block = export_block(name)
    except UserError as error:
        raise _refused(str(error)) from error
    given_options = validated(block.model_validate, block, {name: fields})
    return ExportBlock.model_validate({name: given_options.settings})


class _Form:
    """Tells editors of every technique by its name."""

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        del schema
        return by_name({name: get(name) for name in names()}, handler, only_one=True)


Step = Annotated[Technique, BeforeValidator(step_from_plain), PlainSerializer(step_to_plain), _Form()]
Export = Annotated[ExportBlock, BeforeValidator(export_from_plain)]


def _named(item: Any, example: str) -> tuple[str, Any]:
    """Return name and fields of an item such as ``{name: fields}``."""
    if isinstance(item, str):
        return item, {}
    if not (isinstance(item, Mapping) and item):
        raise _refused(f"got {shown(item)}, must be one name with its fields, such as '{example}'")
    name, fields = next(iter(item.items()))
    if len(item) > 1 and fields is None:
        raise _refused(f"the fields of {shown(name)} must be indented further than its name")
    if len(item) > 1:
        held = shown(", ".join(map(str, item)))
        raise _refused(f"holds {len(item)} names ({held}); write each as an item of its own")
    return str(name), {} if fields is None else fields


def _refused(words: str) -> ValidationError:
    return refusal("item", [FieldError((), (), words)])
