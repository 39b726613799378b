"""A float that stands in JSON as null where it is not finite; this file itself needs neither numpy nor pydantic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


class NullIfNotFinite:
    """How pydantic reads and writes such a float: null is read as NaN, and written for what is not finite."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of a float with both conversions."""
        from pydantic_core import core_schema

        schema = core_schema.no_info_before_validator_function(
            lambda value: math.nan if value is None else value, handler(source)
        )
        schema["serialization"] = core_schema.plain_serializer_function_ser_schema(
            lambda value: value if math.isfinite(value) else None, when_used="json"
        )
        return schema


Number = Annotated[float, NullIfNotFinite()]
"""A float that stands in JSON as null where it is not finite; null is read back as NaN."""
