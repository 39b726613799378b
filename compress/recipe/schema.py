"""The schema of a recipe; reading, checks, the way back to YAML and the JSON schema for editors come from it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from compress.augment.block import AugmentBlock
from compress.reading.base_block import Block
from compress.reading.validation_errors import validated
from compress.reading.wording import shown
from compress.reading.yaml_places import Document, Location
from compress.recipe.blocks import EvaluateBlock, SharedTaskBlock, TaskBlock, TeacherBlock
from compress.recipe.step import Export, Step
from compress.student.student import Student
from compress.technique import Technique
from teachers.training.config import Training

NAME, LONGEST = re.compile(r"\w[\w .+-]*", re.ASCII), 100
"""What names a recipe, and the most characters of it."""
TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=100)]
"""It names a folder, and stands before the names of losses and scores."""


@dataclass(frozen=True)
class Written:
    """The document that a recipe was read from; it is no part of what the recipe says, so all are equal."""

    document: Document | None = field(compare=False)

    def place(self, location: Location) -> str:
        """Return file and line of what stands at ``location``, with a colon; nothing without a document."""
        return "" if self.document is None else f"{self.document.place(location)}: "


class Recipe(Block):
    """Everything that leads from a teacher and data to a smaller model.

    Attributes:
        name: Names the run and its folder.
        seed: The source of all chance.
        task: What is asked, and the data.
        tasks: Several tasks by name, in the place of one: ``compress teach`` trains one encoder on all of them
            together, or with ``finetune: {adapter}`` an adapter a task over one base, and gives a model a task.
        teacher: The model that is compressed and that teaches.
        student: The shape to start from; without it, the teacher's own.
        augment: What the steps learn from beside the task's own examples.
        training: Defaults of every step that trains; a step's own values win.
        steps: Techniques, in order.
        export: What is written for other runtimes.
        evaluate: How the result is judged.
        ablate: Whether the recipe also runs once without each of its steps, to report what each contributed.
        track: Trackers that get losses, scores and results while it runs: one or several of those that accelerate
            knows, such as ``tensorboard``. They change nothing of what is trained.

    Examples:
        >>> from compress.distill.logits import LogitDistillation
        >>> from compress.prune.layers import LayerPruning
        >>> recipe = Recipe(name="small", steps=(LayerPruning(keep=(0, 2)), LogitDistillation(temperature=2.0)))
        >>> [step.name for step in recipe.steps]
        ['prune.layers', 'distill.logits']
    """

    name: str = "recipe"
    seed: int = Field(default=13, ge=0, lt=2**32)
    task: TaskBlock | None = None
    tasks: dict[TaskName, SharedTaskBlock] | None = Field(default=None, min_length=2)
    teacher: TeacherBlock | None = None
    student: Student | None = None
    augment: AugmentBlock | None = None
    training: Training | None = None
    steps: tuple[Step, ...] = ()
    export: tuple[Export, ...] = ()
    evaluate: EvaluateBlock | None = None
    ablate: bool = False
    track: str | tuple[str, ...] = ()
    _written: Written = PrivateAttr(default_factory=lambda: Written(None))

    @property
    def trackers(self) -> tuple[str, ...]:
        """The trackers, always as a tuple."""
        return (self.track,) if isinstance(self.track, str) else self.track

    @property
    def columns(self) -> dict[str, str]:
        """The column for each of our fields, where the task names any."""
        return {} if self.task is None else self.task.columns or {}

    def where(self, location: Location) -> str:
        """Return file and line of a part of the recipe, as messages begin; nothing if it was made in Python."""
        return self._written.place(location)

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_left_out(cls, values: Any) -> Any:
        """Take ``teacher: null`` as a recipe without a teacher."""
        if not isinstance(values, dict):
            return values
        return {key: value for key, value in values.items() if value is not None or key not in cls.model_fields}

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not NAME.fullmatch(name) or len(name) > LONGEST:
            raise ValueError(
                f"{shown(name)} must be up to {LONGEST} letters, digits, spaces or . + - _, with a letter or digit "
                "first"
            )
        return name

    @field_validator("steps")
    @classmethod
    def _with_defaults(cls, steps: tuple[Technique, ...], info: ValidationInfo) -> tuple[Technique, ...]:
        training: Training | None = info.data.get("training")
        return steps if training is None else tuple(with_defaults(step, training) for step in steps)

    @field_validator("*", mode="wrap")
    @classmethod
    def _every_error(cls, given: Any, read: Callable[[Any], Any], info: ValidationInfo) -> Any:
        return validated(read, cls, given, (str(info.field_name),))


def fitting_name(called: str, end: str) -> str:
    """Return a name that a recipe may have, made of one that may be anything.

    Args:
        called: What it is made of, such as the name of a folder.
        end: What it ends with, whatever is cut off before.

    Examples:
        >>> fitting_name("my_model.v2", "-optimized"), fitting_name("modèle (1)", "-optimized")
        ('my_model.v2-optimized', 'mod-le -1--optimized')
    """
    stem = re.sub(r"[^\w .+-]+", "-", called, flags=re.ASCII).lstrip(" .+-")
    return f"{stem[: LONGEST - len(end)] or 'recipe'}{end}"


def with_defaults(step: Technique, training: Training) -> Technique:
    """Return ``step`` with the values of ``training`` wherever it was given none of its own."""
    blocks = {name: own for name, own in step if isinstance(own, Training)}
    merged = {name: _merged(own, name in step.model_fields_set, training) for name, own in blocks.items()}
    changed = {name: block for name, block in merged.items() if block is not blocks[name]}
    return step.model_copy(update=changed) if changed else step


def _merged(own: Training, said: bool, training: Training) -> Training:
    given = own.model_fields_set if said else set()
    added = {key: getattr(training, key) for key in training.model_fields_set - given}
    return Training.model_construct(given | added.keys(), **(dict(own) | added)) if added else own
