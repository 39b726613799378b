"""What every distillation is: a loss between a student and a teacher, trained by the one loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from compress.distill.labels import LabelTraining
from compress.technique import Inputs, Need, Technique, TrainedTechnique
from eval.task import Examples, TaskSpec
from teachers.anatomy.encoder import family_of, has_plain_attention
from teachers.data.encoded_dataset import EncodedDataset
from teachers.losses.loss import Loss, Objective
from teachers.signals.model_teacher import TeacherSource
from teachers.taskmodel import TaskModel


class Distillation(TrainedTechnique):
    """Base of the distillations; each gives the loss between its student and a teacher.

    Needs:
        Training examples and a teacher.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"train", "teacher"})
    is_objective: ClassVar[bool] = True

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples that it learns from where it is the only objective; all by default."""
        del spec
        return examples

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> Loss:
        """Return the loss for these rows: compute or find the teacher's outputs, make projections."""
        raise NotImplementedError(f"{type(self).__name__} does not implement bind")

    def make_objective(self, inputs: Inputs) -> FromTeacher:
        """Return the loss as an objective, with the teacher in ``inputs``."""
        if inputs.teacher is None:
            raise TypeError(f"{self.name} was applied without a teacher; the engine refuses this earlier")
        return FromTeacher(self, inputs.teacher)

    def without_teacher(self) -> Technique:
        """Return training on the labels, with the same training block."""
        return LabelTraining.in_place_of(self.training)


@dataclass(frozen=True)
class FromTeacher(Objective):
    """A distillation with its teacher, as an objective."""

    technique: Distillation
    teacher: TeacherSource

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples that the distillation learns from."""
        return self.technique.select(spec, examples)

    def bind(self, student: TaskModel, rows: EncodedDataset) -> Loss:
        """Return the loss for these rows."""
        return self.technique.bind(student, rows, self.teacher)


def odd_attention(student: TaskModel, teacher: TeacherSource, biased: bool = False) -> str:
    """Return whose attention scores are more than products of queries and keys, in words; nothing if neither's.

    Args:
        student: The student.
        teacher: The teacher.
        biased: Whether the products may have a bias by distance beside them, as in MPNet.
    """
    plain = has_plain_attention(student.model) or (biased and bool(family_of(student.model).head_bias))
    teachers = teacher.plain_attention or (biased and teacher.score_bias(0, 1) is not None)
    own = "" if plain else f"the student's ({family_of(student.model).model_type})"
    return " and ".join(filter(None, [own, "" if teachers else "the teacher's"]))


def one_history(stages: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the histories of several stages as one: each entry names its stage, and steps are counted through."""
    found: list[dict[str, Any]] = []
    for stage, history in stages.items():
        before = found[-1]["step"] if found else 0
        for entry in history:
            losses = [[before + step, loss] for step, loss in entry.get("losses", ())]
            found.append({**entry, "stage": stage, "step": before + entry["step"], "losses": losses})
    return found
