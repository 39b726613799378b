"""The shape of the student and the weights it starts from."""

from __future__ import annotations

import copy
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from compress.student.student_shape import StudentShape, model_type_of
from eval.errors import UserError
from eval.naming import public_name

if TYPE_CHECKING:
    from compress.student.predicted_cost import Prediction
    from compress.student.width import Inheritance
    from teachers.taskmodel import TaskModel

    Model = TypeVar("Model", bound=TaskModel)

logger = logging.getLogger("compress.student.student")


class Student(StudentShape):
    """A smaller network: a shape, and where its first weights come from; the fields are those of ``StudentShape``.

    Examples:
        >>> from transformers import BertConfig, BertForSequenceClassification, BertTokenizer
        >>> from eval import TaskSpec
        >>> from teachers import TaskModel
        >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]
        >>> config = BertConfig(
        ...     vocab_size=7, hidden_size=8, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16
        ... )
        >>> teacher = TaskModel(
        ...     BertForSequenceClassification(config),
        ...     BertTokenizer({word: row for row, word in enumerate(words)}),
        ...     TaskSpec(kind="classification", labels=("bad", "good")),
        ... )
        >>> student = Student(layers=2).build(teacher)
        >>> student.model.config.num_hidden_layers, teacher.model.config.num_hidden_layers
        (2, 4)
    """

    def build(self, teacher: Model, seed: int = 0) -> Model:
        """Return the student; the teacher stays as it is.

        Args:
            teacher: A ``TaskModel`` gives a ``TaskModel``; an ``Artifact`` gives an ``Artifact`` whose lineage has one
                more record, ``student``. It also says the task if the weights come from elsewhere.
            seed: Seeds all weights that are not taken over.

        Raises:
            UserError: With every reason why there can be no such student.
        """
        started = time.perf_counter()
        source = self.source(teacher, seed)
        self._refuse(source)
        built, inherited = self._build(source, seed)
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", self._table(source, self._prediction(source, teacher)))
        changes: dict[str, Any] = {
            "model": built.model,
            "tokenizer": built.tokenizer,
            "name": "student",
            "folder": None,
        }
        student = replace(teacher, **changes)
        if not hasattr(source, "lineage"):
            return student
        record = self._record(source, student, inherited, seed, time.perf_counter() - started)
        return replace(student, lineage=(*source.lineage, record))  # type: ignore[call-arg]

    def source(self, teacher: Model, seed: int = 0) -> Model:
        """Return the model that gives shape and weights: the teacher, or what ``from`` names, of the same class.

        Of a teacher that stands around a standard network (K-BERT, concat pooling) it is that network. ``seed`` is for
        its head, where it has none.
        """
        if self.from_ == "teacher":
            from compress.architectures.wrapped_encoder import standard_within

            return standard_within(teacher, seed)
        from compress.artifact.artifact import Artifact, load_model

        found = load_model(self.from_, teacher.task)
        return Artifact.from_model(found, origin=public_name(self.from_)) if isinstance(teacher, Artifact) else found  # type: ignore[return-value]

    def problems(self, teacher: TaskModel) -> list[str]:
        """Return every reason why there can be no such student of this teacher; no weight is allocated."""
        from compress.student.shape_check import shape_problems

        return shape_problems(self, self.source(teacher))

    def predict(self, teacher: TaskModel) -> Prediction:
        """Return the exact parameters, file size and multiply-accumulates of student and teacher.

        The student's come from its config alone.

        Raises:
            UserError: With every reason why there can be no such student.
        """
        source = self.source(teacher)
        self._refuse(source)
        return self._prediction(source, teacher)

    def describe(self, teacher: TaskModel) -> str:
        """Return a table of what the student will be, beside its teacher.

        Raises:
            UserError: With every reason why there can be no such student.
        """
        source = self.source(teacher)
        self._refuse(source)
        return self._table(source, self._prediction(source, teacher))

    def _prediction(self, source: TaskModel, teacher: TaskModel) -> Prediction:
        from compress.student.predicted_cost import Prediction, cost_of, predicted_cost

        return Prediction(student=predicted_cost(self.config(source), teacher.task), teacher=cost_of(teacher.model))

    def _table(self, source: TaskModel, found: Prediction) -> str:
        from compress.student.shape_check import describe_shape

        small, large = found.student, found.teacher
        rows = {
            "parameters": (small.parameters, large.parameters),
            "bytes on disk": (small.bytes, large.bytes),
            f"MACs at 1x{small.length}": (small.macs, large.macs),
        }
        return "\n".join(
            [
                f"student: {describe_shape(self.config(source))}",
                f"weights: {self._weights(source)}",
                f"{'':<16}{'student':>16}{'teacher':>16}{'ratio':>8}",
                *(f"{name:<16}{own:>16,}{other:>16,}{own / other:>8.3f}" for name, (own, other) in rows.items()),
            ]
        )

    def _weights(self, source: TaskModel) -> str:
        from compress.student.width import RULE

        if self.new_layers:
            return "random" if self.init == "random" else f"embeddings and head from {self.from_}, layers random"
        text = f"from {self.from_}, layers {', '.join(map(str, self.kept_layers(source)))}"
        if decoding := self.kept_decoder_layers(source):
            text += f" and the decoder's {', '.join(map(str, decoding))}"
        return f"{text}; {RULE}" if self.init == "width" else text

    def _refuse(self, source: TaskModel) -> None:
        from compress.student.shape_check import shape_problems

        found = shape_problems(self, source)
        if found:
            raise UserError(*found)

    def _build(self, source: TaskModel, seed: int) -> tuple[TaskModel, Inheritance]:
        from compress.student.width import Inheritance, inherit, inherit_outside
        from teachers.anatomy.layer_changes import replace_decoder_layers, replace_layers
        from teachers.conversion import convert
        from teachers.taskmodel import TaskModel, build_taskmodel

        config = self.config(source)
        built = build_taskmodel(config, _for_length(source, config), source.task, seed=seed, name="student")
        if self.init == "random":
            return built, Inheritance(new=[name for name, _ in built.model.named_parameters()])
        if self.init == "embeddings":
            return built, inherit_outside(source.model, built.model)
        giver = TaskModel(copy.deepcopy(source.model), source.tokenizer, source.task)
        replace_layers(giver.model, self.kept_layers(source))
        if decoding := self.kept_decoder_layers(source):
            replace_decoder_layers(giver.model, decoding)
        if self.family is not None and self.family != model_type_of(source):
            giver = convert(giver, self.family, seed=seed)
        inherited = inherit(giver.model, built.model)
        if inherited.new:
            logger.warning("not in the teacher, so random: %s", ", ".join(inherited.new))
        return built, inherited

    def _record(self, source: Any, student: TaskModel, inherited: Inheritance, seed: int, seconds: float) -> Any:
        from compress.artifact.record import Record, outcome_of, size_of
        from eval.naming import without_paths

        return Record(
            technique="student",
            config=without_paths(self.model_dump(mode="json", by_alias=True)),
            seed=seed,
            facts={
                "layers": list(self.kept_layers(source)),
                **({"decoder_layers": list(decoding)} if (decoding := self.kept_decoder_layers(source)) else {}),
                "copied": len(inherited.copied),
                "cut": len(inherited.cut),
                "random": inherited.new,
            },
            size_before=size_of(source),
            weights_before=source.lineage[-1].weights_after,
            **outcome_of(student),
            seconds=round(seconds, 3),
        )


def _for_length(source: TaskModel, config: Any) -> Any:
    """Return the tokenizer of ``source``; a copy that says so where a config takes longer inputs."""
    from teachers.anatomy.encoder import max_tokens

    most = max_tokens(config)
    if max_tokens(source.model.config) >= most or source.tokenizer.model_max_length >= most:
        return source.tokenizer
    tokenizer = copy.deepcopy(source.tokenizer)
    tokenizer.model_max_length = most
    return tokenizer
