"""The ``objective`` block: what a technique that trains minimises, as a weighted sum of distillations and the labels.

objective: {distill.logits: {temperature: 2.0}, distill.pkd: {beta: 100, weight: 0.5}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializationInfo,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import core_schema

from compress.reading.editor_schema import by_name
from compress.reading.validation_errors import errors_in
from compress.reading.wording import shown
from compress.registry import get, names
from compress.technique import Inputs, Need, Technique, TrainedTechnique
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of

if TYPE_CHECKING:
    from teachers.losses.loss import Objective
    from teachers.taskmodel import TaskModel


class ObjectiveTerm(BaseModel):
    """One term of an objective.

    Attributes:
        technique: What gives the loss; with a ``training`` block of its own it is refused, for that of the step counts.
        weight: What the loss is multiplied by.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    technique: SerializeAsAny[TrainedTechnique]
    weight: float = Field(default=1.0, ge=0)

    @model_validator(mode="after")
    def _trains_with_the_step(self) -> ObjectiveTerm:
        if "training" in self.technique.model_fields_set:
            said = ", ".join(sorted(self.technique.training.model_fields_set)) or "training"
            raise ValueError(f"{said}: a term of an objective is trained with its step; write it beside the objective")
        return self


class ObjectiveBlock(BaseModel):
    """A weighted sum of losses, minimised together in one training step.

    Written as ``{name: fields}``, each with an optional ``weight``. Techniques that are one loss can stand here:
    ``distill.labels`` for the labels themselves, and every distillation that trains a model of any shape in one stage.

    Attributes:
        terms: The losses.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    terms: tuple[ObjectiveTerm, ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _from_names(cls, values: Any, validation: ValidationInfo) -> Any:
        if isinstance(values, str):
            values = {values: {}}
        if not isinstance(values, Mapping) or set(values) == {"terms"}:
            return values
        return {"terms": tuple(_term(str(name), given, validation.context) for name, given in values.items())}

    @model_serializer(mode="plain")
    def _by_name(self, info: SerializationInfo) -> dict[str, Any]:
        return {
            term.technique.name: term.technique.model_dump(
                mode="json", exclude_unset=bool(info.exclude_unset), exclude={"training"}, context=info.context
            )
            | ({} if term.weight == 1 else {"weight": term.weight})
            for term in self.terms
        }

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return what editors are told: a mapping from techniques that are one loss to their fields and weights."""
        del schema
        found = {name: get(name) for name in names()}
        terms = {name: each for name, each in found.items() if issubclass(each, TrainedTechnique) and each.is_objective}
        return by_name(terms, handler, only_one=False, weighted=True)

    def needed(self) -> frozenset[Need]:
        """Return the inputs that the terms cannot do without."""
        return frozenset[Need]({"train"}).union(*(term.technique.needed() for term in self.terms))

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Return what makes a term impossible on this model."""
        from teachers.anatomy.encoder import has_decoder

        found = [problem for term in self.terms for problem in term.technique.check(student, inputs)]
        if has_decoder(student.model):
            unfit = (term.technique for term in self.terms if not term.technique.both_stacks)
            found += [
                f"{one.name}: works on an encoder or a decoder by itself, and {student.name} is both" for one in unfit
            ]
        return found

    def make(self, inputs: Inputs) -> Objective:
        """Return the sum with the teacher in ``inputs``, which is run once for all terms."""
        from compress.weighted_sum import WeightedSum
        from teachers.signals.shared_teacher import SharedTeacher

        if inputs.teacher is not None:
            inputs = replace(inputs, teacher=SharedTeacher(inputs.teacher))
        return WeightedSum(
            tuple((term.technique.name, term.weight, term.technique.make_objective(inputs)) for term in self.terms)
        )


class RecoveryTechnique(TrainedTechnique):
    """Base of the techniques that change a model and train it with whatever objective the user names.

    Attributes:
        objective: What is minimised; the labels' own loss by default.
    """

    objective: ObjectiveBlock | None = None

    def needed(self) -> frozenset[Need]:
        """Return what the technique itself needs and what its objective needs."""
        return super().needed() | (self.objective.needed() if self.objective is not None else set())

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Return what makes the objective impossible on this model."""
        if self.objective is None and kind_of(student.task.kind).vectors:
            return [
                f"{self.name}: an embedding task has no labels to learn from; give an objective with a teacher's "
                "vectors, such as objective: distill.embedding"
            ]
        found = [] if self.objective is None else self.objective.check(student, inputs)
        return [f"{self.name}: objective: {problem}" for problem in found]

    def make_objective(self, inputs: Inputs) -> Objective:
        """Return the objective with the teacher in ``inputs``."""
        from teachers.losses.task_loss import TaskLoss

        return TaskLoss() if self.objective is None else self.objective.make(inputs)

    def reads_logits_alone(self, reason: str) -> list[str]:
        """Return what is wrong with terms of the objective that read more of the student than its logits.

        Args:
            reason: Why there is nothing more to read.
        """
        terms = () if self.objective is None else self.objective.terms
        return [
            f"{self.name}: objective: {term.technique.name} reads more than logits, and {reason}; take distill.logits, "
            "or distil in a step of its own before"
            for term in terms
            if not term.technique.takes_any
        ]

    def without_teacher(self) -> Technique:
        """Return the same technique, trained on labels only."""
        return self.model_copy(update={"objective": None})


def _term(name: str, given: Any, context: Any) -> ObjectiveTerm:
    try:
        technique = get(name)
    except UserError as error:
        raise ValueError(str(error)) from error
    if not (issubclass(technique, TrainedTechnique) and technique.is_objective):
        raise ValueError(f"{name} is not a single loss, so it cannot be a term of an objective")
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"{name}: got {shown(given)}, must be a mapping of its fields")
    fields = dict(given or {})
    weight = fields.pop("weight", 1.0)
    known: type[BaseModel] = technique
    try:
        own = technique.model_validate(fields, context=context)
        known, fields = ObjectiveTerm, {"technique": own, "weight": weight}
        term = ObjectiveTerm(technique=own, weight=weight)
    except ValidationError as error:
        sentences = [one.sentence for one in errors_in(error, known, fields, also=("weight",))]
        raise ValueError(f"{name}: {'; '.join(sentences)}") from error
    if problem := term.technique.term_problem():
        raise ValueError(f"{name}: {problem}")
    return term
