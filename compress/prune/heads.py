"""Attention heads that matter least are taken out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_serializer, field_validator, model_validator

from compress.technique import Inputs, Measure, Need, Outcome, Technique
from compress.traits import Trait
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of

if TYPE_CHECKING:
    import torch

    from compress.prune.head_importance import Scores
    from teachers.taskmodel import TaskModel

Importance = Literal["paper", "code", "taylor", "entropy"]
Places = tuple[Annotated[int, Field(ge=0)], ...]


class HeadPruning(Technique):
    """Remove the attention heads that matter least, over the whole model, without training.

    With a gate ``xi_h = 1`` on what head ``h`` gives before the output projection, a head matters
    ``I_h = E_x |dL/dxi_h| = E_x |Att_h(x) · dL/dAtt_h(x)|``, divided in each layer by ``sqrt(sum I²)``. Heads are
    removed in increasing order: their rows of queries, keys and values, and their columns of the output projection.

    Attributes:
        fraction: Share of all heads of the model to remove, above 0 and below 1; the number is rounded down. 0.4 if
            nothing is chosen, which the paper's BERT bears.
        count: How many heads to remove instead.
        heads: Layer -> heads to remove, from 0, instead; nothing is measured then.
        importance: ``paper`` is the formula above, a text's tokens added up before the absolute value; ``code`` takes
            the absolute value of each token, as the authors' code does. ``taylor`` is ``sum (w · dL/dw)²`` over the
            head's weights, L the mean loss. ``entropy`` is how far the head's attention is from looking everywhere
            alike, ``log n - H`` for a token that sees n.
        normalise: Whether a layer's scores are divided by their L2 norm; without it, layers with small gradients are
            emptied first.
        steps: Rounds of equal size; the importance is measured anew before each. 1 as in the authors' code, whose
            ``exact`` is as many rounds as the paper has steps of 10%.
        least: Heads that every layer keeps.

    Needs:
        Calibration examples, with labels but for ``entropy``; nothing with ``heads``. Follow with recovery fine-tuning,
        a training step.

    Reduces:
        Parameters, non-zeros, bytes, multiply-accumulates. Where layers are shared, as in ALBERT, their heads count
        once, and are removed from all of them.

    Limits:
        No standard config says that layers have fewer heads of the same size, so the result is loaded by
        ``compress.load``; ``prune.structured`` with ``stock`` makes all heads thinner instead. XLNet's biases and
        segments by head go with their heads, and so do their rows of the projection of distances. In MPNet all layers
        share a bias with a column for each head; the heads that are left read the columns they always did. A network
        whose attention is not made of ordinary linear layers any more is refused: remove heads first.

    Source:
        Michel, Levy, Neubig 2019, arXiv 1905.10650; Taylor: Molchanov et al. 2019, arXiv 1906.10771.
    """

    name: ClassVar[str] = "prune.heads"
    version: ClassVar[int] = 4
    needs: ClassVar[frozenset[Need]] = frozenset({"calibration"})
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes", "macs"})
    requires: ClassVar[Mapping[Trait, str]] = {
        "linear_layers": "heads can only be cut while attention is made of ordinary linear layers; put it before",
    }
    removes: ClassVar[frozenset[Trait]] = frozenset({"standard", "all_heads"})
    source: ClassVar[str] = "Michel, Levy, Neubig 2019, arXiv 1905.10650"

    fraction: float | None = Field(default=None, gt=0, lt=1)
    count: int | None = Field(default=None, ge=1)
    heads: tuple[tuple[Annotated[int, Field(ge=0)], Places], ...] | None = None
    importance: Importance = "paper"
    normalise: bool = True
    steps: int = Field(default=1, ge=1)
    least: int = Field(default=1, ge=1)

    @field_validator(
        "heads", mode="before", json_schema_input_type=dict[int, Places] | tuple[tuple[int, Places], ...] | None
    )
    @classmethod
    def _from_mapping(cls, value: Any) -> Any:
        return tuple(sorted(value.items(), key=lambda item: int(item[0]))) if isinstance(value, Mapping) else value

    @field_serializer("heads")
    def _to_mapping(self, value: tuple[tuple[int, Places], ...] | None) -> dict[int, list[int]] | None:
        return None if value is None else {layer: list(heads) for layer, heads in value}

    @model_validator(mode="after")
    def _one_choice(self) -> HeadPruning:
        if sum(choice is not None for choice in (self.fraction, self.count, self.heads)) > 1:
            raise ValueError("give one of fraction, count and heads")
        return self

    def needed(self) -> frozenset[Need]:
        """Return nothing if the heads are named, for nothing is measured then."""
        return frozenset() if self.heads is not None else self.needs

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse families whose heads cannot be cut or measured, and heads that do not exist or are too many."""
        del inputs
        return [f"{self.name}: {problem}" for problem in self._problems(student)]

    def _problems(self, student: TaskModel) -> Iterator[str]:
        from teachers.anatomy.attention_heads import head_counts, shared_layers, uncuttable
        from teachers.anatomy.encoder import family_of, has_plain_attention, layer_parts, layers

        model, family = student.model, family_of(student.model).model_type
        if "attention_output" not in layer_parts(model, layers(model)[0]):
            yield f"{family} names no attention_output, whose columns heads have; prune.layers works on it"
            return
        if problem := uncuttable(model):
            yield problem
        if self.heads is None and self.importance == "entropy" and not has_plain_attention(model):
            yield f"the attention of {family} is more than products of queries and keys; take importance: taylor"
        if self.heads is None and self.importance != "entropy" and kind_of(student.task.kind).vectors:
            yield f"importance {self.importance!r} reads labels, which embedding has not; take importance: entropy"
        counts, groups = head_counts(model), shared_layers(model)
        if self.heads is not None:
            yield from self._named_problems(counts, groups)
            return
        most = sum(max(counts[group[0]] - self.least, 0) for group in groups)
        wanted = self.number(sum(counts[group[0]] for group in groups))
        if wanted > most:
            yield (
                f"{wanted} heads cannot be removed: with {self.least} kept in each layer there are {most} to choose "
                "from; remove fewer, or lower least"
            )
        elif not wanted:
            yield f"fraction {self.fraction or 0.4:g} is less than one head of this model; raise it"

    def _named_problems(self, counts: Sequence[int], groups: Sequence[Sequence[int]]) -> Iterator[str]:
        for layer, heads in self.heads or ():
            if layer >= len(counts):
                yield f"heads: the model has layers 0 to {len(counts) - 1}, not {layer}"
            elif missing := [head for head in heads if head >= counts[layer]]:
                yield f"heads: layer {layer} has heads 0 to {counts[layer] - 1}, not {missing}"
        for group in groups:
            left = counts[group[0]] - len(self.named(group))
            if left < self.least:
                yield f"heads: layer {group[0]} would keep {left}, and least is {self.least}"

    def number(self, total: int) -> int:
        """Return how many of ``total`` heads are removed."""
        return self.count if self.count is not None else int((self.fraction or 0.4) * total + 1e-9)

    def named(self, group: Sequence[int]) -> set[int]:
        """Return the heads that ``heads`` names for layers that run one module."""
        return {head for layer, heads in self.heads or () if layer in group for head in heads}

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Measure and cut, round after round."""
        from teachers.anatomy.attention_heads import head_counts, shared_layers

        if problems := self.check(student, inputs):  # an earlier step may have changed the model
            raise UserError(*problems)
        counts, groups = head_counts(student.model), shared_layers(student.model)
        left = [list(range(counts[group[0]])) for group in groups]
        measured: list[list[float]] = []
        if self.heads is not None:
            kept = [[h for h in heads if h not in self.named(group)] for heads, group in zip(left, groups, strict=True)]
            left = self._cut(student, groups, left, kept)
        total, done = self.number(sum(map(len, left))), 0
        for step in range(0 if self.heads is not None else self.steps):
            until = total * (step + 1) // self.steps
            scores = self.scores(student, inputs, generator.initial_seed())
            measured = measured or [[round(value, 6) for value in layer.tolist()] for layer in scores]
            left = self._cut(student, groups, left, kept_heads(scores, until - done, self.least))
            done = until
        kept = [heads for i in range(len(counts)) for heads, group in zip(left, groups, strict=True) if i in group]
        facts = {"kept": kept, "heads_before": counts, "heads": head_counts(student.model), "importance": measured}
        return Outcome(student, facts)

    def _cut(
        self, student: TaskModel, groups: Sequence[Sequence[int]], left: list[list[int]], kept: list[list[int]]
    ) -> list[list[int]]:
        """Keep the heads at these places, and return their numbers from before the first cut.

        Layers that run one module are cut once.
        """
        from teachers.anatomy.attention_heads import keep_heads

        for group, heads in zip(groups, kept, strict=True):
            keep_heads(student.model, group[0], heads)
        return [[numbers[place] for place in heads] for numbers, heads in zip(left, kept, strict=True)]

    def scores(self, student: TaskModel, inputs: Inputs, seed: int) -> Scores:
        """Return the importance of every head, ``[heads]`` for each distinct layer."""
        from compress.prune.head_importance import measured, normalised

        examples = inputs.calibration
        if examples is None:
            raise TypeError(f"{self.name} was applied without calibration; the engine refuses this earlier")
        found = measured(student, examples, self.importance, seed)
        return normalised(found) if self.normalise else found


def kept_heads(scores: Scores, count: int, least: int = 1) -> list[list[int]]:
    """Return for each layer the heads that stay when the ``count`` least important ones of the model are removed.

    Args:
        scores: ``[heads]`` for each layer; of equal scores the earlier head goes first.
        count: How many are removed, as far as ``least`` allows.
        least: Heads that every layer keeps.
    """
    order = sorted((float(score), i, h) for i, layer in enumerate(scores) for h, score in enumerate(layer))
    kept = [list(range(len(layer))) for layer in scores]
    for _, layer, head in order:
        if count and len(kept[layer]) > least:
            kept[layer].remove(head)
            count -= 1
    return kept
