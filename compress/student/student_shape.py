"""The shape of a student: its fields, and the config of transformers that they mean beside a given source."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from compress.student.layer_choice import Pick, choose_layers

if TYPE_CHECKING:
    from teachers.taskmodel import TaskModel

Positive = Annotated[int, Field(ge=1)]


class StudentShape(BaseModel):
    """A smaller network: a shape, and where its first weights come from. What is left out is as in the teacher.

    Attributes:
        from_: ``teacher``, or a model folder or hub name that gives shape, tokenizer and weights in its place;
            written ``from`` in a recipe.
        layers: A number of layers, or the teacher's layers to keep, counted from 0.
        decoder_layers: The same of a decoder that reads the encoder's states; ``layers`` are then the encoder's. A deep
            encoder with a shallow decoder (Kasai et al. 2021, arXiv 2006.10369) writes much faster.
        pick: Which layers a number means. ``spread``: evenly with the first and the last, 3 of 6 are 0, 2, 5;
            ``stride``: evenly from the first, 3 of 6 are 0, 2, 4; ``first`` or ``last``.
        hidden_size: Channels of the hidden states.
        heads: Attention heads of a layer.
        intermediate_size: Neurons of the feed-forward network.
        embedding_size: Channels of factorised word embeddings (ALBERT, ELECTRA, MobileBERT, DeBERTa).
        vocab_size: Rows of the word embeddings; only with ``init: random`` may it differ, and never be fewer than the
            tokenizer needs.
        activation: Activation of the feed-forward network, by its name in transformers.
        family: Model type. With weights, BERT, RoBERTa, ERNIE, DistilBERT and unfactorised ELECTRA can become one
            another, and each of them a Longformer (see ``teachers.conversion``); with ``init: random`` any family can
            follow any.
        max_positions: Most tokens of an input; fewer than the teacher's cut its position table, more repeat it, which
            is for ``family: longformer``.
        init: ``teacher``: all tensors of the kept layers, of equal width. ``width``: the best part of each tensor of
            a wider teacher (see ``compress.student.width``). ``embeddings``: new layers, and what lies outside of them
            (embeddings, head) from a teacher of the same family, tensor by tensor where the shape is the same.
            ``random``: new weights.
        options: Further values of the family's config in transformers, by their names there, such as
            ``{intra_bottleneck_size: 128, normalization_type: no_norm}`` of MobileBERT, or ``{attention_window: 256}``
            of Longformer: a token sees 128 to each side.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    from_: str = Field(default="teacher", alias="from", min_length=1)
    layers: Positive | tuple[int, ...] | None = None
    decoder_layers: Positive | tuple[int, ...] | None = None
    pick: Pick = "spread"
    hidden_size: Positive | None = None
    heads: Positive | None = None
    intermediate_size: Positive | None = None
    embedding_size: Positive | None = None
    vocab_size: Positive | None = None
    activation: str | None = None
    family: str | None = None
    max_positions: Positive | None = None
    init: Literal["teacher", "random", "width", "embeddings"] = "teacher"
    options: dict[str, bool | int | float | str] = Field(default_factory=dict)

    @property
    def new_layers(self) -> bool:
        """Whether no layer of the teacher is taken."""
        return self.init in ("random", "embeddings")

    def kept_layers(self, source: TaskModel) -> tuple[int, ...]:
        """Return the layers of ``source`` that the student starts with; none if its layers are new."""
        from teachers.anatomy.encoder import layer_count

        count = layer_count(source.model)
        if self.new_layers:
            return ()
        if isinstance(self.layers, tuple):
            return self.layers
        return choose_layers(count, self.layers or count, self.pick)

    def kept_decoder_layers(self, source: TaskModel) -> tuple[int, ...]:
        """Return the decoder's layers of ``source`` that the student starts with; none if its layers are new."""
        from teachers.anatomy.encoder import shape_of

        count = shape_of(source.model.config).decoder_layers
        if self.new_layers or not count:
            return ()
        if isinstance(self.decoder_layers, tuple):
            return self.decoder_layers
        return choose_layers(count, self.decoder_layers or count, self.pick)

    def config(self, source: TaskModel) -> Any:
        """Return the transformers config of the student of ``source``, its own tokenizer and all."""
        from teachers.anatomy.encoder import new_config, reshaped
        from teachers.anatomy.layer_changes import keep_layers_in_config

        config: Any = copy.deepcopy(source.model.config)
        kept = self.kept_layers(source)
        if kept:
            keep_layers_in_config(config, kept)
        if self.family is not None and self.family != model_type_of(source):
            config = new_config(self.family, config, source.tokenizer)
        for name, value in self.options.items():
            setattr(config, name, value)
        names = ("hidden_size", "heads", "intermediate_size", "embedding_size", "vocab_size", "activation")
        changes = {name: getattr(self, name) for name in (*names, "max_positions") if getattr(self, name) is not None}
        if not kept and self.layers is not None:
            changes["layers"] = self.layers
        if decoding := self.kept_decoder_layers(source):
            changes["decoder_layers"] = len(decoding)
        elif isinstance(self.decoder_layers, int):
            changes["decoder_layers"] = self.decoder_layers
        return reshaped(config, **changes)


def model_type_of(source: TaskModel) -> str:
    """Return the model type of a model's family."""
    from teachers.anatomy.encoder import family_of

    return family_of(source.model).model_type
