"""Recipes with ranges: any value may be ``{search: […]}`` or ``{search: {low: …, high: …}}``; a point chooses one each.

A range is named by the keys and places that lead to it. What is chosen from a list may hold ranges itself, which then
count alone where it is chosen; ``null`` leaves a step, or the field of a block, out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from compress.reading.wording import shown

RANGE = "search"
Point = dict[str, Any]
"""What each range of a template is: the place of an item in its list, or a number."""
Choose = Callable[[str, Any], Any]
"""Chooses for a range by its name and what stands under ``search``."""


def is_range(value: Any) -> bool:
    """Whether a value of a template is a range."""
    return isinstance(value, Mapping) and set(value) == {RANGE}


def resolve(template: Any, choose: Choose, name: str = "") -> Any:
    """Return plain values without ranges.

    Args:
        template: Plain values in which some are ranges.
        choose: Says what each range is.
        name: Of the value.

    Examples:
        >>> resolve({"ffn": {"search": [0.25, 0.5]}}, lambda name, items: 1)
        {'ffn': 0.5}
    """
    if is_range(template):
        held = template[RANGE]
        chosen = choose(name, held)
        return resolve(held[chosen], choose, _under(name, chosen)) if isinstance(held, Sequence) else chosen
    if isinstance(template, Mapping):
        found = {key: resolve(value, choose, _under(name, key)) for key, value in template.items()}
        return {key: value for key, value in found.items() if value is not None or template[key] is None}
    if isinstance(template, list):
        items = [(value, resolve(value, choose, _under(name, place))) for place, value in enumerate(template)]
        return [item for value, item in items if item is not None or not is_range(value)]
    return template


def points_of(template: Any, values: Any, name: str = "") -> Iterator[Point]:
    """Yield every point at which a template gives these plain values."""
    if is_range(template):
        held = template[RANGE]
        if not isinstance(held, Sequence):
            if isinstance(values, int | float) and held["low"] <= values <= held["high"]:
                yield {name: values}
            return
        for place, item in enumerate(held):
            for point in points_of(item, values, _under(name, place)):
                yield {name: place, **point}
    elif isinstance(template, Mapping) and isinstance(values, Mapping):
        names = [*template, *(key for key in values if key not in template)]
        parts = [(template.get(key), values.get(key), _under(name, key)) for key in names]
        yield from _together(parts)
    elif isinstance(template, list) and isinstance(values, list):
        yield from _in_order(template, values, name)
    elif template == values:
        yield {}


def _together(parts: Sequence[tuple[Any, Any, str]]) -> Iterator[Point]:
    """Yield the points at which every template gives its values."""
    if not parts:
        yield {}
        return
    (template, values, name), *rest = parts
    for point in points_of(template, values, name):
        for others in _together(rest):
            yield point | others


def _in_order(templates: list[Any], values: list[Any], name: str, place: int = 0) -> Iterator[Point]:
    """Yield the points at which a list, in which ranges may give nothing, is the list of these values."""
    if place == len(templates):
        if not values:
            yield {}
        return
    one, own = templates[place], _under(name, place)
    if is_range(one):
        for point in points_of(one, None, own):
            yield from (point | others for others in _in_order(templates, values, name, place + 1))
    if values:
        for point in points_of(one, values[0], own):
            yield from (point | others for others in _in_order(templates, values[1:], name, place + 1))


def range_problems(template: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Find ranges that hold nothing to choose from.

    Yields:
        Name of the range and what is wrong.
    """
    if is_range(template):
        held = template[RANGE]
        numbers = isinstance(held, Mapping) and set(held) == {"low", "high"}
        if numbers and all(isinstance(end, int | float) for end in held.values()) and held["low"] < held["high"]:
            return
        if not isinstance(held, list) or not held:
            yield (
                name,
                f"got {shown(held)}, must be a list of values, or {{low: …, high: …}} with the lower number first",
            )
            return
        template = held
    items = (
        template.items() if isinstance(template, Mapping) else enumerate(template) if isinstance(template, list) else ()
    )
    for key, value in items:
        yield from range_problems(value, _under(name, key))


def _under(name: str, key: str | int) -> str:
    return f"{name}.{key}" if name else str(key)
