"""``--set path=value``: values of a recipe given on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compress.reading.wording import shown
from compress.reading.yaml_places import DEEPEST, Document, Location, read_yaml
from eval.errors import UserError, did_you_mean, quantity


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Change a document in place; what is wrong with an override goes to the document's problems.

    Args:
        document: A recipe whose top is a mapping.
        overrides: Such as ``training.epochs=1``, ``steps.0.temperature=3``, ``steps.distill.logits.temperature=3``;
            the value is YAML.
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        source = f"--set {override}"
        keys = path.strip().split(".")
        if len(keys) > DEEPEST:
            document.problems.append(f"{source}: a path has at most {DEEPEST} parts")
            continue
        if not equals or not all(keys):
            document.problems.append(f"{source}: write path=value, such as training.epochs=1")
            continue
        try:
            value = read_yaml(text, source)
            document.problems += [problem.replace(f"{source}:1: ", f"{source}: ", 1) for problem in value.problems]
            location = _set(document.data, keys, value.data)
        except UserError as error:
            sentences = [
                problem.removeprefix(source).removeprefix(":1").removeprefix(": ") for problem in error.problems
            ]
            document.problems += [f"{source}: {sentence}" for sentence in sentences]
            continue
        document.places = {at: where for at, where in document.places.items() if at[: len(location)] != location}
        document.places[location] = source


def _set(data: Any, keys: Sequence[str], value: Any) -> Location:
    """Put ``value`` into ``data`` and return where."""
    location: Location = ()
    keys = list(keys)
    while True:
        data, step = _step_in(data, location, keys)
        location += step
        if not keys:
            raise UserError(f"{'.'.join(map(str, location))} names a whole step; name one of its fields")
        key, used = _next_key(data, location, keys)
        keys = keys[used:]
        location += (key,)
        if not keys:
            data[key] = value
            return location
        if isinstance(data, dict) and data.get(key) is None:
            data[key] = {}
        data[key] = _opened(data[key], location)
        data = data[key]


def _step_in(data: Any, location: Location, keys: list[str]) -> tuple[Any, Location]:
    """Go from an item of a list such as ``{distill.logits: {…}}`` into its fields; drops the name if it is given."""
    inside = len(location) == 2 and location[0] in ("steps", "export")
    if not (inside and isinstance(data, dict) and len(data) == 1):
        return data, ()
    (name,) = data
    parts = name.split(".")
    if keys[: len(parts)] == parts:
        del keys[: len(parts)]
    if data[name] is None:
        data[name] = {}
    if not isinstance(data[name], dict):
        raise UserError(f"{name} has no fields that could be set")
    return data[name], (name,)


def _opened(value: Any, location: Location) -> Any:
    """Return a container to go into; a step given by its bare name becomes a mapping."""
    if isinstance(value, str) and len(location) == 2 and location[0] in ("steps", "export"):
        return {value: {}}
    if not isinstance(value, (dict, list)):
        raise UserError(f"{'.'.join(map(str, location))} is a single value and has no fields")
    return value


def _next_key(data: Any, location: Location, keys: list[str]) -> tuple[str | int, int]:
    """Return the key or index that comes next, and how many parts of the path it takes."""
    if isinstance(data, dict):
        for used in range(len(keys), 1, -1):
            if ".".join(keys[:used]) in data:
                return ".".join(keys[:used]), used
        return keys[0], 1
    if keys[0].isdecimal():
        if len(keys[0]) < 10 and int(keys[0]) < len(data):
            return int(keys[0]), 1
        raise UserError(
            f"{'.'.join(map(str, location))} has {quantity(len(data), 'item')}, counted from 0; there is no {keys[0]}"
        )
    return _by_name(data, location, keys)


def _by_name(items: list[Any], location: Location, keys: list[str]) -> tuple[int, int]:
    names = [next(iter(item), "") if isinstance(item, dict) else str(item) for item in items]
    where = ".".join(map(str, location))
    for used in range(len(keys), 0, -1):
        name = ".".join(keys[:used])
        if names.count(name) > 1:
            places = " or ".join(f"{where}.{i}" for i, other in enumerate(names) if other == name)
            raise UserError(f"{name} stands more than once in {where}; write {places}")
        if name in names:
            # The name itself is dropped on the way into the item.
            return names.index(name), used
    raise UserError(f"no {shown('.'.join(keys))} in {where}{did_you_mean('.'.join(keys), names)}")
