"""Sentence embedders: the student gives texts the teacher's vectors, or at least the same cosines among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from compress.distill.components.distillation import Distillation
from compress.distill.components.distillation_losses import cosine_distance
from compress.distill.components.projection import Projection
from compress.technique import Inputs
from eval.inference import batches_by_length
from eval.kinds.kind_registry import kind_of
from teachers.anatomy.encoder import shape_of
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.signals.hooks import Signals
from teachers.signals.model_teacher import Reader, TeacherSource
from teachers.taskmodel import TaskModel

SAMPLE = 8192
"""Texts whose teacher vectors give the principal axes."""


class EmbeddingDistillation(Distillation):
    """Train a sentence embedder on the vectors of a teacher, from texts alone.

    ``loss = mse · mean (p(s) - t)² + cosine · mean (1 - cos(p(s), t)) + similarity · d(S, T)`` over the pooled vectors
    ``s`` and ``t`` of a batch, where ``S`` and ``T`` hold the cosines of all pairs of its texts, ``d`` is their mean
    squared difference or ``KL(softmax(T / temperature) ‖ softmax(S / temperature))`` of every text against the others,
    and ``p`` maps the student's width to the teacher's if they differ. With ``dimensions`` the loss is
    ``sum_m w_m · loss`` of the vectors of the first ``m`` numbers of ``s`` alone (Matryoshka).

    Attributes:
        mse: Weight of the squared difference. Default 1 and alone, as in the paper.
        cosine: Weight of the angle between the two vectors of a text.
        similarity: Weight of the cosines among the texts of a batch; it needs no equal width and so no ``project``.
        relation: ``mse`` or ``kl``, how the cosines are compared.
        temperature: Of ``kl``; the lower, the more the nearest texts count.
        project: For unequal widths: ``linear`` trains a map from the student's vectors to the teacher's and throws it
            away; ``pca`` takes the teacher's vectors along as many principal axes as the student is wide, found on a
            sample of the training texts, so that the student's own vectors are the result.
        dimensions: How many of the first numbers of a vector shall do by themselves, such as ``[384, 192, 96]``. Each
            of these prefixes is a vector of its own: it is held against the teacher's whole vector by a map of its own
            (``linear``), or against as many of the teacher's principal axes (``pca``, also for equal widths).
        dimension_weights: What the loss of each of them is multiplied by; 1 each by default, as in the paper.
        training: How weights are updated.

    Needs:
        Training texts, labelled or not, and a sentence embedder as teacher; tokenizers and widths may differ.

    Reduces:
        Nothing by itself; it recovers a student that is already smaller.

    Limits:
        For embedding tasks alone. The mean is taken over all channels: of vectors of length 1, ``mse`` is
        ``2 (1 - cos) / width``, so beside ``similarity`` it counts little. Tung and Mori compare matrices of inner
        products, each row scaled to length 1, where this compares cosines. Reimers and Gurevych also put translations
        beside each text; give such texts as texts of their own. With gradient accumulation the
        vectors of the whole batch are gathered for ``S`` and ``T``, by a second forward pass (Gao et al. 2021). The
        result still gives whole vectors: whoever truncates them scales what is left to length 1 again.

    Source:
        Reimers and Gurevych 2020, arXiv 2004.09813; similarities: Tung and Mori 2019, arXiv 1907.09682; dimensions:
        Kusupati et al. 2022, arXiv 2205.13147.
    """

    name: ClassVar[str] = "distill.embedding"
    source: ClassVar[str] = (
        "Reimers and Gurevych 2020, arXiv 2004.09813; similarities: Tung and Mori 2019; "
        "dimensions: Kusupati et al. 2022"
    )

    mse: float = Field(default=1.0, ge=0)
    cosine: float = Field(default=0.0, ge=0)
    similarity: float = Field(default=0.0, ge=0)
    relation: Literal["mse", "kl"] = "mse"
    temperature: float = Field(default=0.05, gt=0)
    project: Literal["linear", "pca"] = "linear"
    dimensions: tuple[PositiveInt, ...] = ()
    dimension_weights: tuple[Annotated[float, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _weighs_every_dimension(self) -> EmbeddingDistillation:
        if len(set(self.dimensions)) < len(self.dimensions):
            raise ValueError(f"dimensions: got {list(self.dimensions)}, each may stand there once")
        if self.dimension_weights and len(self.dimension_weights) != len(self.dimensions):
            raise ValueError(
                f"dimension_weights: got {len(self.dimension_weights)} for {len(self.dimensions)} dimensions; give one "
                "for each, or leave them out"
            )
        if self.dimension_weights and not any(self.dimension_weights):
            raise ValueError("dimension_weights are all 0; give one of them a weight above 0")
        return self

    @model_validator(mode="after")
    def _learns_something(self) -> EmbeddingDistillation:
        if not (self.mse or self.cosine or self.similarity):
            raise ValueError("mse, cosine and similarity are all 0; give one of them a weight above 0")
        return self

    @property
    def pairs_vectors(self) -> bool:
        """Whether each vector is held against the teacher's of the same text, which asks for one width."""
        return bool(self.mse or self.cosine)

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse other kinds of tasks, principal axes of a teacher that is narrower, and prefixes that are no part."""
        found = []
        width = shape_of(student.model.config).hidden_size
        if not kind_of(student.task.kind).vectors:
            found.append(f"{self.name}: is for embedding tasks, this one is {student.task.kind}; take distill.logits")
        if inputs.teacher is not None and self.pairs_vectors and self.project == "pca":
            other = inputs.teacher.hidden_size
            if width > other:
                found.append(
                    f"{self.name}: project: pca cannot widen the teacher's {other} channels to the student's {width}; "
                    "use project: linear"
                )
        if max(self.dimensions, default=0) > width:
            found.append(
                f"{self.name}: dimensions: {max(self.dimensions)} is more than the student's {width} channels; give "
                f"numbers from 1 to {width}"
            )
        return found

    def bind(self, student: TaskModel, rows: EncodedDataset, teacher: TeacherSource) -> VectorLoss:
        """Compute or find the teacher's vectors for these rows, and what makes the widths equal."""
        reader = teacher.read(rows)
        own, other = shape_of(student.model.config).hidden_size, teacher.hidden_size
        sizes, axes = self.dimensions or (own,), None
        maps: list[nn.Module] = [nn.Identity() for _ in sizes]
        if self.pairs_vectors and self.project == "linear":
            maps = [Projection(size, other) for size in sizes]
        elif self.pairs_vectors and (self.dimensions or own != other):
            axes = principal_axes(_sample(rows, reader), own)
        return VectorLoss(self, reader, nn.ModuleList(maps), axes, student.task.normalize)


