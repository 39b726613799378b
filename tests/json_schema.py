"""A small validator of JSON Schema, draft 2020-12: the keywords that the recipe's schema uses, said a second way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
ANNOTATIONS = {"$schema", "$defs", "title", "description", "default", "deprecated"}
PARTS = {"properties", "patternProperties", "additionalProperties", "propertyNames", "items", "prefixItems"}
LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, wanted: value >= wanted,
    "maximum": lambda value, wanted: value <= wanted,
    "exclusiveMinimum": lambda value, wanted: value > wanted,
    "exclusiveMaximum": lambda value, wanted: value < wanted,
    "minItems": lambda value, wanted: len(value) >= wanted,
    "maxItems": lambda value, wanted: len(value) <= wanted,
    "minLength": lambda value, wanted: len(value) >= wanted,
    "maxLength": lambda value, wanted: len(value) <= wanted,
    "minProperties": lambda value, wanted: len(value) >= wanted,
    "maxProperties": lambda value, wanted: len(value) <= wanted,
    "pattern": lambda value, wanted: re.search(wanted, value) is not None,
    "enum": lambda value, wanted: value in wanted,
    "const": lambda value, wanted: value == wanted,
    "required": lambda value, wanted: value.keys() >= set(wanted),
    "type": lambda value, wanted: isinstance(value, TYPES[wanted]) and (wanted == "boolean") == isinstance(value, bool),
}
FOR = {"imum": "number", "Items": "array", "Length": "string", "Properties": "object", "pattern": "string"}
"""How the name of a keyword ends -> the type of the values that it is for."""


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "") -> list[str]:
    """Return where a value breaks a schema; a keyword that is not known here raises ``KeyError``.

    Args:
        value: Plain JSON values.
        schema: Any schema within ``root``.
        root: The whole, with ``$defs``.
        at: Where the value stands.
    """
    found = []
    for keyword, wanted in schema.items():
        if keyword in ANNOTATIONS:
            continue
        if keyword == "$ref":
            found += faults(value, root["$defs"][wanted.removeprefix("#/$defs/")], root, at)
        elif keyword == "anyOf":
            found += [f"{at}: fits no choice"] if all(faults(value, choice, root, at) for choice in wanted) else []
        elif keyword in PARTS:
            for name, item, inner in _inner(keyword, value, schema):
                place = f"{at}{name}"
                found += [f"{place}: unknown"] if inner is False else faults(item, inner, root, place)
        elif _is_for(keyword, value) and not LIMITS[keyword](value, wanted):
            found.append(f"{at}: {keyword} {wanted}")
    return found


def _is_for(keyword: str, value: Any) -> bool:
    wanted = ["object"] if keyword == "required" else [kind for end, kind in FOR.items() if keyword.endswith(end)]
    return not wanted or LIMITS["type"](value, wanted[0])


def _inner(keyword: str, value: Any, schema: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield place, value and schema of each part that a keyword is about."""
    wanted = schema[keyword]
    if isinstance(value, dict) and keyword == "properties":
        yield from ((f".{name}", value[name], wanted[name]) for name in wanted if name in value)
    elif isinstance(value, dict) and keyword == "additionalProperties" and wanted is not True:
        known = [*map(re.escape, schema.get("properties", ())), *schema.get("patternProperties", ())]
        rest = [name for name in value if not any(re.search(f"^(?:{pattern})$", name) for pattern in known)]
        yield from ((f".{name}", value[name], wanted) for name in rest)
    elif isinstance(value, dict) and keyword == "patternProperties":
        for pattern, inner in wanted.items():
            yield from ((f".{name}", value[name], inner) for name in value if re.search(pattern, name))
    elif isinstance(value, dict) and keyword == "propertyNames":
        yield from ((f".{name}", name, wanted) for name in value)
    elif isinstance(value, list) and keyword == "prefixItems":
        yield from ((f"[{place}]", item, inner) for place, (item, inner) in enumerate(zip(value, wanted, strict=False)))
    elif isinstance(value, list) and keyword == "items" and wanted is not False:
        first = len(schema.get("prefixItems", ()))
        yield from ((f"[{place}]", item, wanted) for place, item in enumerate(value) if place >= first)
