"""A ``transformers.Trainer`` that minimises one of our objectives, for those who have one set up already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from compress.artifact.artifact import load_model
from compress.distill.combined import CombinedDistillation
from compress.objective import ObjectiveBlock, ObjectiveTerm
from compress.reading.validation_errors import errors_in
from compress.technique import Inputs, Technique, TrainedTechnique
from eval.errors import UserError, quantity
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.encoder import model_inputs
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import term_shares
from teachers.signals.ensemble_teacher import EnsembleTeacher
from teachers.signals.hooks import observe
from teachers.signals.live_teacher import LiveTeacher
from teachers.taskmodel import TaskModel
from teachers.training.scheduled_modules import progress_at

WEIGHTS = "projections.safetensors"
"""What a checkpoint keeps of the modules that are trained beside the student."""

Teacher = TaskModel | str | Path


class DistillationTrainer(Trainer):  # type: ignore[misc]
    """Trains the student of a ``transformers.Trainer`` with a distillation objective and a teacher.

    Everything else stays the Trainer's and yours: data sets, collator, ``TrainingArguments``, callbacks. The teacher
    runs on every batch of yours, so it must have the student's tokenizer. Projections between unequal widths are
    trained with the student, kept in checkpoints (``projections.safetensors``), and left out of the saved model.
    With gradient accumulation an optimizer step has the gradient of the whole batch: each term of a loss weighs by
    how many rows, tokens or labels it is a mean of. The loss of an evaluation is the objective's too.

    Args:
        args: As for ``Trainer``.
        teacher: A ``TaskModel`` or ``Artifact``, or the folder or hub name of one; several make an ensemble. Its task
            and its order of labels are the student's.
        objective: What is minimised: a technique such as ``LogitDistillation(temperature=2.0)``, or what stands behind
            ``objective:`` in a recipe, such as ``{"distill.logits": {"alpha": 0.9}, "distill.pkd": {"weight": 0.1}}``.
        kwargs: As for ``Trainer``; without ``processing_class`` batches are taken to be tokenized as the teacher reads.

    Raises:
        UserError: Student, teacher, objective and arguments do not fit; all of it at once, as far as possible. What
            needs the training rows before training begins (``distill.margin_mse``, ``layer_map: auto``), several
            processes, embeddings and multiple choice are refused; ``compress.run`` can do them.
    """

    _signature_columns: list[str]

    def __init__(
        self,
        *args: Any,
        teacher: Teacher | Sequence[Teacher],
        objective: Technique | ObjectiveBlock | Mapping[str, Any] | str,
        **kwargs: Any,
    ) -> None:
        block = objective_block(objective)
        names = " and ".join(term.technique.name for term in block.terms)
        several = [teacher] if isinstance(teacher, Teacher) else list(teacher)
        teachers = tuple(LiveTeacher(one if isinstance(one, TaskModel) else load_model(one)) for one in several)
        source = EnsembleTeacher(teachers) if len(teachers) != 1 else teachers[0]
        super().__init__(*args, **kwargs)
        first = teachers[0].model
        self.student = TaskModel(self.model, self.processing_class or first.tokenizer, first.task, name="student")
        inputs = Inputs(teacher=source)
        problems = [
            *self._own_problems(),
            *label_problems(self.model.config, first),
            *word_problems(self.student, [one.model for one in teachers]),
            *block.check(self.student, inputs),
        ]
        if problems:
            raise UserError(*(f"DistillationTrainer: {problem}" for problem in problems))
        self.loss = block.make(inputs).bind(self.student, UnseenDataset(self.student, names))
        self.projections: nn.Module = self.loss.modules.to(self.args.device)
        if problems := self._loss_problems(names):
            raise UserError(*(f"DistillationTrainer: {problem}" for problem in problems))
        self._own_inputs = model_inputs(self.model.config)
        self._read = tuple(dict.fromkeys([*self._own_inputs, *(name for one in teachers for name in one.takes)]))
        self.model_accepts_loss_kwargs = True  # the loss is weighted for accumulation here, not divided by the Trainer
        self.add_callback(_BesideTheStudent(self.projections))

    def _own_problems(self) -> list[str]:
        """Return what of the Trainer's own settings would be passed over, or cannot work."""
        args, kind = self.args, kind_of(self.student.task.kind)
        wrong = {
            "model_init: give the model itself, for projections are made for it": self.model_init is not None,
            "compute_loss_func: the objective is the loss; leave it out": self.compute_loss_func is not None,
            "label_smoothing_factor: the objective has none; leave it out": bool(args.label_smoothing_factor),
            "torch_compile: losses read inside of the network, by hooks; leave it out": args.torch_compile,
            "trains in one process and on one device; hide the other devices (CUDA_VISIBLE_DEVICES)": (
                args.world_size > 1 or args.n_gpu > 1
            ),
            f"{kind.name}: a Trainer gives its inputs in another form; train with compress.run": (
                kind.vectors or kind.joined
            ),
        }
        return [sentence for sentence, is_wrong in wrong.items() if is_wrong]

    def _loss_problems(self, names: str) -> list[str]:
        """Return what the loss asks for and a Trainer does not give."""
        found = []
        if self.loss.groups is not None:
            found.append(
                f"{names}: wants certain rows in one batch, and a Trainer draws its own; train with compress.run"
            )
        if self.loss.whole_batch and self.args.gradient_accumulation_steps > 1:
            found.append(
                f"{names}: compares all rows of a batch; set gradient_accumulation_steps=1, or use compress.run"
            )
        if self.optimizer is not None and any(True for _ in self.projections.parameters()):
            found.append(f"{names}: has projections to train, which the optimizer given lacks; leave optimizers out")
        return found

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the objective's loss, weighted by this batch's share of its optimizer step; see ``Trainer``."""
        batch = self.loss.prepare(self._batch(inputs))
        own = {name: batch.inputs[name] for name in self._own_inputs if name in batch.inputs}
        terms = self.loss(observe(model, own, self.loss.reads), batch)
        counts = self._counts(batch)
        whole = num_items_in_batch if isinstance(num_items_in_batch, dict) else counts
        (shares,) = term_shares([counts], whole)
        loss = torch.stack([value * shares.get(name, shares[""]) for name, value in terms.items()]).sum()
        if not return_outputs:
            return loss
        return loss, model(**own)

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Return loss, logits and labels; see ``Trainer``, which gives no loss for batches without labels."""
        loss, logits, labels = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        if loss is None:
            with torch.no_grad(), suppress(_NoTargetError):
                loss = self.compute_loss(model, self._prepare_inputs(inputs))
        return loss, logits, labels

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Return the batches of an optimizer step, and over how many things each term is a mean in all of them."""
        batches, _ = super().get_batch_samples(*args, **kwargs)
        found = [self._counts(self._batch(inputs)) for inputs in batches]
        return batches, {name: sum(one[name] for one in found) for name in (found[0] if found else ())}

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Return the Trainer's optimizer, which also trains the projections."""
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if is_new:
            decayed = set(self.get_decay_parameter_names(self.projections))
            for decays in (True, False):
                own = [one for name, one in self.projections.named_parameters() if (name in decayed) == decays]
                if own:
                    optimizer.add_param_group({"params": own, "weight_decay": self.args.weight_decay * decays})
        return optimizer

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        every = [*model.parameters(), *self.projections.parameters()]
        return self.accelerator.clip_grad_norm_(every, self.args.max_grad_norm)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if not self.projections.state_dict():
            return
        file = Path(resume_from_checkpoint) / WEIGHTS
        if not file.is_file():
            raise UserError(f"{resume_from_checkpoint}: has no {WEIGHTS}, so it is no checkpoint of this objective")
        self.projections.load_state_dict(load_file(file))

    def _set_signature_columns_if_needed(self) -> None:
        """Keep the columns that the teacher reads as well."""
        super()._set_signature_columns_if_needed()
        self._signature_columns = list(dict.fromkeys([*self._signature_columns, *self._read]))

    def _batch(self, inputs: Mapping[str, Any]) -> Batch:
        """Return what the collator made as a batch of ours."""
        ids = inputs["input_ids"]
        read = {name: inputs[name] for name in self._read if inputs.get(name) is not None}
        targets = {name: value for name, value in inputs.items() if name not in read and isinstance(value, Tensor)}
        return Batch(
            {"attention_mask": torch.ones_like(ids), **read},
            _Targets(targets),
            torch.arange(len(ids), device=ids.device),
            progress_at(self.state.global_step, self.state.max_steps),
        )

    def _counts(self, batch: Batch) -> dict[str, float]:
        """Return over how many things each term is a mean; rows, for terms not named."""
        return {"": float(len(batch)), **{name: float(count) for name, count in self.loss.counts(batch).items()}}


