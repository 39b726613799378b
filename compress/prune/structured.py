"""Neurons, heads and whole channels are taken out through the graph of what depends on what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from compress.surgery import Surgery
from compress.technique import Inputs, Measure, Need, Outcome
from compress.traits import Trait
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from teachers.seeding import seeded
from teachers.training.config import Training

if TYPE_CHECKING:
    import torch

    from compress.prune.dependency import Dependencies
    from teachers.anatomy.axes import Axis
    from teachers.taskmodel import TaskModel

KINDS = ("ffn", "attention", "hidden", "embedding")
"""Kinds of channels."""


class StructuredPruning(Surgery):
    """Remove feed-forward neurons, attention heads, hidden or embedding channels, then run recovery fine-tuning.

    torch-pruning's dependency graph (DepGraph) finds the weights that belong to a channel, such as a row of one layer
    with the column of the next, or a channel of the residual stream in every layer. A channel's importance is the mean
    over the matrices and norms of its group of ``sum |w · dL/dw|`` (``taylor``) or ``sum w²`` (``magnitude``), each sum
    over the channel's own row or column, divided by the mean over all channels of the group. L is the task's loss over
    the calibration examples. The absolute value stands inside of the sum, as in torch-pruning: a channel whose weights
    each matter is worth something even where their first-order effects cancel. Biases are not counted.
    Where the width changes, the attention's heads get ``hidden / heads`` channels again, the best of each, and queries
    are scaled by ``sqrt(new / old channels of a head)``, so that attention scores keep their size.

    Attributes:
        ffn: Share of the feed-forward neurons to remove, 0 to below 1.
        heads: Share of the attention heads.
        hidden: Share of the hidden channels; the new width is a multiple of the heads.
        embedding: Share of the channels of factorised word embeddings.
        importance: ``taylor`` (of the task's loss), ``magnitude``, or ``random`` as a control.
        uniform: Whether every layer loses as much; otherwise the least important ones of the whole model go.
        stock: Refuse what no standard class can hold: unequal layers, and fewer heads without a smaller width.
        recover: Whether the result is trained with the objective.
        training: Default: one epoch, rate 5e-5.

    Needs:
        Training examples for recovery fine-tuning; calibration examples for ``taylor``.

    Reduces:
        Parameters, non-zeros, bytes, multiply-accumulates.

    Limits:
        Neurons can be removed from every family. Heads and widths need attention of plain linear layers: XLNet,
        MobileBERT, DeBERTa, ModernBERT, MPNet, Longformer and all decoders but OPT are refused, as the graph does not
        reach all of their channels. Widths are cut alike in all layers, of standard networks only.

    Source:
        Fang, Ma, Song, Mi, Wang 2023, arXiv 2301.12900; Taylor: Molchanov et al. 2019, arXiv 1906.10771, whose
        ``(w · dL/dw)²`` torch-pruning replaces by the absolute value.
    """

    name: ClassVar[str] = "prune.structured"
    version: ClassVar[int] = 3
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes", "macs"})
    requires: ClassVar[Mapping[Trait, str]] = {
        "linear_layers": "channels can only be cut where layers are ordinary linear ones; put it before",
    }
    source: ClassVar[str] = "Fang, Ma, Song, Mi, Wang 2023, arXiv 2301.12900"

    ffn: float = Field(default=0.25, ge=0, lt=1)
    heads: float = Field(default=0.0, ge=0, lt=1)
    hidden: float = Field(default=0.0, ge=0, lt=1)
    embedding: float = Field(default=0.0, ge=0, lt=1)
    importance: Literal["taylor", "magnitude", "random"] = "taylor"
    uniform: bool = True
    stock: bool = False
    training: Training = Training(epochs=1, learning_rate=5e-5)

    @model_validator(mode="after")
    def _makes_sense(self) -> StructuredPruning:
        if not (self.ffn or self.heads or self.hidden or self.embedding):
            raise ValueError("ffn, heads, hidden and embedding are all 0, so nothing would be removed")
        if not self.uniform and (self.hidden or self.embedding):
            raise ValueError("hidden and embedding are widths of the whole model; write uniform: true with them")
        if self.stock and not self.uniform:
            raise ValueError("standard classes have equal layers; write uniform: true with stock: true")
        if self.stock and self.heads and not self.hidden:
            raise ValueError(
                "standard classes have hidden / heads channels a head; fewer heads need a smaller hidden too"
            )
        return self

    def needed(self) -> frozenset[Need]:
        """Return what recovery fine-tuning and the importance need."""
        return super().needed() | (frozenset[Need]({"calibration"}) if self.importance == "taylor" else frozenset())

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse families and networks whose channels the graph does not reach."""
        return super().check(student, inputs) + [f"{self.name}: {problem}" for problem in self._problems(student)]

    def _problems(self, student: TaskModel) -> Iterator[str]:
        from compress.artifact.structure import structure_of
        from teachers.anatomy.encoder import attention_width, family_of, has_plain_attention, shape_of

        model, shape = student.model, shape_of(student.model.config)
        plain = has_plain_attention(model) and attention_width(model.config) == shape.hidden_size
        if not (plain and "query" in family_of(model).parts) and (self.heads or self.hidden or self.embedding):
            yield f"heads and widths of {model.config.model_type} cannot be cut through the graph; give ffn alone"
        elif self.embedding and shape.embedding_size in (None, shape.hidden_size):
            yield "the word embeddings are not factorised, so they are as wide as the hidden channels; give hidden"
        elif (self.hidden or self.embedding) and structure_of(model):
            yield "widths are cut in standard networks alone, and an earlier step made this one another; cut them first"
        if self.importance == "taylor" and kind_of(student.task.kind).vectors:
            yield "taylor reads labels, which embedding has not; take importance: magnitude"

    def change(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Score and cut."""
        if problems := [f"{self.name}: {problem}" for problem in self._problems(student)]:
            raise UserError(*problems)  # an earlier step may have changed the model
        chosen = self.choose(student, inputs, generator)
        changed = self.cut(student, chosen)
        facts: dict[str, Any] = {
            name: {path: len(kept) for path, kept in chosen[name].items()} for name in ("ffn", "attention")
        }
        return Outcome(changed, {**facts, "shape": chosen["shape"], "kept": {kind: chosen[kind] for kind in KINDS}})

    def choose(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> dict[str, Any]:
        """Return which channels stay, by kind and by the path of the module where their group begins."""
        from compress.prune.dependency import Dependencies, add_gradients, best, roots

        model = student.model
        try:
            places = roots(model)
        except UserError as error:
            raise UserError(*[f"{self.name}: {problem}" for problem in error.problems]) from error
        flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        if self.importance == "taylor" and inputs.calibration is not None:
            add_gradients(student, inputs.calibration, generator.initial_seed())
        graph = Dependencies(model)
        with seeded(generator.initial_seed()):
            shape = self._new_shape(model)
            found: dict[str, dict[str, list[int]]] = {kind: {} for kind in KINDS}
            if self.ffn:
                found["ffn"] = self._neurons(graph, places["ffn"])
                sizes = {len(kept) for kept in found["ffn"].values()}
                shape |= {"intermediate_size": sizes.pop()} if len(sizes) == 1 else {}
            if self.heads or self.hidden:
                found["attention"] = self._attention(graph, places["attention"], model, shape)
            for kind in ("hidden", "embedding"):
                if getattr(self, kind):
                    path = places[kind][0]
                    kept = best(graph.scores(kind, path, self.importance), shape[f"{kind}_size"])
                    found[kind] = {path: kept}
        for parameter, flag in flags:
            parameter.grad = None
            parameter.requires_grad_(flag)
        return {**found, "shape": shape}

    def _new_shape(self, model: Any) -> dict[str, int]:
        from teachers.anatomy.attention_heads import head_size
        from teachers.anatomy.encoder import shape_of

        old, new = shape_of(model.config), {}
        if self.hidden:
            new["heads"] = max(old.heads - int(self.heads * old.heads), 1)
            most = min(int(old.hidden_size * (1 - self.hidden)), new["heads"] * head_size(model.config))
            new["hidden_size"] = max(most // new["heads"], 1) * new["heads"]
            if old.embedding_size not in (None, old.hidden_size):
                new["embedding_size"] = int(old.embedding_size or 0)
        if self.embedding:
            new["embedding_size"] = max(int(int(old.embedding_size or 0) * (1 - self.embedding)), 1)
        return new

    def _neurons(self, graph: Dependencies, paths: list[str]) -> dict[str, list[int]]:
        from compress.prune.dependency import best, best_overall

        scores = [graph.scores("ffn", path, self.importance) for path in paths]
        if self.uniform:
            kept = [best(group, len(group) - int(self.ffn * len(group))) for group in scores]
        else:
            total = sum(map(len, scores))
            kept = best_overall(scores, total - int(self.ffn * total))
        return dict(zip(paths, kept, strict=True))

    def _attention(
        self, graph: Dependencies, paths: list[str], model: Any, shape: dict[str, int]
    ) -> dict[str, list[int]]:
        from compress.prune.dependency import best_in_heads, best_overall
        from teachers.anatomy.attention_heads import head_size

        size = head_size(model.config)
        scores = [graph.scores("attention", path, self.importance) for path in paths]
        if self.hidden:
            width = shape["hidden_size"] // shape["heads"]
            return {p: best_in_heads(s, size, shape["heads"], width) for p, s in zip(paths, scores, strict=True)}
        by_head = [group.reshape(-1, size).mean(dim=1) for group in scores]
        total = sum(map(len, by_head))
        counts = [max(len(group) - int(self.heads * len(group)), 1) for group in by_head]
        if not self.uniform:
            counts = [len(kept) for kept in best_overall(by_head, total - int(self.heads * total))]
        return {p: best_in_heads(s, size, c, size) for p, s, c in zip(paths, scores, counts, strict=True)}

    def cut(self, student: TaskModel, chosen: Mapping[str, Any]) -> TaskModel:
        """Keep the channels that ``choose`` returned, and bring the config in step as far as one can say it."""
        import torch

        from compress.prune.dependency import Dependencies, rebuilt
        from teachers.anatomy.attention_heads import head_size, number_heads
        from teachers.anatomy.axes import tensor_axes
        from teachers.anatomy.encoder import family_of, reshaped

        model, shape = student.model, chosen["shape"]
        size, widths = head_size(model.config), {"hidden_size", "embedding_size"} & set(shape)
        axes = tensor_axes(model) if widths else {}
        graph = Dependencies(model)
        for kind in ("ffn", "attention"):
            for path, kept in chosen[kind].items():
                graph.cut(kind, path, kept)
        for kind in ("hidden", "embedding"):
            for path, kept in chosen[kind].items():
                _cut_width(graph, kind, path, kept, axes)
        if "hidden_size" in shape and family_of(model).scaled_scores:
            scale = math.sqrt(shape["hidden_size"] / shape["heads"] / size)
            with torch.no_grad():
                for path in chosen["attention"]:
                    for parameter in model.get_submodule(path).parameters():
                        parameter.mul_(scale)
        if widths:
            return replace(student, model=rebuilt(model, reshaped(model.config, **shape)))
        for path in chosen["attention"]:
            number_heads(model, path)
        if "intermediate_size" in shape:
            setattr(model.config, family_of(model).config["intermediate_size"], shape["intermediate_size"])
        return student


def _cut_width(graph: Dependencies, kind: str, path: str, kept: list[int], axes: dict[str, tuple[Axis, ...]]) -> None:
    """Keep these channels, and of what is as wide without being of the same stream, such as a pooler, the same ones."""
    from teachers.anatomy.attention_heads import is_linear

    reached = graph.cut(kind, path, kept)
    for name, found in axes.items():
        owner, _, part = name.rpartition(".")
        wide = any(axis.dim == 0 and kind in axis.units for axis in found)
        if part == "weight" and wide and owner not in reached and is_linear(graph.names[owner]):
            reached |= graph.cut("hidden", owner, kept)
