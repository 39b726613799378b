"""Movement pruning: scores that are learned with the weights say which weights go, singly or in blocks."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from compress.companion import Accompanied
from compress.objective import RecoveryTechnique
from compress.prune.matrices import mask_away, prunable, sparsity
from compress.prune.movement_scores import Method, ScoredLinear, scheduled_value
from compress.technique import Inputs, Measure, Need, Outcome
from compress.traits import Trait
from teachers.anatomy.family import PART_AXES
from teachers.anatomy.parts import exchange, matrix_roles
from teachers.taskmodel import TaskModel
from teachers.training.config import Training
from teachers.training.learning_rate import warmup_steps


class MovementPruning(RecoveryTechnique):
    """Learn a score for every weight of the layers while fine-tuning, and set the weights of low score to 0.

    ``W' = M(S) · W``. ``hard``: M = 1 for the ``v · numel`` largest scores of each matrix. ``soft``:
    ``M = 1[sigmoid(S) > tau]``, and ``lambda · mean of sigmoid(S)`` over all scores is added to the loss. The gradient
    goes straight through M: ``dL/dS = dL/dW' · W``, so scores rise where weights move away from zero. They begin at 0.

    v falls from 1 to ``keep``, tau rises from 0 to ``threshold``: ``end + (start - end) · (1 - progress)³``, after
    ``waits`` times the warm-up of the learning rate, until ``cools`` times the warm-up before the end. lambda rises
    with tau: ``penalty · tau(t) / tau``. At the end the masks are laid over the weights, for every later step too. What
    an earlier step has pruned stays 0 and ranks last, so it counts among the weights that are not kept.

    Attributes:
        method: ``hard`` (MvP) or ``soft`` (SMvP).
        keep: Share of each matrix that ``hard`` keeps. Default 0.15 as in the paper.
        threshold: tau of ``soft``. Default 0.1 as in the paper.
        penalty: lambda of ``soft``. Default 400, the authors' example for SQuAD; more of it prunes more.
        block: Rows and columns that have one score in attention matrices, such as [32, 32]; the feed-forward networks
            then have one for each neuron: rows of the first matrix, columns of the second. None scores single weights.
        score_rate: Peak learning rate of the scores. Default 1e-2 as in the paper.
        waits: Warm-ups for which nothing is pruned. Default 1 as in the paper.
        cools: Warm-ups for which the last value is held. Default 2 as in the paper.
        training: Defaults as in the paper: 10 epochs of 16, rate 3e-5, a tenth of the optimizer steps to warm up (5,400
            of about 55,000), the embedding matrix frozen.

    Needs:
        Training examples, and what the objective needs; the paper's best results have ``distill.logits`` as objective.

    Reduces:
        Non-zeros, and bytes of the saved folder, where pruned weights take one bit.

    Limits:
        Nothing gets faster: the zeros are multiplied too, and an ONNX export holds them in full. Scored singly,
        weights want tens of thousands of steps (the paper has 55,000): in 626 and 1,252 ours collapsed, while 1,252
        were enough for blocks of 32 x 32. With ``block`` whole heads and neurons may end up empty; they stay in
        place, masked: ``prune.structured`` takes them out. Above 70 % of weights kept ``prune.magnitude`` is the better
        one. ``keep`` counts the weights of the layers' matrices: ``facts`` has both.

    Source:
        Sanh, Wolf, Rush 2020, arXiv 2005.07683; Lagunas et al. 2021, arXiv 2109.04838 (blocks).
    """

    name: ClassVar[str] = "prune.movement"
    version: ClassVar[int] = 3
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    reduces: ClassVar[frozenset[Measure]] = frozenset({"nonzero", "bytes"})
    removes: ClassVar[frozenset[Trait]] = frozenset({"standard", "unpruned_layers"})
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Sanh, Wolf, Rush 2020, arXiv 2005.07683; Lagunas et al. 2021, arXiv 2109.04838 (blocks)"

    method: Method = "hard"
    keep: float = Field(default=0.15, gt=0, le=1)
    threshold: float = Field(default=0.1, gt=0, lt=1)
    penalty: float = Field(default=400.0, ge=0)
    block: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = None
    score_rate: float = Field(default=1e-2, gt=0)
    waits: float = Field(default=1.0, ge=0)
    cools: float = Field(default=2.0, ge=0)
    training: Training = Training(
        epochs=10, learning_rate=3e-5, batch_size=16, warmup_steps=0.1, freeze=("embeddings",)
    )

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse blocks that do not divide the attention matrices, and a schedule without time to prune."""
        found = super().check(student, inputs)
        warm, most = self.training.warmup_steps, self.training.max_steps
        if (self.waits + self.cools) * warm >= (1 if warm < 1 else most or math.inf):
            said = f"{warm:g} of all optimizer steps" if warm < 1 else f"{warm:g} of at most {most} optimizer steps"
            found.append(
                f"{self.name}: waits and cools together are {self.waits + self.cools:g} warm-ups of {said} each, which "
                "leaves no time to prune; lower one of them, or training.warmup_steps"
            )
        matrices: dict[str, Any] = prunable(student.model, ["layers"])
        for path, block in self.blocks(student.model).items():
            sizes = tuple(matrices[path].weight.shape)
            if sizes[0] % block[0] or sizes[1] % block[1]:
                found.append(
                    f"{self.name}: block {list(block)} does not divide {path}, which is {sizes[0]} x {sizes[1]}; "
                    "choose a smaller one"
                )
                break
        if not matrices:
            found.append(
                f"{self.name}: this model has no linear layers to prune; put it before the step that took them"
            )
        return found

    def blocks(self, network: Any) -> dict[str, tuple[int, int]]:
        """Return for the path of each matrix the rows and columns that have one score."""
        roles, found = matrix_roles(network), {}
        matrices: dict[str, Any] = prunable(network, ["layers"])
        for path in matrices:
            rows, columns = matrices[path].weight.shape
            first, second = PART_AXES.get(roles.get(path, "").partition(".")[0], ". .").split(" ")
            if self.block is None:
                found[path] = (1, 1)
            elif first.startswith("ffn"):  # a row is a neuron
                found[path] = (1, columns)
            else:
                found[path] = (rows, 1) if second == "ffn" else self.block
        return found

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Train weights and scores, then lay the masks over the weights."""
        network = student.model
        blocks = self.blocks(network)
        scored = {
            path: ScoredLinear(network.get_submodule(path), block, self.method, self.score_rate).train(network.training)
            for path, block in blocks.items()
        }
        exchange(network, {network.get_submodule(path): layer for path, layer in scored.items()})
        scores = MovementSchedule(self, list(scored.values()))
        history = self.train(student, inputs, Accompanied(self.make_objective(inputs), scores), generator)
        scores.at_step(1, 1)  # the best epoch's scores may have come back
        mask_away(network, {layer: layer.keep() for layer in scored.values()})
        return Outcome(student, {"masked": list(blocks), **sparsity(network, blocks), "history": history})

    def value(self, step: int, total: int) -> float:
        """Return v (``hard``) or tau (``soft``) before update ``step`` of ``total``."""
        start, end = (1.0, self.keep) if self.method == "hard" else (0.0, self.threshold)
        return scheduled_value(start, end, step, total, warmup_steps(self.training, total), self.waits, self.cools)

    def settled(self, step: int, total: int) -> bool:
        """Whether the value is the last one."""
        return step >= total or step > total - self.cools * warmup_steps(self.training, total)


class MovementSchedule(nn.Module):
    """Chooses the masks before every optimizer step, and gives the term that pushes scores down.

    Args:
        config: The schedule.
        layers: Those whose masks it chooses.
    """

    def __init__(self, config: MovementPruning, layers: list[ScoredLinear]) -> None:
        super().__init__()
        self.config, self.layers = config, layers  # a plain list: the network has these layers
        self.weight = 0.0

    def at_step(self, step: int, total: int) -> bool:
        """Choose masks; return whether the schedule has its last value."""
        value = self.config.value(step, total)
        for layer in self.layers:
            layer.choose(value)
        self.weight = self.config.penalty * value / self.config.threshold
        return self.config.settled(step, total)

    def terms(self) -> dict[str, Tensor]:
        """Return ``{"scores": lambda · mean of sigmoid(S)}`` over all scores for the soft method, else nothing."""
        if self.config.method == "hard":
            return {}
        return {"scores": self.weight * mean_sigmoid([layer.scores for layer in self.layers])}


def mean_sigmoid(scores: list[Tensor]) -> Tensor:
    """Return the mean of sigmoid over all scores of all matrices."""
    return torch.stack([one.sigmoid().sum() for one in scores]).sum() / sum(one.numel() for one in scores)
