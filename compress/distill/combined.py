"""Several distillations at once: any weighted sum of their losses in one training step."""

from __future__ import annotations

from typing import ClassVar

from compress.distill.labels import LabelTraining
from compress.objective import ObjectiveBlock, RecoveryTechnique
from compress.technique import Need, Technique


class CombinedDistillation(RecoveryTechnique):
    """Train the student on a weighted sum of distillations.

    ``loss = Σ weight · term``, each term as its own technique defines it:
    ``distill.combined: {objective: {distill.logits: {temperature: 2.0}, distill.pkd: {weight: 0.1}}}``.

    Attributes:
        objective: The terms, by technique, each with its own fields and a ``weight`` (1 by default).
        training: How weights are updated; the terms have no training of their own.

    Needs:
        Training examples, and a teacher if a term needs one.

    Reduces:
        Nothing by itself; it recovers a student that is already smaller.

    Limits:
        A term that is trained in several stages, or makes a model of its own kind, cannot stand here.

    Source:
        Jiao et al. 2020, arXiv 1909.10351 (several losses in one step).
    """

    name: ClassVar[str] = "distill.combined"
    version: ClassVar[int] = 2
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Jiao et al. 2020, arXiv 1909.10351"

    objective: ObjectiveBlock

    def without_teacher(self) -> Technique:
        """Return training on the labels, with the same training block."""
        return LabelTraining.in_place_of(self.training)
