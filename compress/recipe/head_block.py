"""The ``head`` of a recipe: what answers in the place of the head that transformers has for the task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
        return _with_states_head(self, base, task, seed, config={"mix": True, **dict(self)})

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
        return _with_states_head(self, base, task, seed, config={"concat": True, **dict(self)})

    def unanswerable(self, base: TaskModel, task: TaskSpec) -> list[str]:
        """Return why it cannot answer a task over a network; nothing if it can."""
        from compress.architectures.states_head import states_unanswerable

        return states_unanswerable(base, task, "concat_pooling", tokens=False)


class KAdapterHead(BaseModel):
    """Adapters beside the encoder, and a classifier over its last states and theirs, side by side.

    Without ``adapters`` a new one is trained, on a task that holds the knowledge, with
    ``freeze: [embeddings, encoder]``; several of these then stand together under the classifier of another task.
    See ``compress.architectures.knowledge_adapter``.

    Attributes:
        adapters: Folders of models that were trained with this head over the same base.
        frozen: Whether these adapters stay as they are.
        layers: Of a new adapter: encoder layers that it reads, from 0; by default the first, the middle and the last.
        size: Likewise: channels within; by default three quarters of the hidden size.
        depth: Likewise: transformer layers for each layer that is read.
        heads: Likewise: their attention heads; by default as many as the encoder has.
        dropout: Share of the features that is dropped in training.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    adapters: tuple[str, ...] = ()
    frozen: bool = True
    layers: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    size: int | None = Field(default=None, ge=1, le=65536)
    depth: int = Field(default=2, ge=1, le=100)
    heads: int | None = Field(default=None, ge=1, le=1024)
    dropout: float = Field(default=0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _new_or_trained(self) -> KAdapterHead:
        new = sorted({"layers", "size", "depth", "heads"} & self.model_fields_set)
        if self.adapters and new:
            raise ValueError(f"{', '.join(new)}: is for a new adapter, and those of adapters are trained; leave it out")
        if not self.adapters and "frozen" in self.model_fields_set:
            raise ValueError("frozen: is for adapters that are trained, and a new one has to learn; leave it out")
        return self

    def on(self, base: TaskModel, task: TaskSpec, seed: int) -> TaskModel:
        """Return a copy of a network's encoder with this head.

        Raises:
            UserError: If it cannot answer this task, or cannot stand on this encoder.
        """
        from compress.architectures.states_head import trained_adapters
        from compress.artifact.artifact import load_model

        if not self.adapters:
            fields = [self._new(base)]
            return _with_states_head(self, base, task, seed, config={"adapters": fields, "dropout": self.dropout})
        known = [load_model(folder) for folder in self.adapters]
        adapters = [adapter for one in known for adapter in trained_adapters(one, base)]
        fields = [{**fields, "frozen": self.frozen} for one in known for fields in one.model.config.adapters]
        config = {"adapters": fields, "dropout": self.dropout}
        return _with_states_head(self, base, task, seed, adapters, config=config)

    def unanswerable(self, base: TaskModel, task: TaskSpec) -> list[str]:
        """Return why it cannot answer a task over a network; nothing if it can."""
        from compress.architectures.knowledge_adapter import unfit_fields
        from compress.architectures.states_head import states_unanswerable
        from teachers.anatomy.encoder import layer_count

        found = states_unanswerable(base, task, "k_adapter", tokens=True)
        return found if self.adapters else found + unfit_fields(self._new(base), layer_count(base.model))

    def _new(self, base: TaskModel) -> dict[str, Any]:
        from compress.architectures.knowledge_adapter import adapter_fields
        from teachers.anatomy.encoder import shape_of

        shape = shape_of(base.model.config)
        return adapter_fields(shape.hidden_size, shape.layers, shape.heads, self)


class KBertHead(BaseModel):
    """The standard network, which reads facts beside the words they are about; see ``compress.architectures``.

    Attributes:
        triples: File of the facts: subject, relation and object a line, with tabs between them.
        branches: Most facts for each mention of a subject, the first of the file; 2 in the authors' code.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    triples: str
    branches: int = Field(default=2, ge=1, le=100)

    def on(self, base: TaskModel, task: TaskSpec, seed: int) -> TaskModel:
        """Return a copy of a network, its head included, that reads the facts.

        Raises:
            UserError: If the network or the task cannot take them, or the file cannot be read.
        """
        del seed
        from compress.architectures.k_bert_network import with_knowledge

        facts, problems = self._facts(base, task)
        if problems:
            raise UserError(*problems)
        return with_knowledge(base, facts, self.branches)

    def unanswerable(self, base: TaskModel, task: TaskSpec) -> list[str]:
        """Return why it cannot answer a task over a network; nothing if it can."""
        return self._facts(base, task)[1]

    def _facts(self, base: TaskModel, task: TaskSpec) -> tuple[tuple[str, ...], list[str]]:
        """Return the facts, and why a network cannot read them for a task."""
        from compress.architectures.k_bert_network import cannot_read_facts
        from eval.knowledge.triples import read_triples

        problems = cannot_read_facts(base, task)
        try:
            return read_triples(self.triples), problems
        except UserError as error:
            return (), [*problems, *(f"head: k_bert.triples: {problem}" for problem in error.problems)]


def _with_states_head(
    head: ScalarMixHead | ConcatPoolingHead | KAdapterHead,
    base: TaskModel,
    task: TaskSpec,
    seed: int,
    adapters: Sequence[Any] = (),
    *,
    config: Mapping[str, Any],
) -> TaskModel:
    from compress.architectures.states_head import with_states_head

    if problems := head.unanswerable(base, task):
        raise UserError(*problems)
    return with_states_head(base, task, seed, adapters, **config)


Head = AnswerNetworkHead | ScalarMixHead | ConcatPoolingHead | KAdapterHead | KBertHead


class HeadBlock(OneNamedBlock):
    """Which head answers; exactly one.

    Attributes:
        answer_network: For classes of pairs of texts.
        scalar_mix: A weighted sum of the states of all layers (ELMo).
        concat_pooling: Three pooled vectors of a text (ULMFiT).
        k_adapter: The last states beside those of adapters (K-Adapter).
        k_bert: The standard head, over a network that reads facts of a knowledge graph (K-BERT).
    """

    what: ClassVar[str] = "head"

    answer_network: AnswerNetworkHead | None = None
    scalar_mix: ScalarMixHead | None = None
    concat_pooling: ConcatPoolingHead | None = None
    k_adapter: KAdapterHead | None = None
    k_bert: KBertHead | None = None

    @property
    def _named(self) -> Head:
        found: Head = getattr(self, self.one)
        return found

    def unanswerable(self, base: TaskModel, task: TaskSpec) -> list[str]:
        """Return why the head that was named cannot answer a task over a network; nothing if it can."""
        return self._named.unanswerable(base, task)

    def on(self, base: TaskModel, task: TaskSpec, seed: int) -> TaskModel:
        """Return a copy of a network's encoder with the head that was named; see its own ``on``."""
        return self._named.on(base, task, seed)