class UnseenDataset(EncodedDataset):
    """The rows of somebody else's loader: how they are tokenized is known, they themselves only batch by batch.

    Args:
        student: Its tokenizer and task.
        names: Of the objective, for messages.
    """

    def __init__(self, student: TaskModel, names: str) -> None:
        self.encoder, self.spec, self.names = student.encoder, student.task, names

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse to give what only the rows themselves could.

        Raises:
            UserError: Always.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        raise UserError(
            f"DistillationTrainer: {self.names}: reads the training rows before training begins (their {name}), and a "
            "Trainer shows them batch by batch; choose settings that do not, or train with compress.run"
        )


class _NoTargetError(UserError):
    """The objective reads a target that the batches lack."""


class _Targets(dict[str, Tensor]):
    """What a batch has beside its inputs."""

    def __missing__(self, name: str) -> NoReturn:
        raise _NoTargetError(
            f"DistillationTrainer: the objective reads {name}, and the batches have {', '.join(self) or 'no labels'}; "
            "give the data set that column, or an objective without labels (distill.logits with alpha: 1)"
        )


class _BesideTheStudent(TrainerCallback):  # type: ignore[misc]
    """Does for the projections what the Trainer does for its model alone: gradients to zero, weights to checkpoints."""

    def __init__(self, projections: nn.Module) -> None:
        self.projections = projections

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del args, state, control, kwargs
        self.projections.zero_grad()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        del control, kwargs
        if weights := self.projections.state_dict():
            save_file(weights, Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}" / WEIGHTS)


