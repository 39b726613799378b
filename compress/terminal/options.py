"""Checks that options of several commands share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from eval.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from eval.ranking.vector_index import IndexForm

Block = TypeVar("Block", bound="BaseModel")


def finite(value: float | None) -> float | None:
    """Return a number that an option was given; NaN and infinities, which bounds let through, are refused."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"got {value}, must be a finite number")
    return value


def index_forms(given: Sequence[str]) -> list[IndexForm]:
    """Return the forms of an index that ``--index`` was given; a word alone says how vectors are held.

    Raises:
        UserError: With every error of all of them.
    """
    from eval.ranking.vector_index import IndexForm

    found: list[IndexForm] = []
    problems: list[str] = []
    for text in given:
        try:
            found.append(block_of(IndexForm, text if ":" in text else f"vectors: {text}", "--index"))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(*problems)
    return found


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
