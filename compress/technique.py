"""The protocol of every technique: a frozen, typed config that turns one model into another and says what it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from compress.traits import Handover, Trait
from teachers.renamed import recorded_json
from teachers.training.config import Training, WithTraining

if TYPE_CHECKING:
    import torch

    from eval.task import Examples
    from teachers.losses.loss import Objective
    from teachers.signals.model_teacher import TeacherSource
    from teachers.taskmodel import TaskModel

Need = Literal["train", "calibration", "teacher"]
Measure = Literal["parameters", "nonzero", "bytes", "macs", "export_bytes"]
Part = Literal["layers", "embeddings", "pooler"]
PARTS: tuple[Part, ...] = ("layers", "embeddings", "pooler")
"""What holds matrices: the linear layers inside of the layers, the embedding matrix, the dense layer of a pooler."""


@dataclass(frozen=True)
class Inputs:
    """What a technique may use beside the model itself.

    Attributes:
        train: Examples to learn from.
        validation: Examples that choose the best epoch, thresholds and when to stop early; never learned from, and
            never reported on (``eval.data.roles``).
        calibration: Examples whose activations give ranges.
        teacher: Where soft targets and other signals come from.
        folder: Where a long step keeps its checkpoints; None keeps nothing.
    """

    train: Examples | None = None
    validation: Examples | None = None
    calibration: Examples | None = None
    teacher: TeacherSource | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What a technique returns.

    Attributes:
        model: The new model, with its tokenizer and task.
        facts: Numbers worth knowing, as plain JSON.
        export_scheme: The int8 scheme of its exports, as plain values of ``compress.modules.int8_scheme.Int8``;
            None asks for none.
    """

    model: TaskModel
    facts: dict[str, Any] = field(default_factory=dict)
    export_scheme: dict[str, Any] | None = None


class Technique(BaseModel):
    """Base of every technique; its fields are the hyper-parameters, with the paper's defaults.

    A technique writes only the maths. The engine copies the model, seeds, dry-runs, verifies, times and records.

    Attributes:
        name: Equal to its place in the package, such as ``prune.layers``.
        version: Raised whenever the same config gives other numbers.
        needs: Inputs without which ``apply`` is refused.
        reduces: Measures that become smaller: ``bytes`` are those of the saved folder, ``export_bytes`` of an export.
        adds: Measures that become larger, as a price.
        trains: Whether weights are updated by gradient.
        freezes: Whether the result can no longer be trained.
        last: Whether no step may follow, for the result holds integers or ranges that fit this very network.
        makes: What the result is, if it is no longer an encoder with transformer layers, such as ``a BiLSTM``.
        takes_any: Whether it also works on such a result.
        both_stacks: Whether it also works on an encoder with a decoder that reads its states.
        requires: What else its defaults need of the model that comes in: trait -> why, and what to do.
        removes: What else its defaults take away from the model: steps that require one of these cannot follow.
        source: Authors, year and arXiv id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[Need]] = frozenset()
    reduces: ClassVar[frozenset[Measure]] = frozenset()
    adds: ClassVar[frozenset[Measure]] = frozenset()
    trains: ClassVar[bool] = False
    freezes: ClassVar[bool] = False
    last: ClassVar[bool] = False
    makes: ClassVar[str] = ""
    takes_any: ClassVar[bool] = False
    both_stacks: ClassVar[bool] = False
    requires: ClassVar[Mapping[Trait, str]] = MappingProxyType({})
    removes: ClassVar[frozenset[Trait]] = frozenset()
    source: ClassVar[str] = ""

    def needed(self) -> frozenset[Need]:
        """Return the inputs that this very config cannot do without."""
        return self.needs

    @property
    def chooses(self) -> bool:
        """Whether this very config chooses something on ``Inputs.validation``, beside the best epoch."""
        return False

    def required(self) -> Mapping[Trait, str]:
        """Return what else this very config needs of the model that comes in, with the reason and what to do."""
        return self.requires

    def removed(self) -> frozenset[Trait]:
        """Return what else this very config takes away from the model."""
        return self.removes

    def handover(self) -> Handover:
        """Return all that this very config needs of the model that comes in, and all that it takes away from it."""
        return self._handover(self.required(), self.removed())

    @classmethod
    def usual_handover(cls) -> Handover:
        """Return what ``handover`` does, of the defaults."""
        return cls._handover(cls.requires, cls.removes)

    @classmethod
    def _handover(cls, requires: Mapping[Trait, str], removes: frozenset[Trait]) -> Handover:
        needs: dict[Trait, bool] = {
            "open": True,
            "trainable": cls.trains,
            "transformer_layers": not cls.takes_any,
            "one_stack": not cls.both_stacks,
        }
        takes: dict[Trait, bool] = {
            "open": cls.last,
            "trainable": cls.freezes,
            "transformer_layers": bool(cls.makes),
            "standard": bool(cls.makes),
        }
        return Handover(
            cls.name,
            {**requires, **{trait: "" for trait, needed in needs.items() if needed}},
            removes | {trait for trait, taken in takes.items() if taken},
            cls.makes,
        )

    def reads(self) -> tuple[Path, ...]:
        """Return the files, besides data and models, whose contents decide the outcome."""
        return ()

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Return what makes this technique impossible on this model, one sentence each; it computes nothing."""
        del student, inputs
        return []

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Return the changed model; ``student`` is the engine's own copy and may be changed in place.

        Args:
            student: The model with its tokenizer and task.
            inputs: Whatever ``needs`` asks for is there.
            generator: The only source of chance.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement apply")

    @classmethod
    def note(cls, facts: Mapping[str, Any]) -> str:
        """Return what the notes of a run say of a step with these facts, without a full stop; nothing by default."""
        del facts
        return ""

    def for_dry_run(self) -> Technique:
        """Return the same technique with the least work: one batch, one update."""
        return self

    def without_teacher(self) -> Technique:
        """Return what this step becomes in a baseline that has no teacher."""
        return self

    def with_trainings(self, change: Callable[[Training], Training]) -> Self:
        """Return the same technique with each of its training blocks changed, if it has any."""
        return self.model_copy(update={name: change(block) for name, block in self if isinstance(block, Training)})


