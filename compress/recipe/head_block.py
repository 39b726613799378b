"""The ``head`` of a recipe: what answers in the place of the head that transformers has for the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from teachers.named_block import OneNamedBlock

if TYPE_CHECKING:
    from eval.task import TaskSpec
    from teachers.taskmodel import TaskModel


class AnswerNetworkHead(BaseModel):
    """A stochastic answer network, for classes of pairs; see ``compress.architectures.answer_network``.

    Attributes:
        steps: How often it reads the first text.
        step_dropout: Share of whole steps that are dropped in training.
        dropout: Share of the features of a step that is dropped in training.
        update_first: Whether a step updates its state before it classifies, as in the paper's formula; the authors'
            code classifies first.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(default=5, ge=1, le=100)
    step_dropout: float = Field(default=0.1, ge=0, le=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    update_first: bool = False

    def on(self, base: TaskModel, task: TaskSpec, seed: int) -> TaskModel:
        """Return a copy of a network's encoder with this head.

        Raises:
            UserError: If it cannot answer this task, or has no encoder to stand on.
        """
        from compress.architectures.answer_network import with_answer_network

        return with_answer_network(base, task, seed, **dict(self))


class HeadBlock(OneNamedBlock):
    """Which head answers; exactly one.

    Attributes:
        answer_network: For classes of pairs of texts.
    """

    what: ClassVar[str] = "head"

    answer_network: AnswerNetworkHead | None = None

    def on(self, base: TaskModel, task: TaskSpec, seed: int) -> TaskModel:
        """Return a copy of a network's encoder with the head that was named; see its own ``on``."""
        named: AnswerNetworkHead = getattr(self, self.one)
        return named.on(base, task, seed)
