"""JSON Schema of blocks for editors: descriptions from docstrings, short forms, and fields that may stand beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from compress.reading.docstrings import attribute_descriptions, summary_and_text
from teachers.named_block import NamedBlock
from teachers.renamed import RenamedFields
from teachers.training.config import Training, WithTraining

NOTHING: JsonSchemaValue = {"type": "null"}


class EditorSchema(GenerateJsonSchema):
    """Writes what a user may write, with the words of the docstrings."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a block."""
        found = super().model_schema(schema)
        block: type[BaseModel] = schema["cls"]
        summary, _ = summary_and_text(block)
        found |= {"description": summary} if summary else {}
        found.pop("title", None)
        properties: dict[str, Any] = found.setdefault("properties", {})
        described = attribute_descriptions(block)
        for name, info in block.model_fields.items():
            own = properties.get(info.alias or name)
            if own is not None:
                own.pop("title", None)
                own |= {"description": described[name]} if name in described else {}
        if issubclass(block, WithTraining):
            found["properties"] = properties = self._beside(block) | properties
        if issubclass(block, RenamedFields):
            properties |= {old: _old(properties[new], new) for old, new in block.renamed.items()}
        if issubclass(block, NamedBlock):
            return {"description": summary, "anyOf": [{"enum": list(block.model_fields)}, found]}
        return found

    def encode_default(self, dft: Any) -> Any:
        """Return a default as a recipe writes it: of a block, what differs from the block's own defaults."""
        if isinstance(dft, BaseModel):
            return dft.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return super().encode_default(dft)

    def _beside(self, block: type[WithTraining]) -> dict[str, Any]:
        """Return the fields of training that may stand beside those of a block, with the block's own defaults."""
        whole = self.resolve_ref_schema(self.generate_inner(Training.__pydantic_core_schema__))["properties"]
        default: Training = block.model_fields["training"].get_default(call_default_factory=True)
        found = {
            name: whole[name] | {"default": self.encode_default(getattr(default, name))} for name in block.beside()
        }
        return found | {old: _old(found[new], new) for old, new in Training.renamed.items() if new in found}


def by_name(
    blocks: Mapping[str, type[BaseModel]], handler: GetJsonSchemaHandler, *, only_one: bool, weighted: bool = False
) -> JsonSchemaValue:
    """Return the schema of ``name`` and ``{name: fields}``.

    Args:
        blocks: The block of each name.
        handler: Pydantic's, which makes the schema of a block.
        only_one: Whether a mapping holds one name.
        weighted: Whether each is a term of a sum: with a weight, and trained as the whole.
    """
    properties = {}
    for name, block in blocks.items():
        fields = handler(block.__pydantic_core_schema__)
        properties[name] = {
            "anyOf": [_term(handler.resolve_ref_schema(fields), block) if weighted else fields, NOTHING]
        }
    mapping: JsonSchemaValue = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "minProperties": 1,
    }
    return {"anyOf": [{"enum": list(blocks)}, mapping | ({"maxProperties": 1} if only_one else {})]}


def _term(fields: JsonSchemaValue, block: type[BaseModel]) -> JsonSchemaValue:
    training = {"training", *block.beside(), *Training.renamed} if issubclass(block, WithTraining) else set()
    own = {name: value for name, value in fields["properties"].items() if name not in training}
    weight = {"type": "number", "minimum": 0, "default": 1.0, "description": "What the loss is multiplied by."}
    return fields | {"properties": own | {"weight": weight}}


def _old(schema: JsonSchemaValue, new: str) -> JsonSchemaValue:
    return schema | {"deprecated": True, "description": f"Old name of {new}."}
