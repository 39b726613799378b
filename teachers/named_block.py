"""Base of blocks that name things: ``name``, ``{name: }`` and ``{name: {fields}}`` mean the same."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


def full_form(values: Any) -> Any:
    """Return ``{name: {fields}}`` for each of the short forms; anything else as it is."""
    if isinstance(values, str):
        return {values: {}}
    if isinstance(values, dict):
        return {key: {} if value is None else value for key, value in values.items()}
    return values


class NamedBlock(BaseModel):
    """Fields that are blocks of their own, each with defaults, so that the bare name is enough."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _short(cls, values: Any) -> Any:
        return full_form(values)


class OneNamedBlock(NamedBlock):
    """Exactly one of the fields is given."""

    what: ClassVar[str]
    """What messages call a field."""

    @model_validator(mode="after")
    def _has_one(self) -> OneNamedBlock:
        if len(self.model_fields_set) != 1:
            raise ValueError(f"name one {self.what}, of {', '.join(type(self).model_fields)}")
        return self

    @property
    def one(self) -> str:
        """The name that was given."""
        return next(iter(self.model_fields_set))
