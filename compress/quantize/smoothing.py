"""SmoothQuant for a network in torch: what the channels of each input are divided by before they are rounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.quantize.ranges import smoothing, together

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from eval.task import Examples
    from teachers.taskmodel import TaskModel


def smoothing_factors(
    student: TaskModel, linear: Iterable[nn.Module], examples: Examples, strength: float
) -> dict[nn.Module, Tensor]:
    """Return ``max|x_j|^a / max|w_j|^(1 - a)`` for each channel j of the input of each layer, rounded to a power of 2.

    Dividing by a power of 2 and multiplying by it are exact, so a network gives the same numbers with it and without.
    Layers that are given the same input one after the other share their factors, as queries, keys and values do, and
    so do layers with the same matrix. Source: Xiao et al. 2022, arXiv 2211.10438.

    Args:
        student: The network.
        linear: Linear layers of it.
        examples: Show how large the channels are; their labels are not read.
        strength: a, 0 to 1; how much of the difficulty moves to the weights.

    Returns:
        Layer -> float32 ``[in]``; layers that no example reached are left out.
    """
    import torch

    from compress.sample_inputs import visit_inputs

    largest: dict[nn.Module, Tensor] = {}
    given: dict[nn.Module, int] = {}
    last, inputs_so_far = torch.empty(0), 0

    def see(layer: nn.Module, x: Tensor, states: Tensor) -> None:
        nonlocal last, inputs_so_far
        inputs_so_far += x.data_ptr() != last.data_ptr() or x.shape != last.shape
        last = x  # held, so that nothing else takes its place in memory before the next layer
        given.setdefault(layer, inputs_so_far)
        if len(states):
            own = states.abs().amax(dim=0)
            largest[layer] = torch.maximum(largest[layer], own) if layer in largest else own

    visit_inputs(student, linear, examples, see)
    of = together({layer: (f"input {given[layer]}", f"matrix {id(layer.weight)}") for layer in largest})
    inputs: dict[int, Tensor] = {}
    rows: dict[int, Tensor] = {}
    for layer, seen in largest.items():
        weight: Any = layer.weight
        for group, own in ((inputs, seen), (rows, weight.detach().abs().amax(dim=0))):
            group[of[layer]] = torch.maximum(group.get(of[layer], own), own)
    factors = {
        group: torch.from_numpy(smoothing(inputs[group].float().numpy(), rows[group].float().numpy(), strength))
        for group in inputs
    }
    return {layer: torch.exp2(torch.log2(factors[of[layer]]).round()) for layer in largest}
