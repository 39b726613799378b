"""Sequence-level distillation: the student learns the texts that the teacher writes, in the place of the right ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from compress.distill.components.distillation import Distillation, FromTeacher
from compress.distill.components.distillation_losses import kl_divergence, soft_count
from compress.technique import Inputs
from eval.kinds.kind_registry import kind_of
from eval.task import Example, Examples, TaskSpec
from teachers.anatomy.encoder import family_of
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.losses.smoothed import smoothed
from teachers.losses.task_loss import task_count
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import ModelTeacher, Reader, TeacherSource
from teachers.signals.written_texts import written_texts
from teachers.taskmodel import TaskModel


class SequenceDistillation(Distillation):
    """Train the student on the teacher's own texts, found by beam search.

    ``loss = (1 - word) · CE(student, y) + word · mean over tokens of KL(teacher ‖ student)`` with ``y`` the best text
    of the teacher's beam, in the place of the right one: the mode of the teacher's distribution over whole texts. The
    teacher writes once for all training sources; the texts are kept on disk, and an interrupted call goes on.

    Attributes:
        beams: Beginnings that the teacher's search keeps. Default 5, as in the paper.
        length_penalty: The power of its length that the score of a text is divided by.
        text: ``best`` (Seq-KD), or ``nearest``: of all texts in the beam the one nearest to the right text by BLEU
            (Seq-Inter).
        also_right: Whether the student learns the right texts too, each source then twice.
        word: Weight of word-level distillation on the same texts, 0 to 1. Default 0.
        label_smoothing: Weight that is spread over the vocabulary in the cross-entropy.

    Needs:
        Training examples and a teacher that writes text. The right texts are read for ``nearest`` and ``also_right``.

    Reduces:
        Nothing by itself; it recovers a student that is already smaller, and greedy search then loses little.

    Limits:
        The teacher writes every training text once, which takes as long as translating them. One teacher alone, not an
        ensemble or a file of predictions; with ``word`` both share a tokenizer.

    Source:
        Kim and Rush 2016, arXiv 1606.07947.
    """

    name: ClassVar[str] = "distill.sequence"
    is_objective: ClassVar[bool] = False
    takes_any: ClassVar[bool] = True
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Kim and Rush 2016, arXiv 1606.07947"

    beams: int = Field(default=5, ge=1, le=64)
    length_penalty: float = Field(default=1.0, ge=0)
    text: Literal["best", "nearest"] = "best"
    also_right: bool = False
    word: Annotated[float, Field(ge=0, le=1)] = 0.0
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse a task that writes no text, and a teacher that is not one network."""
        if not kind_of(student.task.kind).writes:
            family = family_of(student.model).model_type
            return [
                f"{self.name}: is for models that write a text for a text, and this {family} is for "
                f"{student.task.kind}; see distill.logits"
            ]
        if inputs.teacher is not None and not isinstance(inputs.teacher, ModelTeacher):
            return [f"{self.name}: needs one model as teacher, which writes the texts; name one model"]
        return []

    def make_objective(self, inputs: Inputs) -> FromTeacher:
        """Return the loss as an objective that learns from the teacher's texts."""
        if not isinstance(inputs.teacher, ModelTeacher):
            raise TypeError(f"{self.name} was applied without a teacher; the engine refuses this earlier")
        return FromItsTexts(self, inputs.teacher)

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> Loss:
        """Return the loss for rows whose targets are the teacher's texts."""
        return WrittenTargets(student.task, self, teacher.read(rows) if self.word else None)

    def targets(self, teacher: ModelTeacher, examples: Examples) -> Examples:
        """Return the examples with the teacher's texts as targets."""
        several = self.text == "nearest"
        texts = written_texts(teacher, examples, self.beams, self.length_penalty, several)
        made: list[Example] = [
            {"source": example["source"], "target": nearest(own, example) if several else own[0]}
            for example, own in zip(examples, texts, strict=True)
        ]
        right = list(examples) if self.also_right else []
        return Examples([*made, *right], examples.name, examples.skipped)


@dataclass(frozen=True)
class FromItsTexts(FromTeacher):
    """Sequence-level distillation with its teacher, whose texts are what is learned from."""

    def select(self, spec: TaskSpec, examples: Examples) -> Examples:
        """Return the examples with the teacher's texts as targets."""
        del spec
        technique: Any = self.technique
        found: Examples = technique.targets(self.teacher, examples)
        return found


@dataclass
class WrittenTargets(Loss):
    """The loss of ``distill.sequence`` over known rows."""

    spec: TaskSpec
    technique: SequenceDistillation
    reader: Reader | None

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many tokens the terms are means."""
        return {"sequence": task_count(self.spec, batch), "word": soft_count(self.spec, batch)}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"sequence": …, "word": …}``; a term whose weight is 0 is left out."""
        word, terms = self.technique.word, dict[str, Tensor]()
        if word < 1:
            loss = smoothed(self.spec, student.logits, batch, self.technique.label_smoothing)
            terms["sequence"] = (1 - word) * loss
        if self.reader is not None:
            rows = kind_of(self.spec.kind).soft_rows(batch.targets, batch.mask, only_predicted=True)
            terms["word"] = word * kl_divergence(student.logits.float()[rows], self.reader(batch).logits[rows])
        return terms


def nearest(texts: list[str], example: Example) -> str:
    """Return the text with the highest BLEU against the right one; of equal ones the first."""
    from eval.metrics.text_overlap import sentence_bleu

    scores = sentence_bleu([{"text": text} for text in texts], [example] * len(texts))
    return texts[int(scores.argmax())]
