"""Whole layers are taken out; the rest stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from compress.student.layer_choice import choose_layers, every_other
from compress.technique import Inputs, Measure, Need, Outcome, Technique
from compress.traits import Trait
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of

if TYPE_CHECKING:
    import torch

    from eval.task import Examples
    from teachers.taskmodel import TaskModel

PickOrSearch = Literal["spread", "stride", "first", "last", "search"]


class LayerPruning(Technique):
    """Keep some layers of the encoder and drop the others, without training.

    ``h_out = f_k(… f_1(embeddings))`` over the kept layers alone, in their old order. Layers count from 0.

    Attributes:
        keep: The layers to keep, or None to choose by ``count`` or ``rate``.
        count: How many layers to keep; more than there are keeps all. Without any choice, half of them.
        rate: LayerDrop's "every other": counted from 1, layers d with ``d mod floor(1 / rate) = 0`` are dropped; above
            one half every ``round(1 / (1 - rate))``-th layer is kept.
        pick: How ``count`` layers are chosen: ``spread`` (with the first and the last, as DistilBERT's script does),
            ``stride`` (evenly from the first, LayerDrop's every other for any count), ``first``, ``last``, or
            ``search``: layers are dropped one by one, each time that without which the loss on a sample is lowest.
            ``facts`` then lists every set that was tried with its loss.
        sample: Examples that ``search`` measures the loss on.
        decoder: Of an encoder with a decoder: how many layers of the decoder stay, chosen by ``pick`` (by ``spread``
            for ``search``), or which. The encoder then stays whole, unless ``keep``, ``count`` or ``rate`` says
            otherwise.

    Needs:
        Nothing, or for ``search`` calibration examples with labels. Follow with recovery fine-tuning, a distillation
        step.

    Reduces:
        Parameters, non-zeros, bytes, multiply-accumulates. ALBERT shares its layers, so only the last of these there.

    Limits:
        The score falls until the model is trained again. ``search`` runs the sample about N²/2 times for N layers, and
        a greedy choice is not always the best set. The ``generate`` of transformers fails on a T5 with fewer layers in
        the encoder than in the decoder; ours, and its exports, write.

    Source:
        Sanh et al. 2019, arXiv 1910.01108; Fan, Grave, Joulin 2020, arXiv 1909.11556.
    """

    name: ClassVar[str] = "prune.layers"
    version: ClassVar[int] = 2
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes", "macs"})
    removes: ClassVar[frozenset[Trait]] = frozenset({"all_layers"})
    both_stacks: ClassVar[bool] = True
    source: ClassVar[str] = "Sanh et al. 2019, arXiv 1910.01108; Fan, Grave, Joulin 2020, arXiv 1909.11556"

    keep: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    pick: PickOrSearch = "spread"
    sample: int = Field(default=256, ge=1)
    decoder: (
        Annotated[int, Field(ge=1)] | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None
    ) = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _one_choice(self) -> LayerPruning:
        if self.keep is not None and self.count is not None:
            raise ValueError("give keep or count, not both")
        if self.rate is not None and (self.keep is not None or self.count is not None):
            raise ValueError("a rate says which layers to drop; leave out keep and count")
        if (self.keep is not None and list(self.keep) != sorted(set(self.keep))) or self.keep == ():
            raise ValueError(f"keep must list layers once each and ascending, got {list(self.keep or ())}")
        return self

    @property
    def searches(self) -> bool:
        """Whether the layers are found by measuring."""
        return self.pick == "search" and self.keep is None and self.rate is None and not self._whole

    @property
    def _whole(self) -> bool:
        """Whether the encoder stays as it is, for only the decoder's layers are named."""
        return self.decoder is not None and self.keep is None and self.count is None and self.rate is None

    def needed(self) -> frozenset[Need]:
        """Return calibration examples for a search."""
        return frozenset[Need]({"calibration"}) if self.searches else frozenset()

    def kept(self, total: int) -> tuple[int, ...]:
        """Return the layers that stay when there are ``total``, unless they are searched for."""
        if self._whole:
            return tuple(range(total))
        if self.keep is not None:
            return self.keep
        if self.rate is not None:
            return every_other(total, self.rate)
        return choose_layers(total, self.depth(total), "spread" if self.pick == "search" else self.pick)

    def depth(self, total: int) -> int:
        """Return how many layers stay if they are counted; half of them if nothing was chosen."""
        return min(self.count or -(-total // 2), total)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse layers that do not exist, and a search without labels."""
        from teachers.anatomy.encoder import decoder_layers, has_decoder, layer_count

        total, found = layer_count(student.model), []
        if self.decoder is not None and not has_decoder(student.model):
            found.append(f"{self.name}: decoder: the model has no decoder beside its encoder; leave it out")
        elif isinstance(self.decoder, tuple) and max(self.decoder) >= (count := len(decoder_layers(student.model))):
            found.append(
                f"{self.name}: decoder: it has layers 0 to {count - 1}, so {list(self.decoder)} cannot be kept"
            )
        missing = [layer for layer in self.keep or () if layer >= total]
        if missing:
            found.append(f"{self.name}: the model has layers 0 to {total - 1}, so {missing} cannot be kept")
        if self.searches and kind_of(student.task.kind).vectors:
            found.append(f"{self.name}: pick: search measures the loss of labels, and embedding has none; say keep")
        elif self.searches and inputs.calibration is not None:
            try:
                _sample(student, inputs, self.sample)
            except UserError as error:
                found.append(f"{self.name}: pick: search measures the loss of labels: {error}")
        return found

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Cut; nothing is learned."""
        from teachers.anatomy.encoder import layer_count
        from teachers.anatomy.layer_changes import replace_layers

        del generator
        total = layer_count(student.model)
        kept, facts = self.kept(total), {}
        if self.searches:
            from compress.prune.depth import search

            kept, facts["losses"] = search(student, self.depth(total), _sample(student, inputs, self.sample))
        replace_layers(student.model, kept)
        dropped = [layer for layer in range(total) if layer not in kept]
        if self.decoder is not None:
            decoding = self._cut_decoder(student.model)
            return Outcome(
                student, {"layers": list(kept), "decoder_layers": list(decoding), "dropped": dropped, **facts}
            )
        return Outcome(student, {"layers": list(kept), "dropped": dropped, **facts})

    def _cut_decoder(self, network: Any) -> tuple[int, ...]:
        """Keep the decoder's layers that were named, in place; return which these are."""
        from teachers.anatomy.encoder import decoder_layers
        from teachers.anatomy.layer_changes import replace_decoder_layers

        total, pick = len(decoder_layers(network)), "spread" if self.pick == "search" else self.pick
        asked = self.decoder
        kept = asked if isinstance(asked, tuple) else choose_layers(total, min(asked or total, total), pick)
        replace_decoder_layers(network, kept)
        return kept


def _sample(student: TaskModel, inputs: Inputs, count: int) -> Examples:
    """Return the first examples that have labels, of the calibration or else of the training examples."""
    from eval.task import Examples
    from teachers.data.encoded_dataset import labelled

    examples = next((split for split in (inputs.calibration, inputs.train) if split), Examples((), "calibration"))
    return labelled(student.task, examples)[:count]
