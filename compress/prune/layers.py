"""Whole layers are taken out; the rest stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator

from compress.layer_choice import Pick, choose_layers
from compress.technique import Inputs, Measure, Outcome, Technique

if TYPE_CHECKING:
    import torch

    from teachers.taskmodel import TaskModel


class LayerPruning(Technique):
    """Keep some layers of the encoder and drop the others, without training.

    ``h_out = f_k(… f_1(embeddings))`` over the kept layers alone, in their old order. Layers count from 0.

    Attributes:
        keep: The layers to keep, or None to choose by ``count``.
        count: How many layers to keep; more than there are keeps all.
        pick: How ``count`` layers are chosen: ``spread`` (with the first and the last, as DistilBERT's script does),
            ``stride`` (LayerDrop's every other), ``first`` or ``last``.

    Needs:
        Nothing. Heal the result with a distillation step.

    Reduces:
        Parameters, non-zeros, bytes, multiply-accumulates. ALBERT shares its layers, so only the last of these there.

    Limits:
        The score falls until the model is trained again.

    Source:
        Sanh et al. 2019, arXiv 1910.01108; Fan, Grave, Joulin 2020, arXiv 1909.11556.
    """

    name: ClassVar[str] = "prune.layers"
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "macs"})
    source: ClassVar[str] = "Sanh et al. 2019, arXiv 1910.01108; Fan, Grave, Joulin 2020, arXiv 1909.11556"

    keep: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    pick: Pick = "spread"

    @model_validator(mode="after")
    def _one_choice(self) -> LayerPruning:
        if self.keep is not None and self.count is not None:
            raise ValueError("give keep or count, not both")
        if (self.keep is not None and list(self.keep) != sorted(set(self.keep))) or self.keep == ():
            raise ValueError(f"keep must list layers once each and ascending, got {list(self.keep or ())}")
        return self

    def kept(self, total: int) -> tuple[int, ...]:
        """Return the layers that stay when there are ``total``; half of them if nothing was chosen."""
        if self.keep is not None:
            return self.keep
        return choose_layers(total, min(self.count or -(-total // 2), total), self.pick)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse layers that do not exist."""
        from teachers.encoder import layer_count

        del inputs
        total = layer_count(student.model)
        missing = [layer for layer in self.keep or () if layer >= total]
        if missing:
            return [f"{self.name}: the model has layers 0 to {total - 1}, so {missing} cannot be kept"]
        return []

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Cut; nothing is learned."""
        from teachers.encoder import layer_count

        del inputs, generator
        total = layer_count(student.model)
        kept = self.kept(total)
        structure = {"layers": list(kept)}
        dropped = [layer for layer in range(total) if layer not in kept]
        return Outcome(self.restore(student, structure), structure, {"dropped": dropped})

    def restore(self, student: TaskModel, structure: dict[str, Any]) -> TaskModel:
        """Keep the layers that ``structure`` lists."""
        from teachers.encoder import replace_layers

        replace_layers(student.model, structure["layers"])
        return student
