"""The forms that an 8-bit export takes where no step asks for one of its own, the fastest first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from compress.modules.int8_scheme import Int8
from compress.quantize.dynamic import mixed
from eval.errors import quantity
from eval.kinds.kind_registry import kind_of

if TYPE_CHECKING:
    from compress.quantize.calibration import Calibration
    from eval.data.loading import Task
    from eval.task import Examples
    from teachers.taskmodel import TaskModel

VERSION = 3
"""Raised when the same model and examples give another 8-bit export: kept ones are then made anew."""
CALIBRATION = 256
"""Most examples that static ranges are taken from."""
SMOOTH = 0.8
"""Share of the outliers of activations that moves to the weights where ranges are static."""
IN_FLOAT = (1, 2)
"""How many layers stay in float32, try by try; more of them are slower than per-token ranges."""
JUDGED = 32
"""Calibration examples on which it is measured how much each layer's 8 bits change the logits."""
DYNAMIC: Mapping[str, str] = {
    "tensor": "per-tensor dynamic quantization",
    "mixed": "dynamic quantization, per-token in feed-forward networks and per-tensor elsewhere",
    "token": "per-token dynamic quantization",
}
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


def compared(task: Task) -> Examples:
    """Return the examples of a task on which an export is compared with its model: those that choose, or else texts."""
    return task.select if len(task.select) else calibrating(task)


def scheme_name(scheme: Int8 | None) -> str:
    """Return what notes call a scheme."""
    if scheme is None:
        return "float32"
    return DYNAMIC.get("mixed" if scheme.by_token else scheme.activations, STATIC)


def default_forms(
    model: TaskModel,
    activations: Collection[str],
    calibration: Sequence[Mapping[str, Any]] = (),
    exclude: Sequence[str] = (),
    lacking: Callable[[], float | None] = lambda: None,
) -> Iterator[Form]:
    """Yield the forms of an 8-bit export in the order in which they are tried; each is made when it is asked for.

    With examples: static ranges, with outliers of activations moved to the weights, weights whose rounding errors make
    up for each other (GPTQ), and biases that make up for what is left in the mean; then the same with the layers in
    float32 that change the logits most; then ranges found at run time: per tensor, ``mixed``, and per token. Where none
    of them will do, the most exact of them, with more and more layers in float32, the most harmful first. Without
    examples nothing says whether per-tensor ranges are good enough, so it begins with ``mixed``, which is as fast as
    ONNX Runtime's own ``quantize_dynamic``, and more exact.
    Pairs of weights are small enough on every processor, so a folder answers alike with and without VNNI.

    Args:
        model: What is exported.
        activations: Ranges that the target can have.
        calibration: Examples that static ranges are taken from, at most ``CALIBRATION`` of them; labels are not read.
        exclude: Modules that stay in float32 in all of them.
        lacking: Asked after the forms; returns the agreement that none of them has, or None if one will do.
    """
    static = None
    several = hasattr(model.model, "stops") or kind_of(model.task.kind).writes  # early exits, an encoder and a decoder
    if "static" in activations and len(calibration) and not several:
        static = _Static(model, calibration[:CALIBRATION], exclude)
        yield from static.forms()
    dynamic = [Int8(activations="tensor", exclude=tuple(exclude))] if len(calibration) else []
    dynamic += [mixed(model, exclude=tuple(exclude))]
    per_token = Int8(exclude=tuple(exclude))  # which is what ``mixed`` is where there are no feed-forward networks
    dynamic += [per_token] if per_token not in dynamic else []
    dynamic = [scheme for scheme in dynamic if scheme.activations in activations]
    yield from (Form(scheme, scheme_name(scheme)) for scheme in dynamic)
    if static is not None and lacking() is not None:
        yield from static.partly_float(dynamic[-1] if dynamic else static.scheme, lacking)


class _Static:
    """Static ranges that examples gave, with more and more layers in float32."""

    def __init__(self, model: TaskModel, examples: Any, exclude: Sequence[str]) -> None:
        from compress.quantize.calibration import Calibration
        from compress.quantize.static import StaticQuantization

        self.calibration: Calibration = Calibration.of(model, examples)
        how: dict[str, Any] = {"method": "min_max", "smooth": SMOOTH, "correct_bias": True}
        step = StaticQuantization(**how, keep_float="none", exclude=tuple(exclude))
        self.scheme = step.scheme_from(self.calibration, chosen_codes=True)

    @cached_property
    def order(self) -> list[str]:
        """The layers, the one whose 8 bits change the logits most first."""
        return list(self.calibration.spread(JUDGED).by_harm(self.scheme))

    def forms(self) -> Iterator[Form]:
        """Yield the forms with no layer in float32 and with ``IN_FLOAT`` of them."""
        if not self.scheme.ranges:
            return  # it has no linear layers that are worth 8 bits
        yield Form(self.scheme, STATIC)
        yield from (_without(self.scheme, self.order, count) for count in IN_FLOAT if 2 * count <= len(self.order))

    def partly_float(self, scheme: Int8, lacking: Callable[[], float | None]) -> Iterator[Form]:
        """Yield a form with more and more layers in float32, a quarter more each time, until one will do.

        It is slower than the others; smaller and mostly faster than float32.

        Args:
            scheme: With all layers in 8 bits.
            lacking: As in ``default_forms``.
        """
        if not self.scheme.ranges:
            return
        order = list(self.calibration.spread(JUDGED).by_harm(scheme))
        count = 2 * max(IN_FLOAT)
        while count < len(order) and lacking() is not None:
            yield _without(scheme, order, count)
            count += max(1, count // 4)


def _without(scheme: Int8, order: Sequence[str], count: int) -> Form:
    """Return a form with the first layers in float32."""
    from compress.quantize.calibration import only

    return Form(only(scheme, order[count:], order), f"{scheme_name(scheme)}, {quantity(count, 'layer')} in float32")
