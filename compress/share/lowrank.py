"""Linear layers become two thin ones: the best product of low rank, by singular value decomposition."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from compress.surgery import Surgery
from compress.technique import Inputs, Measure, Need, Outcome
from compress.traits import Trait
from teachers.training.config import Training

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from teachers.taskmodel import TaskModel

logger = logging.getLogger("compress.share")

DAMPING = 1e-4
"""Part of the mean variance of the inputs that is added to every direction, so that none is given up unseen."""


class LowRank(Surgery):
    """Replace linear layers ``y = W x + b`` by ``y = B (A x) + b``, ``rank`` channels between, then fine-tune.

    W is ``[out, in]``. With ``W S = U Σ Vᵀ`` and only the ``rank`` greatest singular values kept, ``B = U Σ^½`` and
    ``A = Σ^½ Vᵀ S⁻¹``: the product of this rank that is nearest to W in ``‖(W - B A) S‖`` (Eckart, Young). S says how
    the input directions are weighted:

    - ``none``: ``S = 1``, the matrix itself;
    - ``rms``: ``S = diag(sqrt(E x_j²))``, every input channel by its root mean square, a scaling by channel as in
      ASVD with exponent 1, which takes the mean of |x_j| in its place;
    - ``covariance``: ``S Sᵀ = E x xᵀ``, S the Cholesky factor as in SVD-LLM. ``‖(W - B A) S‖² = E ‖(W - B A) x‖²``,
      so that the outputs on the calibration examples are the nearest that this rank can give, DRONE's aim.

    Both means run over the real tokens of the calibration examples, with the layers below already factorised, and a
    ten-thousandth of the mean variance is added to each channel. A layer is factorised only where that makes it
    smaller: ``rank · (in + out) < in · out``.

    Attributes:
        rank: Channels between, the same for every layer.
        energy: Part of the sum of squared singular values that every layer keeps; layers get different ranks.
        keep: Part of its weights that every layer keeps, ``rank = floor(keep · in · out / (in + out))``. Default 0.5,
            if none of the three is given.
        parts: Blocks whose linear layers are factorised.
        weighting: How input directions are weighted.
        recover: Whether the model is then trained.
        training: Default: one epoch, rate 5e-5.

    Needs:
        Training examples for recovery fine-tuning; calibration examples for a weighting.

    Reduces:
        Parameters, non-zeros, bytes and multiply-accumulates of the factorised layers: all by the same part.

    Limits:
        Layers that another step has quantized stay. The factors of a pruned matrix have none of its zeros, so layers
        that are pruned are refused; the factors can be pruned.
        Standard classes cannot hold the result; ``compress.load`` and ONNX can. Two thin products take longer than
        their multiply-accumulates say. Share layers and cut heads or neurons before, not after.

    Source:
        Chen, Yu, Dhillon, Hsieh 2021 (DRONE, NeurIPS); Yuan et al. 2023 (ASVD), arXiv 2312.05821; Wang et al. 2024
        (SVD-LLM), arXiv 2403.07378.
    """

    name: ClassVar[str] = "share.lowrank"
    version: ClassVar[int] = 2
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes", "macs"})
    requires: ClassVar[Mapping[Trait, str]] = {
        "unpruned_layers": "the factors of a matrix are new weights, without its zeros; put it before",
    }
    removes: ClassVar[frozenset[Trait]] = frozenset({"standard", "linear_layers"})
    source: ClassVar[str] = (
        "Chen, Yu, Dhillon, Hsieh 2021 (DRONE, NeurIPS); Yuan et al. 2023, arXiv 2312.05821; "
        "Wang et al. 2024, arXiv 2403.07378"
    )

    rank: int | None = Field(default=None, ge=1)
    energy: float | None = Field(default=None, gt=0, lt=1)
    keep: float | None = Field(default=None, gt=0, lt=1)
    parts: tuple[Literal["attention", "ffn"], ...] = Field(default=("attention", "ffn"), min_length=1)
    weighting: Literal["none", "rms", "covariance"] = "none"
    training: Training = Training(epochs=1, learning_rate=5e-5)

    @model_validator(mode="after")
    def _one_budget(self) -> LowRank:
        if sum(budget is not None for budget in (self.rank, self.energy, self.keep)) > 1:
            raise ValueError("give one of rank, energy and keep")
        return self

    def needed(self) -> frozenset[Need]:
        """Return what recovery fine-tuning needs, and calibration examples for a weighting."""
        return super().needed() | (frozenset[Need]({"calibration"}) if self.weighting != "none" else frozenset())

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse a choice of blocks in which there is no linear layer, and a rank that makes none smaller."""
        found = super().check(student, inputs)
        matrices = [matrix for layer in _layers(student) for matrix in _linears(student, layer, self.parts).values()]
        if not matrices:
            family = student.model.config.model_type
            return [*found, f"{self.name}: parts {list(self.parts)} of {family} hold no plain linear layer"]
        most = max(largest_rank(matrix.in_features, matrix.out_features) for matrix in matrices)
        if self.rank is not None and self.rank > most:
            found.append(f"{self.name}: rank {self.rank} makes no layer smaller; the most that does is {most}")
        return found

    def change(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Factorise layer after layer, from the first to the last."""
        import torch

        ranks: dict[str, int] = {}
        lost: dict[str, float] = {}
        with torch.no_grad():
            for layer in _layers(student):
                every = _linears(student, layer, self.parts)
                linears = {path: module for path, module in every.items() if path not in ranks}  # shared with one below
                moments = {}
                if self.weighting != "none" and inputs.calibration is not None:
                    moments = second_moments(student, list(linears.values()), inputs.calibration)
                for path, module in linears.items():
                    factors = self._factors(module, moments.get(module))
                    if factors is not None:
                        ranks[path], lost[path] = len(factors[0]), factors[2]
                        _replace(student.model, module, factors[0], factors[1])
        if not ranks:
            logger.warning("%s: no layer becomes smaller; the model stays as it is", self.name)
        return Outcome(student, {"ranks": ranks, "lost_energy": lost})

    def _factors(self, module: Any, moment: Tensor | None) -> tuple[Tensor, Tensor, float] | None:
        weight = dense(module)
        root = input_root(moment, self.weighting)
        most = largest_rank(module.in_features, module.out_features)
        if self.energy is None:
            wanted = self.rank or int((self.keep or 0.5) * weight.numel() / sum(weight.shape))
            rank = max(1, wanted)
        else:
            rank = rank_for(singular_values(weight, root), self.energy)
        if rank > min(most, getattr(module, "rank", most + 1) - 1):
            return None
        return factorise(weight, rank, root)


def largest_rank(inputs: int, outputs: int) -> int:
    """Return the greatest rank with which two matrices hold fewer numbers than one; 0 if there is none."""
    return (inputs * outputs - 1) // (inputs + outputs)


def input_root(moment: Tensor | None, weighting: str) -> Tensor | None:
    """Return S ``[in, in]`` in float64 with ``S Sᵀ`` the second moment ``[in, in]`` or its diagonal; None for ``1``."""
    import torch

    if moment is None or weighting == "none":
        return None
    moment = moment.double()
    damped = moment + torch.eye(len(moment), dtype=torch.float64) * max(
        float(moment.diagonal().mean()) * DAMPING, 1e-30
    )
    root: Tensor = damped.diagonal().sqrt().diag() if weighting == "rms" else torch.linalg.cholesky(damped)
    return root


def singular_values(weight: Tensor, root: Tensor | None) -> Tensor:
    """Return the singular values of ``W S``, greatest first."""
    import torch

    values: Tensor = torch.linalg.svdvals(weight.double() if root is None else weight.double() @ root)
    return values


def rank_for(values: Tensor, energy: float) -> int:
    """Return the least rank whose squared singular values are at least ``energy`` of the sum of all."""
    import torch

    parts = values.square().cumsum(0) / values.square().sum()
    return int(torch.searchsorted(parts, torch.tensor(energy, dtype=parts.dtype)).clamp(max=len(values) - 1)) + 1


def factorise(weight: Tensor, rank: int, root: Tensor | None = None) -> tuple[Tensor, Tensor, float]:
    """Return the two factors nearest to a matrix.

    Args:
        weight: ``[out, in]``.
        rank: Channels between.
        root: S ``[in, in]``, lower triangular; None for ``1``.

    Returns:
        A ``[rank, in]`` and B ``[out, rank]``, of the type of ``weight``, and the part of ``‖W S‖²`` that is lost.
    """
    import torch

    matrix = weight.double() if root is None else weight.double() @ root
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    # A singular vector is known but for its sign: the largest number of each left one is made positive.
    signs = left.gather(0, left.abs().argmax(dim=0, keepdim=True)).sign().squeeze(0)
    half = values[:rank].sqrt()
    first = (half * signs[:rank])[:, None] * right[:rank]
    if root is not None:
        first = torch.linalg.solve_triangular(root, first, upper=False, left=False)
    second = left[:, :rank] * (half * signs[:rank])
    lost = float(values[rank:].square().sum() / values.square().sum())
    return first.to(weight.dtype), second.to(weight.dtype), lost


def second_moments(student: TaskModel, modules: list[Any], examples: Any) -> dict[Any, Tensor]:
    """Return for each module the mean of ``x xᵀ`` over the real tokens of its inputs, ``[in, in]`` in float64."""
    import torch

    from compress.sample_inputs import visit_inputs

    sums = {module: torch.zeros(module.in_features, module.in_features, dtype=torch.float64) for module in modules}
    counts = dict.fromkeys(modules, 0)

    def count(module: nn.Module, x: Tensor, states: Tensor) -> None:
        del x
        sums[module] += (states.T @ states).double()
        counts[module] += len(states)

    visit_inputs(student, modules, examples, count)
    return {module: sums[module] / max(counts[module], 1) for module in modules}


def dense(module: Any) -> Tensor:
    """Return the matrix ``[out, in]`` of a linear layer, factorised or not."""
    weight: Tensor = module.product() if hasattr(module, "product") else module.weight
    return weight


def _layers(student: TaskModel) -> Iterator[nn.Module]:
    from teachers.anatomy.encoder import layers

    yield from dict.fromkeys(layers(student.model))


def _linears(student: TaskModel, layer: nn.Module, blocks: tuple[str, ...]) -> dict[str, Any]:
    """Return path in the network -> linear layer of the blocks, plain or factorised, each module once."""
    from torch import nn

    from compress.modules.low_rank import LowRankLinear
    from teachers.anatomy.layer_blocks import weighted_parts

    names = {module: name for name, module in student.model.named_modules()}
    kinds = (nn.Linear, LowRankLinear)
    outer = [
        layer.get_submodule(path) for path, block in weighted_parts(student.model, layer).items() if block in blocks
    ]  # XLNet's attention is one part, with its biases by head
    parts = (inner for part in outer for inner in ([part] if type(part) in kinds else part.children()))
    return {names[part]: part for part in parts if type(part) in kinds}


def _replace(network: torch.nn.Module, module: Any, first: Tensor, second: Tensor) -> None:
    """Put the factors in the place of a linear layer, wherever it stands."""
    from compress.modules.low_rank import LowRankLinear
    from teachers.anatomy.parts import exchange

    bias = module.second.bias if isinstance(module, LowRankLinear) else module.bias
    new = LowRankLinear(module.in_features, module.out_features, len(first), bias is not None)
    new.first.weight.copy_(first)
    new.second.weight.copy_(second)
    if bias is not None:
        new.second.bias.copy_(bias)
    exchange(network, {module: new.train(module.training)})
