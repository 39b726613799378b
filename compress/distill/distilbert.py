"""DistilBERT: soft targets, the labels or masked words, and the direction of the last hidden state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from compress.distill.components.distillation import Distillation
from compress.distill.components.distillation_losses import (
    cosine_distance,
    paired_logits,
    soft_count,
    soft_loss,
)
from compress.technique import Inputs
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.encoder import layer_count, shape_of
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.losses.task_loss import task_count, task_loss
from teachers.signals.hooks import Signals, SignalSpec
from teachers.signals.model_teacher import Reader, TeacherSource
from teachers.taskmodel import TaskModel
from teachers.training.config import Training


class DistilBertDistillation(Distillation):
    """Train the student with DistilBERT's triple loss, on a task or on unlabelled text.

    ``loss = alpha_soft · T² · KL(teacher / T ‖ student / T) + alpha_task · hard + alpha_cos · mean(1 - cos)``.
    ``hard`` is the masked-language loss on unlabelled text (general distillation, as in the paper) and the task's own
    loss otherwise. The cosine compares the last hidden states of all real tokens. Both networks read the same masked
    input. Initialise the student with ``Student(layers=6, pick="spread")``, which takes the layers 0, 2, 4, 7, 9, 11
    of 12 as the authors' script does.

    Attributes:
        temperature: T. Default 2, as in the authors' code.
        alpha_soft: Weight of the soft targets. Default 5, as in their example for one GPU.
        alpha_task: Weight of the hard loss. Default 2, likewise.
        alpha_cos: Weight of the cosine. Default 1, likewise.
        mlm_smoothing: On unlabelled text, places are masked with a chance in proportion to
            ``max(count of the token, 1) ** -mlm_smoothing``, so that rare words are learned too: 15% of the tokens
            of a row, drawn without replacement (in their code, of a batch). Default 0.7 as in their code; the paper
            does not speak of it. 0 masks each token with a chance of 15%, whichever it is.
        only_predicted: On unlabelled text, compare logits at masked places only. Default False: at all real tokens.
        training: Defaults as in the code where they carry over: 3 epochs, warm-up 5%, no weight decay,
            betas (0.9, 0.98), eps 1e-6, gradients clipped at 5; peak rate 5e-4 there for 4,000-sentence batches, 1e-4
            here for 32.

    Needs:
        Training examples and a teacher with the student's labels, tokenizer and hidden size.

    Reduces:
        Nothing by itself; it recovers a student with fewer layers.

    Limits:
        Hidden sizes must be equal (the loss has no projection).

    Source:
        Sanh, Debut, Chaumond, Wolf 2019, arXiv 1910.01108.
    """

    name: ClassVar[str] = "distill.distilbert"
    version: ClassVar[int] = 2
    source: ClassVar[str] = "Sanh, Debut, Chaumond, Wolf 2019, arXiv 1910.01108"

    temperature: float = Field(default=2.0, gt=0, le=1000)
    alpha_soft: float = Field(default=5.0, ge=0)
    alpha_task: float = Field(default=2.0, ge=0)
    alpha_cos: float = Field(default=1.0, ge=0)
    mlm_smoothing: float = Field(default=0.7, ge=0)
    only_predicted: bool = False
    training: Training = Training(
        epochs=3,
        learning_rate=1e-4,
        warmup_steps=0.05,
        weight_decay=0.0,
        betas=(0.9, 0.98),
        eps=1e-6,
        max_grad_norm=5.0,
    )

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse a teacher of another hidden size."""
        own = shape_of(student.model.config).hidden_size
        if not self.alpha_cos or inputs.teacher is None or inputs.teacher.hidden_size == own:
            return []
        return [
            f"{self.name}: the cosine needs equal hidden sizes, the student has {own} and the teacher "
            f"{inputs.teacher.hidden_size}; set alpha_cos: 0 or give the student the teacher's width"
        ]

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> TripleLoss:
        """Compute or find the teacher's logits and last hidden states for these rows; say how they are masked."""
        if kind_of(student.task.kind).masks and self.mlm_smoothing:
            rows.smooth_masks(self.mlm_smoothing)
        lasts = (layer_count(student.model), teacher.layers) if self.alpha_cos else ()
        own, other = SignalSpec(hidden_states=lasts[:1]), SignalSpec(hidden_states=lasts[1:])
        return TripleLoss(student.task, teacher.read(rows, other), self, own, lasts)


@dataclass
class TripleLoss(Loss):
    """The triple loss of ``distill.distilbert`` over known rows.

    Attributes:
        spec: The task.
        reader: The teacher's outputs.
        config: Its weights.
        reads: The student's last hidden state, if the cosine counts.
        lasts: Its place, and that of the teacher's.
    """

    spec: TaskSpec
    reader: Reader
    config: DistilBertDistillation
    reads: SignalSpec
    lasts: tuple[int, ...] = ()

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many rows of logits, labels and tokens the terms are means."""
        soft = soft_count(self.spec, batch, self.config.only_predicted)
        return {"soft": soft, "task": task_count(self.spec, batch), "cosine": batch.mask.sum()}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"soft", "task", "cosine"}``; a term whose weight is 0 is left out."""
        config, spec = self.config, self.spec
        teacher, logits = self.reader(batch), student.logits.float()
        terms: dict[str, Tensor] = {}
        if config.alpha_soft:
            pairs = paired_logits(spec, logits, teacher.logits, batch, config.only_predicted)
            soft = soft_loss(spec, "kl")
            losses = [soft(own, other, config.temperature) for own, other in pairs]
            terms["soft"] = config.alpha_soft * sum(losses[1:], losses[0]) / len(losses)
        if config.alpha_task:
            terms["task"] = config.alpha_task * task_loss(spec, logits, batch)
        if config.alpha_cos:
            own, other = (side.hidden_states[last] for side, last in zip((student, teacher), self.lasts, strict=True))
            terms["cosine"] = config.alpha_cos * cosine_distance(own.float(), other, batch.mask)
        return terms
