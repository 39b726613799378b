"""The forms that an 8-bit export takes where no step asks for one of its own, the fastest first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compress.modules.int8_scheme import Int8

if TYPE_CHECKING:
    from eval.data.loading import Task
    from eval.task import Examples
    from teachers.taskmodel import TaskModel

CALIBRATION = 256
"""Most examples that static ranges are taken from."""
SMOOTH = 0.8
"""Share of the outliers of activations that moves to the weights where ranges are static."""
OUTLIER = 6.0
"""Inputs whose largest channel is this many times their median one are smoothed; each costs a product at run time."""
IN_FLOAT = (1, 2)
"""How many layers stay in float32, try by try; more of them are slower than per-token ranges."""
JUDGED = 32
"""Calibration examples on which it is measured how much each layer's 8 bits change the logits."""
DYNAMIC: Mapping[str, str] = {"tensor": "per-tensor dynamic quantization", "token": "per-token dynamic quantization"}
"""Ranges that need no examples, the faster first -> what messages call them."""

STATIC = "static quantization"


@dataclass(frozen=True)
class Form:
    """One way to write an export.

    Attributes:
        scheme: How it becomes 8-bit; None for float32.
        name: What notes call it.
        options: What is asked of the target.
    """

    scheme: Int8 | None
    name: str
    options: Any = None


def calibrating(task: Task) -> Examples:
    """Return the examples of a task that static ranges are taken from: of training, or else of those that choose."""
    return (task.train if len(task.train) else task.select).sample(CALIBRATION, seed=0)


def scheme_name(scheme: Int8 | None) -> str:
    """Return what notes call a scheme."""
    if scheme is None:
        return "float32"
    return DYNAMIC.get(scheme.activations, STATIC)


def default_forms(
    model: TaskModel, activations: Collection[str], calibration: Sequence[Mapping[str, Any]] = ()
) -> Iterator[Form]:
    """Yield the forms of an 8-bit export in the order in which they are tried; each is made when it is asked for.

    With examples: static ranges, with outliers of activations moved to the weights and biases that make up for the
    rounding in the mean; then the same with the layers in
    float32 that change the logits most; then, as without examples, ranges found at run time: per tensor, and per token.
    Weights have 7 bits on every processor, so a folder answers alike with and without VNNI.

    Args:
        model: What is exported.
        activations: Ranges that the target can have.
        calibration: Examples that static ranges are taken from, at most ``CALIBRATION`` of them; labels are not read.
    """
    if "static" in activations and len(calibration) and not hasattr(model.model, "stops"):  # early exits
        yield from _static(model, calibration[:CALIBRATION])
    yield from (Form(Int8(activations=kind), name) for kind, name in DYNAMIC.items() if kind in activations)


def _static(model: TaskModel, examples: Any) -> Iterator[Form]:
    from compress.quantize.calibration import Calibration, only
    from compress.quantize.static import StaticQuantization

    calibration = Calibration.of(model, examples)
    step = StaticQuantization(method="min_max", smooth=SMOOTH, correct_bias=True, keep_float="none")
    scheme = step.scheme_from(calibration, OUTLIER)
    if not scheme.ranges:
        return  # it has no linear layers that are worth 8 bits
    yield Form(scheme, STATIC)
    order = list(calibration.spread(JUDGED).by_harm(scheme))
    for count in IN_FLOAT:
        if 2 * count <= len(order):
            layers = "layer" if count == 1 else "layers"
            yield Form(only(scheme, order[count:], order), f"{STATIC}, {count} {layers} in float32")