def objective_block(objective: Technique | ObjectiveBlock | Mapping[str, Any] | str) -> ObjectiveBlock:
    """Return an objective, however it was given, as a sum of terms.

    Args:
        objective: A technique that is one loss, or what stands behind ``objective:`` in a recipe.

    Raises:
        UserError: It is no single loss, or says how it is trained.
    """
    if not isinstance(objective, Technique):
        try:
            return ObjectiveBlock.model_validate(objective)
        except ValidationError as error:
            found = errors_in(error, ObjectiveBlock, objective)
            raise UserError(*(f"objective: {one.sentence}" for one in found)) from error
    is_sum = isinstance(objective, CombinedDistillation)
    if not isinstance(objective, TrainedTechnique) or not (is_sum or objective.is_objective):
        raise UserError(f"objective: {objective.name} is not a single loss; train with compress.run")
    if "training" in objective.model_fields_set:
        said = ", ".join(sorted(objective.training.model_fields_set)) or "training"
        raise UserError(f"objective: {said}: TrainingArguments say how a Trainer trains; leave it out here")
    if isinstance(objective, CombinedDistillation):
        return objective.objective
    if problem := objective.term_problem():
        raise UserError(f"objective: {objective.name}: {problem}")
    return ObjectiveBlock(terms=(ObjectiveTerm(technique=objective),))


def label_problems(config: Any, teacher: TaskModel) -> list[str]:
    """Return why a student's outputs are not those of its teacher, one sentence at most.

    Args:
        config: The student's, of transformers.
        teacher: Has the labels in their order.
    """
    task: TaskSpec = teacher.task
    own, known = tuple(config.id2label[i] for i in sorted(config.id2label)), task.labels
    if task.outputs and len(own) != task.outputs:
        outputs = quantity(len(own), "output")
        return [f"the student has {outputs} and the teacher {teacher.name} {task.outputs}; set num_labels"]
    unnamed = tuple(f"LABEL_{i}" for i in range(len(known)))
    if kind_of(task.kind).labelled and own != known and unnamed not in (own, known):
        return [f"the student's labels are {list(own)} and the teacher's {list(known)}; give both the same order"]
    return []


def word_problems(student: TaskModel, teachers: Sequence[TaskModel]) -> list[str]:
    """Return which teachers would read other words in the student's token ids."""
    own = student.encoder.tokenizer.get_vocab()
    return [
        f"teacher {teacher.name}: its tokenizer has another vocabulary than the student's; take a student with the "
        "teacher's tokenizer, or train with compress.run, where each reads the texts itself"
        for teacher in teachers
        if teacher.encoder.tokenizer.get_vocab() != own
    ]
