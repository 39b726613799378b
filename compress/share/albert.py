"""A model of BERT's kind whose layers are shared, as a standard ALBERT.

Layers and head keep their weights. With embeddings of the hidden size so do the tables, and ALBERT's map behind them is
the identity: the same network. With E channels fewer than the hidden size H, ALBERT normalises at width E what BERT
normalises at width H. Let x̃ be the sum of a token's rows without its mean over the H channels (which BERT's norm takes
away in any case), V ``[H, E - 1]`` the directions that hold most of it, and B ``[E - 1, E]`` an orthonormal basis of
the vectors of length E whose mean is 0 (Helmert's). ALBERT gets the rows ``x̃ V B``, a norm with gain 1 and shift 0,
and the map ``c · sqrt(H / E) · diag(g) V B`` with bias b, g and b of BERT's norm. Its norm then subtracts nothing, and

    ALBERT: c · sqrt(H) g V Vᵀ x̃ / ‖Vᵀ x̃‖ + b        BERT: sqrt(H) g x̃ / ‖x̃‖ + b

so what is lost is what lies outside of V, and nothing if x̃ does not. ``c = sqrt(1 - lost)`` is the mean part of its
length that x̃ has inside of V.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from compress.share.embedding_directions import moment_of_sum, principal
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from teachers.anatomy.encoder import (
    embedding_parts,
    embedding_projection,
    family_of,
    first_position,
    head_parts,
    layers,
    max_tokens,
    new_config,
    reshaped,
    shape_of,
)
from teachers.anatomy.layer_changes import copy_layer
from teachers.taskmodel import TaskModel, build_taskmodel

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
"""What a config says beside its dimensions and keeps."""


def problems(student: TaskModel, embedding_size: int | None) -> list[str]:
    """Return why a model cannot become an ALBERT, one clause each."""
    family, shape = family_of(student.model), shape_of(student.model.config)
    if not family.post_norm or family.model_type == "albert":
        return [f"{family.model_type} does not compute as ALBERT does; leave out stock: true"]
    projected = embedding_projection(student.model) is not None
    if projected and embedding_size not in (None, shape.embedding_size):
        return [f"this {family.model_type} has embeddings of {shape.embedding_size} channels; leave embedding_size out"]
    usual: int = getattr(student.model.get_input_embeddings(), "size", shape.hidden_size)
    size = usual if embedding_size is None else embedding_size
    if size > shape.hidden_size:
        return [f"embedding_size {size} is above the hidden size {shape.hidden_size}; ALBERT's is at most that"]
    if kind_of(student.task.kind).masks and size < shape.hidden_size:
        return [f"ALBERT predicts words at the embedding size, BERT at the hidden size; write {shape.hidden_size}"]
    return []


def as_albert(student: TaskModel, groups: int, embedding_size: int | None = None) -> tuple[TaskModel, float]:
    """Return an ALBERT with the weights of a model whose layers are shared; the model stays as it is.

    A family without token types (DistilBERT) gets zeros for them. Where the hidden layer of a classification head has
    another activation than tanh, its weights are a start for training.

    Args:
        student: A model without ``problems``.
        groups: Groups of layers with the same weights; the first layer of each is copied.
        embedding_size: E; by default that of factorised embeddings if there are any, else the hidden size.

    Returns:
        The ALBERT, and the part of its embeddings' variance that is lost.

    Raises:
        UserError: If there are problems, or an earlier step has changed the shape of its layers.
    """
    found = problems(student, embedding_size)
    if found:
        raise UserError(*(f"share.layers: stock: {problem}" for problem in found))
    old = student.model
    shape = shape_of(old.config)
    usual = int(getattr(old.get_input_embeddings(), "size", shape.hidden_size))
    size = (shape.embedding_size if embedding_projection(old) is not None else embedding_size) or usual
    config = reshaped(new_config("albert", old.config, student.tokenizer), embedding_size=size)
    config.num_hidden_groups, config.inner_group_num = groups, 1
    for name in KEPT:
        setattr(config, name, getattr(old.config, name, getattr(config, name)))
    built = build_taskmodel(config, copy.deepcopy(student.tokenizer), student.task, name=student.name)
    with torch.no_grad():
        lost = _embeddings(student, built.model, size)
        for theirs, ours in zip(layers(old), layers(built.model), strict=True):
            _copy(old, theirs, built.model, ours)
        given, taken = head_parts(old), head_parts(built.model)
        for role in given.keys() & taken.keys():
            _fill(taken[role], given[role])
    return built, lost


def _copy(old: Any, theirs: nn.Module, new: Any, ours: nn.Module) -> None:
    try:
        copy_layer(old, theirs, new, ours)
    except KeyError as error:
        raise UserError(f"share.layers: stock: the layers have no {error}, which ALBERT has") from error


def _fill(part: Any, given: Any) -> None:
    """Copy what a part of the head has; a decoder tied to the tables has got its weight with them."""
    weight = getattr(given, "weight", None)
    if weight is not None and part.weight.shape == weight.shape:
        part.weight.copy_(weight)
    if part.bias is not None and given.bias is not None:
        part.bias.copy_(given.bias)


def _embeddings(student: TaskModel, new: Any, size: int) -> float:
    """Fill tables, norm and map of an ALBERT; return the part of the variance of embeddings that is lost."""
    old = student.model
    norm, tables = _tables(old, new)
    ours: Mapping[str, Any] = embedding_parts(new)
    into = embedding_projection(new)
    if into is None:
        raise TypeError("an ALBERT always has a map behind its tables")
    first = embedding_projection(old)
    lost = 0.0
    if first is not None or size == tables["words"].shape[1]:
        ours["norm"].load_state_dict(norm.state_dict())
        into.weight.copy_(torch.eye(size) if first is None else first.weight)
        into.bias.copy_(torch.zeros(1) if first is None else first.bias)
    else:
        width = tables["words"].shape[1]
        tables = {role: table - table.mean(dim=1, keepdim=True) for role, table in tables.items()}
        directions, lost = principal(moment_of_sum(list(tables.values()), _shares(student, tables)), size - 1)
        inner = directions @ _without_mean(size)
        tables = {role: table @ inner for role, table in tables.items()}
        scale = math.sqrt((1 - lost) * width / size)
        into.weight.copy_(scale * norm.weight.double()[:, None] * inner)
        into.bias.copy_(norm.bias)
        ours["norm"].weight.fill_(1)
        ours["norm"].bias.zero_()
    for role in ours.keys() - {"norm"}:
        ours[role].weight.zero_()
    for role, table in tables.items():
        ours[role].weight[: len(table)] = table.to(ours[role].weight.dtype)
    return lost


def _tables(old: Any, new: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return the norm of the old embeddings and the rows that the new tables stand for, ``[rows, H]`` in float64."""
    theirs: Mapping[str, Any] = embedding_parts(old)
    words, tokens = theirs["words"], min(max_tokens(old.config), max_tokens(new.config))
    start = first_position(old.config)
    tables = {
        "words": (words.product() if hasattr(words, "product") else words.weight).double(),
        "positions": theirs["positions"].weight[start : start + tokens].double().clone(),
    }
    if "token_types" in theirs:
        tables["token_types"] = theirs["token_types"].weight.double()
    if "task_types" in theirs:  # ERNIE's, of which every token has the first
        tables["positions"] += theirs["task_types"].weight[0].double()
    return theirs["norm"], tables


def _shares(student: TaskModel, tables: Mapping[str, Tensor]) -> list[Tensor | None]:
    """Return how often each row occurs: positions up to the task's longest input, one type for single texts."""
    first = {"positions": student.task.max_length}
    if not student.task.pair and not kind_of(student.task.kind).second_segment:
        first["token_types"] = 1
    found: list[Tensor | None] = []
    for role, table in tables.items():
        used = min(first.get(role, len(table)), len(table))
        found.append((torch.arange(len(table)) < used).double() / used)
    return found


def _without_mean(size: int) -> Tensor:
    """Return an orthonormal basis ``[size - 1, size]`` of the vectors whose mean is 0."""
    from scipy.linalg import helmert

    return torch.from_numpy(helmert(size))
