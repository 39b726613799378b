"""No teacher at all: labels only. The baseline that every distillation has to beat."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from compress.technique import Inputs, Need, TrainedTechnique
from eval.kinds.kind_registry import kind_of
from teachers.losses.task_loss import TaskLoss
from teachers.taskmodel import TaskModel
from teachers.training.config import Training


class LabelTraining(TrainedTechnique):
    """Train the student on the labels, without a teacher.

    ``loss = hard``, the task's own loss: cross-entropy, squared error, or masked words on unlabelled text.

    Attributes:
        label_smoothing: Weight that is spread over all labels, or over the vocabulary; for a cross-entropy.
        training: How weights are updated.

    Needs:
        Training examples.

    Reduces:
        Nothing; it recovers a student that is already smaller.

    Limits:
        It is the baseline: report a distillation beside it, with the same seeds and the same training block.

    Source:
        Devlin et al. 2019, arXiv 1810.04805 (fine-tuning).
    """

    name: ClassVar[str] = "distill.labels"
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    is_objective: ClassVar[bool] = True
    takes_any: ClassVar[bool] = True
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Devlin et al. 2019, arXiv 1810.04805"

    label_smoothing: float = Field(default=0.0, ge=0, lt=1, exclude_if=lambda value: not value)

    @classmethod
    def in_place_of(cls, training: Training) -> LabelTraining:
        """Return training on the labels by the block of another technique, whose defaults in it count as said."""
        return cls(training=training.model_copy(update=dict(training)))

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse embedding, whose examples have no truth for a single text, and smoothing where nothing is smooth."""
        del inputs
        if kind_of(student.task.kind).vectors:
            return [
                f"{self.name}: an embedding task has no loss of its own; train with a teacher, by distill.embedding"
            ]
        if self.label_smoothing:
            from teachers.losses.smoothed import refuse_unsmooth

            refuse_unsmooth(student.task)
        return []

    def make_objective(self, inputs: Inputs) -> TaskLoss:
        """Return the task's own loss."""
        del inputs
        return TaskLoss(self.label_smoothing)