class TrainedTechnique(Technique, WithTraining):
    """Base of the techniques that update weights: one ``training`` block, one loop, one objective.

    Fields of the block may be written beside the technique's own: ``LogitDistillation(epochs=3)``.

    Attributes:
        training: How weights are updated.
    """

    trains: ClassVar[bool] = True
    is_objective: ClassVar[bool] = False
    """Whether it is one loss over one stage, so that it can be a term of an ``objective`` block."""

    @field_validator("*")
    @classmethod
    def _keep_defaults(cls, value: Any, info: ValidationInfo) -> Any:
        """Give what was not said of a training block the technique's own default, not the general one."""
        default = cls.model_fields[str(info.field_name)].get_default(call_default_factory=True)
        if not (isinstance(value, Training) and isinstance(default, Training)):
            return value
        given = {name: getattr(value, name) for name in value.model_fields_set}
        return Training.model_construct(set(given), **(dict(default) | given))

    def trainings(self) -> tuple[Training, ...]:
        """Return the training block of each stage, in order."""
        return (self.training,)

    def term_problem(self) -> str:
        """Return why this very config cannot be a term of an objective; nothing if it can."""
        return ""

    def make_objective(self, inputs: Inputs) -> Objective:
        """Return what is minimised."""
        raise NotImplementedError(f"{type(self).__name__} does not implement make_objective")

    def network_for(self, student: TaskModel, seed: int = 0) -> TaskModel:
        """Return what is trained in the place of ``student``, with random weights; ``student`` itself by default."""
        del seed
        return student

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Train ``student`` in place with the technique's objective."""
        history = self.train(student, inputs, self.make_objective(inputs), generator)
        return Outcome(student, facts={"history": history})

    def train(
        self,
        student: TaskModel,
        inputs: Inputs,
        objective: Objective,
        generator: torch.Generator,
        *,
        training: Training | None = None,
        stage: str = "",
    ) -> list[dict[str, Any]]:
        """Train ``student`` in place with the one loop and return the history.

        Args:
            student: What is trained.
            inputs: Data, and the folder for checkpoints.
            objective: What is minimised.
            generator: Its seed decides order and dropout.
            training: How; the technique's own block by default.
            stage: Name of this stage, if the technique trains several times; each resumes by itself.
        """
        from eval.task import Examples
        from teachers.training.loop import train

        # A checkpoint of another teacher, or one that other examples chose, is none of this training.
        others = [None if part is None else part.digest for part in (inputs.teacher, inputs.validation)]
        return train(
            student,
            inputs.train or Examples((), "train"),
            objective,
            training or self.training,
            seed=generator.initial_seed(),
            validation=inputs.validation,
            folder=inputs.folder / stage if inputs.folder is not None else None,
            identity=f"{self.name} {self.version} {stage} {recorded_json(self)} {others}",
            teacher=inputs.teacher,
        )

    def for_dry_run(self) -> TrainedTechnique:
        """Return the technique with a single update a stage."""
        return self.with_trainings(lambda block: block.model_copy(update={"max_steps": 1}))