@dataclass
class VectorLoss(Loss):
    """The loss of ``distill.embedding`` over known rows.

    Attributes:
        config: Its weights.
        reader: The teacher's vectors.
        modules: For each of the dimensions, what maps the student's vectors to the teacher's width, or does nothing.
        axes: What the teacher's vectors are taken along, ``[teacher's width, student's width]``.
        normalize: Whether what is left of vectors is scaled to length 1.
    """

    config: EmbeddingDistillation
    reader: Reader
    modules: nn.ModuleList
    axes: Tensor | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        """Compare all texts of a batch, also of one that is cut into pieces."""
        self.whole_batch = bool(self.config.similarity)

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"mse", "cosine", "similarity"}``, those whose weight is not 0, summed over the dimensions."""
        own, other = student.logits.float(), self.reader(batch).logits.float()
        sizes = self.config.dimensions or (own.shape[1],)
        terms: dict[str, Tensor] = {}
        for size, weight, to_teacher in zip(
            sizes, self.config.dimension_weights or (1.0,) * len(sizes), self.modules, strict=True
        ):
            prefix = own if size == own.shape[1] else self._scaled(own[:, :size])
            for name, value in self._terms(prefix, other, to_teacher).items():
                terms[name] = terms.get(name, 0.0) + weight * value
        return terms

    def _terms(self, own: Tensor, other: Tensor, to_teacher: nn.Module) -> dict[str, Tensor]:
        config, terms = self.config, dict[str, Tensor]()
        if config.pairs_vectors:
            mapped, target = to_teacher(own), self._target(other, own.shape[1])
            if config.mse:
                terms["mse"] = config.mse * F.mse_loss(mapped, target)
            if config.cosine:
                terms["cosine"] = config.cosine * cosine_distance(mapped, target)
        if config.similarity:
            distance = similarity_mse(own, other)
            if config.relation == "kl":
                distance = similarity_kl(own, other, config.temperature)
            terms["similarity"] = config.similarity * distance
        return terms

    def target(self, batch: Batch) -> Tensor:
        """Return the teacher's vectors of a batch as the student's are held against them, ``[B, width]``."""
        vectors = self.reader(batch).logits.float()
        return self._target(vectors, vectors.shape[1])

    def _target(self, vectors: Tensor, size: int) -> Tensor:
        if self.axes is None:
            return vectors
        return self._scaled(vectors @ self.axes[:, :size].to(vectors.device))

    def _scaled(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1) if self.normalize else vectors


def similarities(vectors: Tensor) -> Tensor:
    """Return the cosines of all pairs of ``[n, d]``, ``[n, n]``."""
    scaled = F.normalize(vectors, dim=-1)
    return scaled @ scaled.T


def similarity_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean squared difference of the two matrices of cosines (after Tung and Mori 2019, arXiv 1907.09682).

    Args:
        student: Vectors of the texts of a batch, ``[n, d]``.
        teacher: Those of the teacher, ``[n, e]``; widths may differ.

    Examples:
        >>> import torch
        >>> round(similarity_mse(torch.eye(2), torch.ones(2, 3)).item(), 4)
        0.5
    """
    return F.mse_loss(similarities(student), similarities(teacher))


