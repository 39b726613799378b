"""Distillations whose student is a custom architecture: it replaces the model that comes in, and is then trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from compress.distill.components.distillation import Distillation
from compress.technique import Inputs, Measure, Need, Outcome, Technique
from eval.kinds.kind import Kind
from eval.kinds.kind_registry import all_kinds, kind_of
from teachers.losses.task_loss import TaskLoss
from teachers.taskmodel import TaskModel, build_taskmodel

if TYPE_CHECKING:
    import torch

    from compress.architectures.token_network import TextConfig


class OwnNetworkDistillation(Distillation):
    """Base of these distillations; each says what its network is and what its weights begin with.

    Attributes:
        alpha: Weight of the soft targets against the labels, 0 to 1.
        dense_size: Width of the head's hidden layer.
        dropout: Share of the head's hidden neurons that is dropped in training.
    """

    is_objective: ClassVar[bool] = False
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes", "macs"})

    alpha: float = Field(default=1.0, ge=0, le=1)
    dense_size: int = Field(default=200, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)

    def answers(self, kind: Kind) -> bool:
        """Return whether the network answers this kind of task."""
        raise NotImplementedError(f"{type(self).__name__} does not implement answers")

    def config(self, student: TaskModel) -> TextConfig:
        """Return the config of the network that takes the place of ``student``."""
        raise NotImplementedError(f"{type(self).__name__} does not implement config")

    def begin(self, student: TaskModel, network: TaskModel, inputs: Inputs) -> dict[str, Any]:
        """Fill the new network from the model that comes in, in place, and return facts."""
        raise NotImplementedError(f"{type(self).__name__} does not implement begin")

    def needed(self) -> frozenset[Need]:
        """Return the training examples, and a teacher unless only the labels count."""
        return self.needs if self.alpha else self.needs - {"teacher"}

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse kinds of tasks that the network has no answer to, and pairs that nothing separates."""
        del inputs
        task, found = student.task, []
        if not self.answers(kind_of(task.kind)):
            known = ", ".join(kind.name for kind in all_kinds() if self.answers(kind))
            found.append(f"{self.name}: cannot do {task.kind} with {self.makes}; it does {known}")
        if task.pair and student.tokenizer.sep_token_id is None:
            found.append(f"{self.name}: the tokenizer has no separator, which tells the texts of a pair apart")
        return found

    def network_for(self, student: TaskModel, seed: int = 0) -> TaskModel:
        """Return the new network with random weights."""
        return build_taskmodel(self.config(student), student.tokenizer, student.task, seed=seed, name=student.name)

    def reading(self, student: TaskModel, inputs: Inputs) -> TaskModel:
        """Return the model that comes in with the tokenizer of the new network; by default its own."""
        del inputs
        return student

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Build the network, fill it, and train it."""
        network = self.network_for(self.reading(student, inputs), generator.initial_seed())
        facts = self.begin(student, network, inputs)
        objective = self.make_objective(inputs) if self.alpha else TaskLoss()
        history = self.train(network, inputs, objective, generator)
        config = network.model.config
        shape = {"network": config.model_type, "embedding_size": config.embedding_size}
        return Outcome(network, {**shape, **facts, "history": history})

    def without_teacher(self) -> Technique:
        """Return the same network, trained on labels only."""
        return self.model_copy(update={"alpha": 0.0})


def text_settings(student: TaskModel) -> dict[str, Any]:
    """Return the fields of a ``TextConfig`` that follow from tokenizer and task."""
    from compress.architectures.token_network import places_of_texts

    return {
        "vocab_size": int(student.model.config.vocab_size),
        **places_of_texts(student.tokenizer, student.task),
        "pad_token_id": int(student.tokenizer.pad_token_id),
    }
