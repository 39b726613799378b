"""A loss on weights: a teacher's tensors and a student's, compared through linear maps that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from teachers.anatomy.axes import Axis, tensor_axes
from teachers.anatomy.encoder import head_parts, layer_names, word_embeddings
from teachers.taskmodel import TaskModel

Direction = Literal["down", "up"]
Reduction = Literal["sum", "mean"]


def projected(weight: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Return ``left · weight · right``; what is None is left out.

    Args:
        weight: ``[m, n]``, or a vector ``[m]``, which has a left side alone.
        left: ``[p, m]``.
        right: ``[n, q]``.
    """
    weight = weight if left is None else left @ weight
    return weight if right is None else weight @ right


def weight_distance(weight: Tensor, target: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Return the squared Frobenius norm of ``left · weight · right - target`` (Zhao et al. 2019, arXiv 1909.11687).

    Args:
        weight: ``[m, n]``, or a vector ``[m]``.
        target: ``[p, q]``, or ``[p]``.
        left: ``[p, m]``; None where ``m`` is ``p``.
        right: ``[n, q]``; None where ``n`` is ``q``.

    Examples:
        >>> import torch
        >>> weight_distance(torch.ones(2, 3), torch.zeros(1, 3), torch.tensor([[0.5, 0.5]]), None).item()
        3.0
    """
    return (projected(weight, left, right) - target).square().sum()


@dataclass(frozen=True)
class Pair:
    """A tensor of the teacher and its counterpart.

    Attributes:
        teacher: A parameter.
        student: A parameter.
        left: What the first axis runs over (``hidden``, ``ffn``, ``embedding``), which is mapped even where both are
            of one length; None for a vocabulary, positions and the like, whose entries are compared one by one.
        right: The same of the second axis.
        rows: Rows of the teacher's tensor that the student has too; None for all.
    """

    teacher: nn.Parameter
    student: nn.Parameter
    left: str | None
    right: str | None
    rows: Tensor | None = None


def pair_weights(student: TaskModel, teacher: TaskModel, layers: Sequence[int], union: Tensor) -> list[Pair]:
    """Return every tensor of the student that has an axis to project, with its counterpart.

    The channels of all heads of a layer count as hidden channels: there are as many. Word embeddings are compared
    piece by piece. Biases over the vocabulary have no axis to project and are left out.

    Args:
        student: Of the teacher's family, with the same parts.
        teacher: Its word embeddings have the rows ``union``.
        layers: Teacher layer of every student layer.
        union: Teacher row of every student piece, int64.
    """
    names = layer_names(teacher.model)
    prefixes = {own: names[layer] for own, layer in zip(layer_names(student.model), layers, strict=True)}
    parameters = dict(teacher.model.named_parameters(remove_duplicate=False))
    axes = tensor_axes(teacher.model)
    decoder = head_parts(student.model).get("mlm_decoder")
    tables = {id(word_embeddings(student.model).weight), id(getattr(decoder, "weight", None))}
    pairs = []
    for name, parameter in student.model.named_parameters():
        layer = next((own for own in prefixes if name.startswith(f"{own}.")), None)
        other = name if layer is None else prefixes[layer] + name.removeprefix(layer)
        sides = {axis.dim: _kind(axis) for axis in axes[other]}
        if sides:
            rows = union if id(parameter) in tables else None
            pairs.append(Pair(parameters[other], parameter, sides.get(0), sides.get(1), rows))
    return pairs


def _kind(axis: Axis) -> str:
    unit = axis.units[0].rpartition(":")[2]
    return "hidden" if unit in ("q", "k", "v") else unit


class SharedProjections(nn.Module):
    """The maps in one direction, for all layers and kinds of weights alike: one pair of maps for each kind of axis.

    They start with orthonormal rows or columns, so that no direction is stretched.

    Args:
        pairs: What is compared.
        direction: ``down`` maps the teacher's weights to the student's, ``up`` the student's to the teacher's.
        reduction: ``sum`` over all entries of all pairs, or their ``mean``.
    """

    def __init__(self, pairs: Sequence[Pair], direction: Direction, reduction: Reduction = "sum") -> None:
        super().__init__()
        self.pairs, self.direction, self.reduction = pairs, direction, reduction
        self.left, self.right = nn.ParameterDict(), nn.ParameterDict()
        for pair in pairs:
            given, wanted = self._ends(pair)
            if pair.left is not None and pair.left not in self.left:
                self.left[pair.left] = _orthonormal(wanted.shape[0], given.shape[0])
            if pair.right is not None and pair.right not in self.right:
                self.right[pair.right] = _orthonormal(given.shape[1], wanted.shape[1])

    def forward(self) -> Tensor:
        """Return the squared distances of all pairs in one number."""
        found, entries = [], 0
        for pair in self.pairs:
            given, wanted = self._ends(pair)
            left = None if pair.left is None else self.left[pair.left]
            right = None if pair.right is None else self.right[pair.right]
            with torch.autocast(given.device.type, enabled=False):
                found.append(weight_distance(given, wanted, left, right))
            entries += wanted.numel()
        total = torch.stack(found).sum()
        return total if self.reduction == "sum" else total / entries

    def _ends(self, pair: Pair) -> tuple[Tensor, Tensor]:
        teacher = pair.teacher if pair.rows is None else pair.teacher[pair.rows.to(pair.teacher.device)]
        return (teacher, pair.student) if self.direction == "down" else (pair.student, teacher)


def _orthonormal(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(nn.init.orthogonal_(torch.empty(rows, columns)))
