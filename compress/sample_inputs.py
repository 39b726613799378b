"""What a network and its layers are given when examples pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    from eval.task import Examples
    from teachers.taskmodel import TaskModel

BATCH = 16
"""Examples that run at once."""


def input_batches(student: TaskModel, examples: Examples) -> Iterator[dict[str, Tensor]]:
    """Yield the inputs of examples in their order, ``[B, L]`` each."""
    import torch

    features = student.encoder.encode(examples)
    for start in range(0, len(features), BATCH):
        arrays = student.encoder.collate(features[start : start + BATCH])
        yield {name: torch.from_numpy(values) for name, values in arrays.items()}


def visit_inputs(
    student: TaskModel,
    modules: Iterable[nn.Module],
    examples: Examples,
    visit: Callable[[nn.Module, Tensor, Tensor], None],
) -> None:
    """Run a network over examples, without dropout or gradients, and show what its layers are given.

    Args:
        student: The network.
        modules: Layers of it.
        examples: What it reads.
        visit: Is called with a layer, its input as it is, and the states of the real tokens in it, ``[tokens, width]``;
            of an input that has no such axes, all of its rows.
    """
    import torch

    from teachers.anatomy.encoder import inner_family
    from teachers.taskmodel import evaluating

    real, time_first = torch.empty(0, 0), inner_family(student.model).time_first

    def show(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        x = given[0]
        visit(module, x, x[real] if x.shape[:2] == real.shape else x.reshape(-1, x.shape[-1]))

    handles = [module.register_forward_pre_hook(show) for module in modules]
    try:
        for inputs in input_batches(student, examples):
            mask = inputs["attention_mask"].bool()
            real = mask.T if time_first else mask
            with evaluating(student.model):
                student.model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
