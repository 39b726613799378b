"""Fields that were renamed: their old names are still read, and records and keys of caches keep them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)

RECORDED = "recorded"
AS_RECORDED = {RECORDED: True}
"""The context of a dump whose fields stand under the names that they first had."""
OLD_NAMES = "old names"
"""Key of the context of a validation, whose value is a dict: old names that were read are added to it, with the new."""


class RenamedFields(BaseModel):
    """Base of the blocks that have fields with a new name.

    Attributes:
        renamed: Old name -> new name.
    """

    renamed: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, values: Any, info: ValidationInfo) -> Any:
        return with_new_names(values, cls.renamed, info.context)

    @model_serializer(mode="wrap")
    def _as_recorded(self, dump: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        return with_first_names(dump(self), self.renamed, info.context)


def with_new_names(values: Any, renamed: Mapping[str, str], context: Any) -> Any:
    """Return the values of a block under the new names.

    Args:
        values: What was given; a bare name, as ``teachers.named_block`` allows it, is renamed as well.
        renamed: Old name -> new name.
        context: Of the validation. If it collects old names, they are added to it; else each is a DeprecationWarning.

    Raises:
        ValueError: If a field is given under both names.
    """
    found = [old for old in renamed if old == values or (isinstance(values, dict) and old in values)]
    for old in found:
        if isinstance(values, dict) and renamed[old] in values:
            raise ValueError(f"{old} is the old name of {renamed[old]}, and both are given; leave {old} out")
        if context and OLD_NAMES in context:
            context[OLD_NAMES][old] = renamed[old]
        else:
            warnings.warn(f"{old!r} is called {renamed[old]!r} now", DeprecationWarning, stacklevel=4)
    if not found:
        return values
    if isinstance(values, str):
        return renamed[values]
    return {renamed.get(name, name): value for name, value in values.items()}


def with_first_names(values: dict[str, Any], renamed: Mapping[str, str], context: Any) -> dict[str, Any]:
    """Return what a block's dump says, under the names that fields first had if the context asks for it."""
    if not (context and context.get(RECORDED)):
        return values
    first = {new: old for old, new in renamed.items()}
    return {first.get(name, name): value for name, value in values.items()}


def recorded(block: BaseModel, **options: Any) -> dict[str, Any]:
    """Return what records and keys of caches say of a block: plain JSON values under the names that fields first had.

    Args:
        block: Any block.
        options: Further options of ``model_dump``.
    """
    values: dict[str, Any] = block.model_dump(mode="json", context=AS_RECORDED, **options)
    return values


def recorded_json(block: BaseModel) -> str:
    """Return the same as JSON text."""
    return block.model_dump_json(context=AS_RECORDED)