def similarity_kl(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the mean over texts of the KL from the teacher's to the student's choice among the other texts.

    A form of ``similarity_mse`` (after Tung and Mori 2019, arXiv 1907.09682) in which near texts count more.

    Args:
        student: Vectors of the texts of a batch, ``[n, d]``.
        teacher: Those of the teacher, ``[n, e]``; widths may differ.
        temperature: Divides the cosines.

    Examples:
        >>> import torch
        >>> vectors = torch.randn(4, 8)
        >>> round(abs(similarity_kl(3 * vectors, vectors, temperature=0.05).item()), 4)
        0.0
    """
    count = len(student)
    if count < 2:  # no other text to choose
        return student.sum() * 0.0
    others = ~torch.eye(count, dtype=torch.bool, device=student.device)
    own, other = (
        (similarities(side)[others].view(count, count - 1) / temperature).log_softmax(dim=-1)
        for side in (student, teacher)
    )
    return F.kl_div(own, other, reduction="batchmean", log_target=True)


def principal_axes(vectors: Tensor, size: int) -> Tensor:
    """Return the ``size`` directions along which vectors are longest, ``[d, size]``, orthonormal, longest first.

    The mean is not taken out: the products of the vectors, and so their cosines, are then kept as well as any
    projection can (Eckart and Young 1936).

    Args:
        vectors: ``[n, d]``.
        size: At most ``d``.
    """
    rows = vectors.double()
    axes: Tensor = torch.linalg.eigh(rows.T @ rows).eigenvectors.flip(1)  # eigh gives the shortest first
    return axes[:, :size].float()


def _sample(rows: EncodedDataset, reader: Reader) -> Tensor:
    """Return the teacher's vectors of at most ``SAMPLE`` rows, evenly spread, ``[n, d]``."""
    count = min(len(rows), SAMPLE)
    chosen = [place * len(rows) // count for place in range(count)]
    batches = batches_by_length([rows.lengths[row] for row in chosen], 32)
    with torch.no_grad():
        return torch.cat([reader(rows.batch([chosen[place] for place in places])).logits for places in batches]).cpu()
