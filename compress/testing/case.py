"""A technique with the least work, on a tiny model of one family: what the checks look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from compress.artifact.artifact import Artifact
from compress.engine.steps import run
from compress.recipe import Recipe
from compress.technique import Inputs, Technique, TrainedTechnique
from compress.testing.tiny import tiny_task, tiny_taskmodel
from eval.data.loading import Task
from eval.task import KindName
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import TaskModel
from teachers.training.config import Training

SHORT = {"max_steps": 2, "batch_size": 8}
"""The training of a check."""
SEED = 7
"""The seed of the recipe."""


def least(technique: Technique) -> Technique:
    """Return a technique with two optimizer steps of 8 examples in each of its stages, where it says nothing else."""
    if not isinstance(technique, TrainedTechnique):
        return technique
    given = {name: getattr(technique, name) for name in technique.model_fields_set}
    for name, own in technique:
        if isinstance(own, Training):
            said = own.model_dump(exclude_unset=True) if name in given else {}
            given[name] = {**SHORT, **said}
    return type(technique)(**given)


def inputs_for(task: Task, teacher: TaskModel, cache: Path) -> Inputs:
    """Return all that a technique may use, with the outputs of the teacher kept in a folder."""
    return Inputs(
        train=task.train,
        validation=task.validation[:8],
        calibration=task.train[:8],
        teacher=ModelTeacher(teacher, cache=cache),
    )


@dataclass(frozen=True)
class Case:
    """A technique on a tiny model; models and results are made once, when a check first looks at them.

    Attributes:
        technique: The config.
        cache: Folder for the outputs of the teacher.
        family: Of model and teacher.
        kind: Of the task; one whose logits are one row an example.
        tolerance: Largest change of a logit by padding and by the other examples of a batch.
        changes: Other values of the model's config.
    """

    technique: Technique
    cache: Path
    family: str = "bert"
    kind: KindName = "classification"
    tolerance: float = 1e-5
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        """The recipe of this one step."""
        return Recipe(seed=SEED, steps=(self.technique,))

    @cached_property
    def task(self) -> Task:
        """A task that a tiny encoder can learn."""
        return tiny_task(self.kind)

    def new_source(self) -> TaskModel:
        """Return the model that goes in, made anew; it always has the same weights."""
        return tiny_taskmodel(self.family, self.task.spec, **self.changes)

    @cached_property
    def source(self) -> TaskModel:
        """The model that goes in."""
        return self.new_source()

    @cached_property
    def inputs(self) -> Inputs:
        """Examples, and a teacher of the same family and shape with other weights."""
        teacher = tiny_taskmodel(self.family, self.task.spec, seed=1, **self.changes)
        return inputs_for(self.task, teacher, self.cache)

    @cached_property
    def result(self) -> Artifact:
        """What the technique makes of the model."""
        return run(self.recipe, self.source, self.inputs, dry_run_first=False)
