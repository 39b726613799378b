"""Magnitude pruning: the smallest weights become 0, at once or little by little while the model is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from compress.companion import Accompanied
from compress.prune.gates import Gated, gated
from compress.prune.magnitude_ranking import cubic, keep_in_groups, keep_largest, keep_largest_together
from compress.prune.matrices import mask_away, prunable, sparsity, unmask, with_tied
from compress.surgery import Surgery
from compress.technique import PARTS, Inputs, Measure, Outcome, Part
from compress.traits import UNPRUNED, Trait
from teachers.anatomy.parts import exchange
from teachers.taskmodel import TaskModel
from teachers.training.config import Training

DEFAULT_SPARSITY = 0.4


class MagnitudePruning(Surgery):
    """Set the smallest weights of each matrix to 0, and train the others on.

    ``W' = M · W`` with ``M = 0`` for the ``round(s · numel)`` smallest ``|w|``. ``gradual``: while the model is
    trained, ``s(t) = s_f - s_f · (1 - (t - t0) / (t1 - t0))³`` rises from 0 to the sparsity ``s_f``, M is chosen anew
    every ``every`` steps, and a weight whose mask comes back is where its last momentum and the weight decay have left
    it. ``once``: M is chosen before the training. Either way M stays as it is from then on, through every later step:
    steps that train or round the weights keep the zeros, a second pruning adds to them, and steps that would make new
    weights of them are refused.

    Attributes:
        sparsity: Share of the weights of the matrices that is 0 at the end, what an earlier step has pruned included.
            Default 0.4, up to which the paper found no loss.
        pattern: ``n:m``, such as ``2:4``: of every m neighbours of a row the n largest stay; in the place of sparsity.
        ranking: ``local``: each matrix gets the same sparsity, as in the paper; ``global``: all are ranked together.
        parts: What is pruned: ``layers`` (their linear layers), ``embeddings`` (the embedding matrix, but for BART's,
            which scales its rows), ``pooler``. All, as in the paper.
        schedule: ``gradual`` as in the paper, or ``once``.
        begin: t0 of ``gradual``, as a part of all steps.
        until: t1, likewise. The paper takes 10,000 of 100,000 steps of continued pre-training; a fine-tuning is
            shorter, so here it is half of it.
        every: Updates between two choices of M. Default 100, the habit of the authors' library.
        recover: Whether the model is trained; without it the schedule must be ``once``, and nothing is learned.
        stock: Whether the zeros are stored as plain weights of a standard model, in full size. Nothing then keeps them
            0 in a later training.
        training: Defaults as in the paper: 6 epochs, rate 2e-5, batches of 32.

    Needs:
        Training examples, and what the objective needs; nothing with ``recover: false``.

    Reduces:
        Non-zeros, and bytes of the saved folder: one bit a weight and the weights that are left, which is less than the
        dense matrix above a sparsity of 1/32. Codes of 8, 4, 3 or 2 bits that a later step makes of the weights are
        saved likewise, which is less above 1/8, 1/4, 1/3 and 1/2. With ``stock`` non-zeros alone.

    Limits:
        Nothing gets faster: CPUs and GPUs multiply the zeros too, 2:4 sparse kernels of some GPUs apart, which are not
        used here. An ONNX export holds the zeros in full. ``sparsity`` counts the weights of the pruned matrices, not
        of the model: ``facts`` has both. A weight that is exactly 0 before counts as pruned.

    Source:
        Gordon, Duh, Andrews 2020, arXiv 2002.08307; Zhu, Gupta 2017, arXiv 1710.01878 (schedule).
    """

    name: ClassVar[str] = "prune.magnitude"
    version: ClassVar[int] = 2
    reduces: ClassVar[frozenset[Measure]] = frozenset({"nonzero", "bytes"})
    removes: ClassVar[frozenset[Trait]] = frozenset({"standard", *UNPRUNED.values()})
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Gordon, Duh, Andrews 2020, arXiv 2002.08307; Zhu, Gupta 2017, arXiv 1710.01878 (schedule)"

    sparsity: float | None = Field(default=None, ge=0, lt=1)
    pattern: str | None = Field(default=None, pattern=r"^\d{1,3}:\d{1,3}$")
    ranking: Literal["local", "global"] = "local"
    parts: tuple[Part, ...] = Field(default=PARTS, min_length=1)
    schedule: Literal["gradual", "once"] = "gradual"
    begin: float = Field(default=0.0, ge=0, lt=1)
    until: float = Field(default=0.5, gt=0, le=1)
    every: int = Field(default=100, ge=1)
    stock: bool = False
    training: Training = Training(epochs=6, learning_rate=2e-5, batch_size=32)

    @model_validator(mode="after")
    def _fits_together(self) -> MagnitudePruning:
        if self.pattern is not None:
            if self.sparsity is not None or self.ranking == "global":
                raise ValueError("a pattern says how much goes from where; leave out sparsity and ranking")
            if not 1 <= self.kept_of[0] <= self.kept_of[1]:
                raise ValueError(f"pattern {self.pattern}: must keep 1 to all of each group, such as 2:4")
        if not self.recover and self.schedule == "gradual":
            raise ValueError(
                "without recovery fine-tuning nothing is trained, so nothing can be gradual; write schedule: once"
            )
        if self.begin >= self.until:
            raise ValueError(f"begin ({self.begin:g}) must be before until ({self.until:g})")
        return self

    @property
    def kept_of(self) -> tuple[int, int]:
        """How many of how many neighbours a pattern keeps."""
        kept, _, of = (self.pattern or "1:1").partition(":")
        return int(kept), int(of)

    @property
    def target(self) -> float:
        """The sparsity at the end."""
        kept, of = self.kept_of
        return 1 - kept / of if self.pattern else DEFAULT_SPARSITY if self.sparsity is None else self.sparsity

    def removed(self) -> frozenset[Trait]:
        """Return that the parts are pruned and no standard class keeps their zeros; with ``stock`` nothing does."""
        kept = self.target and not self.stock
        return frozenset[Trait]({"standard", *(UNPRUNED[part] for part in self.parts)}) if kept else frozenset()

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse parts that this model has not, and patterns that do not divide the rows."""
        found = super().check(student, inputs)
        matrices: dict[str, Any] = prunable(student.model, self.parts)
        if not matrices:
            found.append(f"{self.name}: this model has nothing to prune in {', '.join(self.parts)}; choose other parts")
        group = self.kept_of[1]
        uneven = [path for path, module in matrices.items() if module.weight.shape[1] % group]
        if uneven:
            found.append(
                f"{self.name}: pattern {self.pattern}: {group} does not divide the rows of {len(uneven)} matrices, "
                f"such as {uneven[0]} with {matrices[uneven[0]].weight.shape[1]}; choose a smaller group or other parts"
            )
        return found

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Prune and train."""
        modules: dict[str, Any] = prunable(student.model, self.parts) if self.target else {}
        facts: dict[str, Any] = {}
        if self.schedule == "once":
            keep = self.masks([module.weight for module in modules.values()], self.target)
            mask_away(student.model, dict(zip(modules.values(), keep, strict=True)))
        if self.recover:
            facts["history"] = self._train(student, inputs, generator, list(modules.values()))
        if self.stock:
            unmask(student.model)
        masked = [] if self.stock else list(modules)
        return Outcome(student, {"masked": masked, **sparsity(student.model, modules), **facts})

    def _train(
        self, student: TaskModel, inputs: Inputs, generator: torch.Generator, modules: list[nn.Module]
    ) -> list[dict[str, Any]]:
        objective = self.make_objective(inputs)
        if self.schedule == "once" or not modules:
            return self.train(student, inputs, objective, generator)
        places = with_tied(student.model, modules)
        gates = {module: gated(module) for users in places for module in users}
        exchange(student.model, gates)
        masks = MaskSchedule(self, [[gates[module] for module in users] for users in places])
        history = self.train(student, inputs, Accompanied(objective, masks), generator)
        mask_away(student.model, {gates[module]: gates[module].mask for module in modules})
        return history

    def sparsity_at(self, step: int, total: int) -> float:
        """Return s(t) before update ``step`` of ``total``."""
        first, last = self.pruning_steps(total)
        return cubic(0.0, self.target, (step - first) / max(last - first, 1)) if step < last else self.target

    def pruning_steps(self, total: int) -> tuple[int, int]:
        """Return t0 and t1 in optimizer steps."""
        return math.floor(self.begin * total), math.ceil(self.until * total)

    def masks(self, weights: Sequence[Tensor], share: float) -> list[Tensor]:
        """Return True where a weight stays, for each matrix, at this sparsity."""
        sizes = [weight.detach().abs() for weight in weights]
        if self.pattern is not None:
            group = self.kept_of[1]
            return [keep_in_groups(size, group - round(share * group), group) for size in sizes]
        if self.ranking == "global" and sizes:
            count = sum(size.numel() for size in sizes)
            return keep_largest_together(sizes, count - round(share * count))
        return [keep_largest(size, size.numel() - round(share * size.numel())) for size in sizes]


class MaskSchedule(nn.Module):
    """Chooses the masks of a gradual pruning anew while the network is trained.

    Args:
        config: The schedule.
        gates: For each weight the layers that use it.
    """

    def __init__(self, config: MagnitudePruning, gates: list[list[Gated]]) -> None:
        super().__init__()
        self.config, self.gates = config, gates  # a plain list: the network has these layers

    def at_step(self, step: int, total: int) -> bool:
        """Choose masks if it is time; return whether they are the last ones."""
        first, last = self.config.pruning_steps(total)
        if first <= step <= last and ((step - first) % self.config.every == 0 or step == last):
            weights = [users[0].weight for users in self.gates]
            for users, mask in zip(
                self.gates, self.config.masks(weights, self.config.sparsity_at(step, total)), strict=True
            ):
                for user in users:
                    user.mask.copy_(mask)
        return step >= last
