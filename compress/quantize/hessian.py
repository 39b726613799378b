"""How sharply a loss is curved along a layer's weights: the top eigenvalue of its Hessian, by power iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

Vectors = tuple[Tensor, ...]
"""One tensor for each parameter, of its shape."""
GUARD = 1e-6
"""Added to what is divided by, so that a flat loss divides nothing by 0."""


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Let attention run in plain products: the fused kernels of a CPU cannot be differentiated twice."""
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        yield


class Curvature:
    """The Hessian of a loss with respect to some parameters, as a product with a vector.

    Args:
        losses: One function for each batch; their sum is the loss.
        parameters: With respect to these.
    """

    def __init__(self, losses: Sequence[Callable[[], Tensor]], parameters: Sequence[Tensor]) -> None:
        self.losses, self.parameters = losses, tuple(parameters)
        self.kept = self._gradients(losses[0]) if len(losses) == 1 else None

    def times(self, vectors: Vectors) -> Vectors:
        """Return ``H v = ∇(∇L · v)``: tensors of the shapes of the parameters, as the vectors are."""
        total: list[Tensor] = [torch.zeros_like(parameter) for parameter in self.parameters]
        for loss in self.losses:
            gradients = self.kept or self._gradients(loss)
            with twice_differentiable():
                found = torch.autograd.grad(
                    gradients, self.parameters, vectors, retain_graph=self.kept is not None, materialize_grads=True
                )
            total = [sum_so_far + product for sum_so_far, product in zip(total, found, strict=True)]
        return tuple(total)

    def _gradients(self, loss: Callable[[], Tensor]) -> Vectors:
        with twice_differentiable():
            return torch.autograd.grad(loss(), self.parameters, create_graph=True)


def top_eigenvalue(
    curvature: Curvature, generator: torch.Generator, tolerance: float = 1e-2, steps: int = 100
) -> float:
    """Return the eigenvalue of largest magnitude, with its sign: ``λ = v · H v``, ``v = H v / ‖H v‖``, repeated.

    Args:
        curvature: The Hessian.
        generator: The source of the first vector.
        tolerance: The iteration ends when the value changes by less than this part of itself.
        steps: Most products with the Hessian.
    """
    vectors = tuple(torch.randn(p.shape, generator=generator, dtype=p.dtype).to(p.device) for p in curvature.parameters)
    value = None
    for _ in range(steps):
        length = _dot(vectors, vectors).sqrt() + GUARD * GUARD
        vectors = tuple(vector / length for vector in vectors)
        product = curvature.times(vectors)
        before, value = value, float(_dot(vectors, product))
        if before is not None and abs(value - before) < tolerance * (abs(before) + GUARD):
            break
        vectors = product
    return float(value or 0.0)


def sensitivity(eigenvalues: Sequence[float]) -> float:
    """Return ``Ω = |mean λ| + std λ`` over the portions of the data, with the population's standard deviation."""
    values = torch.tensor(eigenvalues, dtype=torch.float64)
    return float(values.mean().abs() + values.std(unbiased=False))


def _dot(left: Vectors, right: Vectors) -> Tensor:
    return torch.stack([(one.double() * other.double()).sum() for one, other in zip(left, right, strict=True)]).sum()
