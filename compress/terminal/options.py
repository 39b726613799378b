"""Checks that options of several commands share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from eval.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel

Block = TypeVar("Block", bound="BaseModel")


def finite(value: float | None) -> float | None:
    """Return a number that an option was given; NaN and infinities, which bounds let through, are refused."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"got {value}, must be a finite number")
    return value


def block_of(model: type[Block], text: str, option: str, defaults: Mapping[str, Any] | None = None) -> Block:
    """Return the block that the text of an option makes: fields as in a recipe, ``layers: 4, hidden: 256``.

    Args:
        model: What it has to become.
        text: What was given.
        option: What messages call it.
        defaults: Values of fields that the text leaves out.

    Raises:
        UserError: With every error of the text.
    """
    from compress.reading.block_reader import BlockReader
    from compress.reading.yaml_places import read_yaml

    document = read_yaml(f"{{{text}}}", option)
    reader = BlockReader(document)
    values = document.data if isinstance(document.data, dict) else {}
    found = reader.block(model, {**(defaults or {}), **values}, (), option)
    if found is None or reader.problems:
        raise UserError(*(problem.removeprefix(f"{option}:1: ") for problem in reader.problems))
    return found
