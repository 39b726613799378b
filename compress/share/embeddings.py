"""The table of word embeddings becomes the product of a narrower one and a projection, as in ALBERT."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from compress.share.lowrank import largest_rank
from compress.surgery import Surgery
from compress.technique import Inputs, Measure, Need, Outcome
from compress.traits import UNPRUNED, Trait
from eval.kinds.kind_registry import kind_of
from teachers.training.config import Training

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from teachers.taskmodel import TaskModel

logger = logging.getLogger("compress.share")

STOCK = ("deberta-v2", "mobilebert")
"""Families with a place for a linear map right behind their tables; ALBERT and ELECTRA have a norm between."""


class FactorisedEmbeddings(Surgery):
    """Factorise the embedding matrix W ``[V, d]`` as ``T Pᵀ``, T ``[V, size]`` and P ``[d, size]``, then fine-tune.

    ``V · d`` numbers become ``V · size + size · d``. P holds the first ``size`` right singular vectors of W, and
    ``T = W P``: the nearest product of this rank (Eckart, Young). With ``weighting: frequency`` they are those of
    ``diag(sqrt(p)) W``, p the parts that the words have of all tokens of the calibration examples, one added to each
    count: words that occur often are kept best. What follows the table, its norm first, stays as it is.

    The decoder of a masked-language head that is tied to the table stays tied, through both factors:
    ``logits = T (Pᵀ x) + b``. Families whose tables are narrower than the hidden size already get a narrower one yet;
    their own projection stays.

    With ``stock: true`` the result is a standard model, which is exact where the family has a linear map right behind
    its tables: DeBERTa-v2 (all its tables are projected, on the best directions of their sum) and MobileBERT (P moves
    into the map). ALBERT and ELECTRA normalise before their map, BERT has none; ``share.layers`` with ``stock: true``
    turns models of BERT's kind into an ALBERT.

    Attributes:
        size: Channels between. Default 128 as in ALBERT.
        weighting: Whether words count by how often they occur.
        stock: Whether standard transformers must load the result.
        recover: Whether the model is then trained.
        training: Default: one epoch, rate 5e-5.

    Needs:
        Training examples for recovery fine-tuning; calibration examples to count words.

    Reduces:
        Parameters, non-zeros and bytes. Multiply-accumulates rise a little, by the projection.

    Limits:
        ``size`` must save something: less than ``V · d / (V + d)``. But for ``stock: true`` only ``compress.load`` and
        ONNX take the result. MobileBERT's masked-language head joins its table with another one and is refused.

    Source:
        Lan et al. 2020, arXiv 1909.11942.
    """

    name: ClassVar[str] = "share.embeddings"
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes"})
    adds: ClassVar[frozenset[Measure]] = frozenset({"macs"})
    requires: ClassVar[Mapping[Trait, str]] = {
        "unpruned_embeddings": "the factors of the table are new numbers, without its zeros; put it before",
    }
    removes: ClassVar[frozenset[Trait]] = frozenset({"standard"})
    source: ClassVar[str] = "Lan et al. 2020, arXiv 1909.11942"

    size: int = Field(default=128, ge=1)
    weighting: Literal["none", "frequency"] = "none"
    stock: bool = False
    training: Training = Training(epochs=1, learning_rate=5e-5)

    def needed(self) -> frozenset[Need]:
        """Return what recovery fine-tuning needs, and calibration examples to count words."""
        return super().needed() | (frozenset[Need]({"calibration"}) if self.weighting != "none" else frozenset())

    def required(self) -> Mapping[Trait, str]:
        """Return the table without zeros, and with ``stock`` the whole network."""
        if not self.stock:
            return self.requires
        return dict.fromkeys(UNPRUNED.values(), "stock: a standard model does not keep pruned weights 0; put it before")

    def removed(self) -> frozenset[Trait]:
        """Return that no standard class holds the result, but for ``stock``."""
        return frozenset() if self.stock else self.removes

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse a size that saves nothing, heads that read the table otherwise, and ``stock`` where it is inexact."""
        from teachers.anatomy.encoder import family_of, head_parts, word_embeddings

        found, network = super().check(student, inputs), student.model
        family, (rows, width) = family_of(network).model_type, word_embeddings(network).weight.shape
        if self.size > (most := largest_rank(rows, width)):
            table = f"the table of {rows} x {width} numbers"
            found.append(f"{self.name}: size {self.size} does not make {table} smaller; at most {most}")
        if self.stock and family not in STOCK:
            found.append(
                f"{self.name}: stock: no standard {family} can hold it, for it has no linear map right behind its "
                f"table; leave out stock: true ({', '.join(STOCK)} can), or make an ALBERT of it by share.layers with "
                "stock: true"
            )
        words = kind_of(student.task.kind).truth is None
        if words and (family == "mobilebert" or self.stock):
            found.append(
                f"{self.name}: the masked-language head of {family} reads the table in a way that cannot be factorised"
                f"{'; leave out stock: true' if family != 'mobilebert' else ''}"
            )
        elif words and "mlm_decoder" not in head_parts(network):
            found.append(f"{self.name}: the masked-language head of this {family} is not known")
        return found

    def change(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Factorise the table, and the decoder that is tied to it."""
        from compress.share.embedding_directions import token_shares
        from teachers.anatomy.encoder import word_embeddings

        words, width = word_embeddings(student.model).weight.shape
        if self.size > largest_rank(words, width):
            logger.warning("%s: the table has %d channels by now; it stays as it is", self.name, width)
            return Outcome(student, {"size": width})
        counted = self.weighting == "frequency" and inputs.calibration is not None
        shares = token_shares(student, inputs.calibration) if counted and inputs.calibration is not None else None
        if self.stock:
            changed, lost = _stock(student, self.size, shares)
        else:
            changed, lost = student, _factorise(student.model, self.size, shares)
        return Outcome(changed, {"size": self.size, "lost": lost})


def _factorise(network: Any, size: int, shares: Tensor | None) -> float:
    """Put factors in the place of the table and of a decoder tied to it, in place; return the part that is lost."""
    import torch

    from compress.modules.factorised import FactorisedDecoder, FactorisedEmbedding
    from compress.share.embedding_directions import principal, second_moment
    from teachers.anatomy.encoder import head_parts

    old = network.get_input_embeddings()
    weight = old.product() if isinstance(old, FactorisedEmbedding) else old.weight
    words, width = weight.shape
    with torch.no_grad():
        directions, lost = principal(second_moment(weight, shares), size)
        new: Any = FactorisedEmbedding(words, width, size, old.padding_idx)
        new.table.weight.copy_(weight.double() @ directions)
        new.project.weight.copy_(directions)
    decoder: Any = head_parts(network).get("mlm_decoder")
    factorised = isinstance(decoder, FactorisedDecoder)
    if decoder is not None and (factorised or decoder.weight is old.weight):
        tied: Any = FactorisedDecoder(width, words, size, decoder.bias is not None)
        tied.table.weight, tied.project, tied.bias = new.table.weight, new.project.weight, decoder.bias
        _put(network, decoder, tied)
    _put(network, old, new)
    return lost


def _put(network: Any, old: Any, new: Any) -> None:
    from teachers.anatomy.parts import exchange

    exchange(network, {old: new.train(old.training)})


def _stock(student: TaskModel, size: int, shares: Tensor | None) -> tuple[TaskModel, float]:
    """Return a standard model with narrower tables, whose map behind them takes the directions up."""
    from dataclasses import replace

    import torch

    from compress.share.embedding_directions import moment_of_sum, principal
    from teachers.anatomy.encoder import embedding_parts, embedding_projection, mixes_neighbours, reshaped
    from teachers.taskmodel import build_taskmodel

    old = student.model
    width = old.get_input_embeddings().weight.shape[1]
    every: Mapping[str, Any] = embedding_parts(old)
    roles = [r for r in ("words", "positions", "token_types") if r in every and every[r].weight.shape[1] == width]
    if old.config.model_type == "mobilebert":  # its map is for words alone
        roles = ["words"]
    tables = [every[role].weight for role in roles]
    with torch.no_grad():
        moment = moment_of_sum(tables, [shares if role == "words" else None for role in roles])
        directions, lost = principal(moment, size)
        built = build_taskmodel(reshaped(old.config, embedding_size=size), student.tokenizer, student.task)
        new = built.model
        given = dict(old.named_parameters())
        for name, parameter in new.named_parameters():
            if name in given and given[name].shape == parameter.shape:
                parameter.copy_(given[name])
        for role, table in zip(roles, tables, strict=True):
            embedding_parts(new)[role].weight.copy_(table.double() @ directions)  # type: ignore[operator]
        before, after = embedding_projection(old), embedding_projection(new)
        if after is None:
            raise TypeError(f"{old.config.model_type} of this size has no map behind its tables")
        if before is None or (width == old.config.hidden_size and not mixes_neighbours(old.config)):  # not used so far
            after.weight.copy_(directions)
            if after.bias is not None:
                after.bias.zero_()
        else:
            pieces = torch.split(before.weight.double(), width, dim=1)
            after.weight.copy_(torch.cat([piece @ directions for piece in pieces], dim=1))
    return replace(student, model=new), lost
