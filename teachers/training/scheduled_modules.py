"""Parts of a network that change while it is trained: masks that grow, modules that are replaced, ranges that move.

Such a part is an ``nn.Module`` with ``at_step(step, total) -> bool``. It is called before update ``step`` (from 0) of
``total``, and once more with the number of optimizer steps made whenever the network is scored and saved. It sets what
the part does from then on as a pure function of the two numbers and its own weights, so that a resumed training goes on
alike, and it returns whether the part has its last shape: weights from before are never kept as the best.

A part may also have ``rates() -> {name of an own parameter: peak learning rate}``: these parameters are trained at
their own rate, without weight decay. Both are methods of the part's class: a module of a user may have a tensor of that
name. Chance comes from torch's global generator, which checkpoints keep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from torch import nn

from teachers.training.config import Training


def progress_at(step: int, total: int) -> float:
    """Return where optimizer step ``step`` (from 0) of ``total`` stands between the first, 0, and the last, 1.

    Both ends of a schedule are thus values that a step has. A training of a single step has but the last.
    """
    return step / (total - 1) if total > 1 else 1.0


class Scheduled:
    """The parts of some modules that follow the steps of a training.

    Args:
        modules: What is trained.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        every = {id(part): part for module in modules for part in module.modules()}
        self.parts: list[Any] = list(every.values())

    def at_step(self, step: int, total: int) -> bool:
        """Tell every part where the training stands; return whether all have their last shape."""
        settled = [part.at_step(step, total) for part in self.parts if hasattr(type(part), "at_step")]
        return all(settled)

    def rates(self) -> dict[nn.Parameter, float]:
        """Return the parameters that have a peak learning rate of their own."""
        return {
            getattr(part, name): value
            for part in self.parts
            if hasattr(type(part), "rates")
            for name, value in part.rates().items()
        }


def parameter_groups(
    trained: Sequence[nn.Parameter],
    rates: Mapping[nn.Parameter, float],
    training: Training,
    factors: Mapping[nn.Parameter, float] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return AdamW's groups, each with its ``peak`` rate: matrices with weight decay, vectors and ``rates`` without.

    Args:
        trained: Every parameter once.
        rates: Peak rates of those that have one of their own.
        training: Gives rate and decay of the others.
        factors: What the rate of the others is multiplied by; 1 where nothing is said.
    """
    groups: list[dict[str, Any]] = []
    usual = [parameter for parameter in trained if parameter not in rates]
    for factor in dict.fromkeys(factors.get(parameter, 1.0) for parameter in usual):
        own = [parameter for parameter in usual if factors.get(parameter, 1.0) == factor]
        peak = training.learning_rate * factor
        groups.append({"params": [p for p in own if p.ndim >= 2], "weight_decay": training.weight_decay, "peak": peak})
        groups.append({"params": [p for p in own if p.ndim < 2], "weight_decay": 0.0, "peak": peak})
    for peak in dict.fromkeys(rates.values()):
        own = [parameter for parameter in trained if rates.get(parameter) == peak]
        groups.append({"params": own, "weight_decay": 0.0, "peak": peak})
    return [group for group in groups if group["params"]]
