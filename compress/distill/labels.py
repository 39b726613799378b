"""No teacher at all: labels only. The baseline that every distillation has to beat."""

from __future__ import annotations

from typing import ClassVar

from compress.technique import Inputs, Need, TrainedTechnique
from eval.kinds.kind_registry import kind_of
from teachers.losses.task_loss import TaskLoss
from teachers.taskmodel import TaskModel


class LabelTraining(TrainedTechnique):
    """Train the student on the labels, without a teacher.

    ``loss = hard``, the task's own loss: cross-entropy, squared error, or masked words on unlabelled text.

    Attributes:
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
    source: ClassVar[str] = "Devlin et al. 2019, arXiv 1810.04805"

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse embedding, whose examples have no truth for a single text."""
        del inputs
        if not kind_of(student.task.kind).vectors:
            return []
        return [f"{self.name}: an embedding task has no loss of its own; train with a teacher, by distill.embedding"]

    def make_objective(self, inputs: Inputs) -> TaskLoss:
        """Return the task's own loss."""
        del inputs
        return TaskLoss()
