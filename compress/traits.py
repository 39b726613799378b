"""Which step can follow which: each says what it needs of the model that comes in, and what it takes away from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

Trait = Literal[
    "trainable",
    "open",
    "transformer_layers",
    "one_stack",
    "standard",
    "linear_layers",
    "float_embeddings",
    "all_layers",
    "all_heads",
    "unshared_layers",
    "unpruned_layers",
    "unpruned_embeddings",
    "unpruned_pooler",
]
"""What a model can have, and a step can need or take away.

``trainable``: its weights can be updated. ``open``: a step may follow at all. ``transformer_layers``: it is an encoder
made of them. ``one_stack``: it is an encoder or a decoder, not both. ``standard``: a standard Hugging Face class holds
it. ``linear_layers``: the layers are made of ordinary float ones. ``float_embeddings``: the rows of the embedding
matrix are floats, not packed codes. ``all_layers`` and ``all_heads``: none was taken out. ``unshared_layers``: no two
layers have weights in common. ``unpruned_…``: no weight of this part is pruned, which would have to stay 0.
"""
TRAITS: tuple[Trait, ...] = get_args(Trait)
UNPRUNED: Mapping[str, Trait] = MappingProxyType(
    {"layers": "unpruned_layers", "embeddings": "unpruned_embeddings", "pooler": "unpruned_pooler"}
)
"""Part -> what a model has while no weight of this part is pruned."""
GENERAL: Mapping[Trait, str] = MappingProxyType(
    {
        "trainable": "trains, but {other} leaves weights that cannot be trained; put it before",
        "open": "comes after {other} which must be the last step; put it before",
        "transformer_layers": "works on transformer layers, but {other} makes {makes}; put it before",
        "one_stack": "works on an encoder or a decoder by itself, but {other} makes {makes}; put it before",
    }
)
"""What is wrong where one of these is missing; a step that needs another trait says itself why, and what to do."""


@dataclass(frozen=True)
class Handover:
    """What a step needs of the model that comes in, and what the model that it hands on lacks.

    Attributes:
        name: Name of the technique, or of the model that a recipe starts from.
        needs: Trait -> why the step cannot do without, and what to do; nothing for those of ``GENERAL``.
        takes: Traits that the model does not have afterwards.
        makes: What the model is afterwards, if it has no transformer layers any more, such as ``a BiLSTM``.
    """

    name: str
    needs: Mapping[Trait, str] = field(default_factory=dict)
    takes: frozenset[Trait] = frozenset()
    makes: str = ""


@dataclass(frozen=True)
class OrderProblem:
    """Why a step cannot follow another one, or cannot work on the model that a recipe starts from.

    Attributes:
        trait: What is missing.
        reason: What is wrong and what to do.
        sentence: The same with both named.
    """

    trait: Trait
    reason: str
    sentence: str


def order_problems(
    steps: Sequence[tuple[int, Handover]], model: Handover | None = None
) -> Iterator[tuple[int, OrderProblem]]:
    """Find steps that need what an earlier step has taken away, or what the model never had.

    Of several traits that one step lacks, the one that stands first in ``TRAITS`` is told for each earlier step, and
    each trait for the earliest step that took it.

    Args:
        steps: What each step needs and takes, with its place among the steps, counted from 0.
        model: What the model lacks that the recipe starts from.

    Yields:
        The place of the later step and what is wrong.
    """
    earlier = [] if model is None else [(-1, model)]
    for index, step in steps:
        told: set[Trait] = set()
        for number, before in earlier:
            lacking = [trait for trait in TRAITS if trait in step.needs and trait in before.takes and trait not in told]
            if lacking:
                yield index, _problem(index, step, number, before, lacking[0])
            told.update(lacking)
        earlier.append((index, step))


def _problem(index: int, step: Handover, number: int, before: Handover, trait: Trait) -> OrderProblem:
    where, reason = f"step {index + 1}, {step.name}", step.needs[trait]
    if trait in GENERAL:
        reason = GENERAL[trait].format(other="the other", makes=before.makes)
        told = GENERAL[trait].format(other=f"step {number + 1}, {before.name},", makes=before.makes)
    else:
        told = f"cannot follow step {number + 1}, {before.name}: {reason}"
    if number < 0:
        without = {
            "one_stack": f"works on an encoder or a decoder by itself, and {before.name} is both",
        }.get(trait, f"works on transformer layers, and {before.name} has none")
        told = without if trait in GENERAL else f"cannot follow what has pruned {before.name}: {reason}"
    return OrderProblem(trait, reason, f"{where}: {told}")
