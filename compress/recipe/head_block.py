"""The ``head`` of a recipe: what answers in the place of the head that transformers has for the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from eval.errors import UserError
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

    def unanswerable(self, base: TaskModel, task: TaskSpec) -> list[str]:
        """Return why it cannot answer a task over a network; nothing if it can."""
        from compress.architectures.answer_network import unanswerable

        return unanswerable(base, task)


class ScalarMixHead(BaseModel):
    """A classifier over a weighted sum of the states of all layers; see ``compress.architectures.states_head``.

    Attributes:
        layer_norm: Whether each layer's states are normalised before they are weighted.
        dropout: Share of the features that is dropped in training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    layer_norm: bool = False
    dropout: float = Field(default=0.1, ge=0, lt=1)

    def on(self, base: TaskModel, task: TaskSpec, seed: int) -> TaskModel:
        """Return a copy of a network's encoder with this head.

        Raises:
            UserError: If it cannot answer this task, or cannot stand on this encoder.
        """
        return _with_states_head(self, base, task, seed, mix=True, **dict(self))

    def unanswerable(self, base: TaskModel, task: TaskSpec) -> list[str]:
        """Return why it cannot answer a task over a network; nothing if it can."""
        from compress.architectures.states_head import states_unanswerable

        return states_unanswerable(base, task, "scalar_mix", tokens=True)


class ConcatPoolingHead(BaseModel):
    """A classifier over three pooled vectors of a text; see ``compress.architectures.states_head``.

    Attributes:
        dense_size: Width of its hidden layer.
        dropout: Share of the features that is dropped in training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dense_size: int = Field(default=50, ge=1, le=65536)
    dropout: float = Field(default=0.1, ge=0, lt=1)

    def on(self, base: TaskModel, task: TaskSpec, seed: int) -> TaskModel:
        """Return a copy of a network's encoder with this head.

        Raises:
            UserError: If it cannot answer this task, or cannot stand on this encoder.
        """
        return _with_states_head(self, base, task, seed, concat=True, **dict(self))

    def unanswerable(self, base: TaskModel, task: TaskSpec) -> list[str]:
        """Return why it cannot answer a task over a network; nothing if it can."""
        from compress.architectures.states_head import states_unanswerable

        return states_unanswerable(base, task, "concat_pooling", tokens=False)


def _with_states_head(
    head: ScalarMixHead | ConcatPoolingHead, base: TaskModel, task: TaskSpec, seed: int, **fields: Any
) -> TaskModel:
    from compress.architectures.states_head import with_states_head

    if problems := head.unanswerable(base, task):
        raise UserError(*problems)
    return with_states_head(base, task, seed, **fields)


class HeadBlock(OneNamedBlock):
    """Which head answers; exactly one.

    Attributes:
        answer_network: For classes of pairs of texts.
        scalar_mix: A weighted sum of the states of all layers (ELMo).
        concat_pooling: Three pooled vectors of a text (ULMFiT).
    """

    what: ClassVar[str] = "head"

    answer_network: AnswerNetworkHead | None = None
    scalar_mix: ScalarMixHead | None = None
    concat_pooling: ConcatPoolingHead | None = None

    def unanswerable(self, base: TaskModel, task: TaskSpec) -> list[str]:
        """Return why the head that was named cannot answer a task over a network; nothing if it can."""
        named: AnswerNetworkHead | ScalarMixHead | ConcatPoolingHead = getattr(self, self.one)
        return named.unanswerable(base, task)

    def on(self, base: TaskModel, task: TaskSpec, seed: int) -> TaskModel:
        """Return a copy of a network's encoder with the head that was named; see its own ``on``."""
        named: AnswerNetworkHead | ScalarMixHead | ConcatPoolingHead = getattr(self, self.one)
        return named.on(base, task, seed)
