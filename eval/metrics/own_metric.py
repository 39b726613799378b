"""A metric of the user's own: a Python function of truths and predictions, known by its name."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from eval.errors import UserError, quantity
from eval.examples import Answer, Asks, Example
from eval.metrics.scorers import Indices, Metric, Scorer
from eval.one_line import first_line

Function = Callable[[Any, Any], float]
"""``(y_true, y_pred) -> score``, higher is better; see ``OwnMetric``."""


class OwnMetric(str):
    """The name of a metric, with the function that computes it.

    It is a string wherever a name is wanted: in results, reports and saved files, which hold the name alone. The
    function gets ``y_true`` and ``y_pred`` of some examples, as often as intervals need it: names of labels or numbers
    as numpy arrays; for tagging a list of tags for each text, for qa a list of expected texts and a text.

    Args:
        function: The function.
        name: What it is called; by default its ``__name__``.

    Raises:
        UserError: It has no name.

    Examples:
        >>> def share_right(y_true, y_pred):
        ...     return (y_true == y_pred).mean()
        >>> OwnMetric(share_right)
        'share_right'
    """

    function: Function

    def __new__(cls, function: Function, name: str | None = None) -> OwnMetric:
        """Return the name, which knows the function."""
        said = name or getattr(function, "__name__", "")
        if not said or said == "<lambda>":
            raise UserError("metric: the function has no name for reports; define it with def, under a name")
        made = super().__new__(cls, said)
        made.function = function
        return made

    @property
    def code(self) -> str:
        """The file that defines the function, as it is on the disk; without one, something that never recurs."""
        try:
            return Path(inspect.getsourcefile(self.function) or "").read_text(encoding="utf-8")
        except (TypeError, OSError, ValueError):
            return uuid.uuid4().hex

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Let copies keep the function."""
        return self.function, str(self)


def named_metric(name: str) -> str:
    """Return a metric that the user named: ``package.module:function`` is imported, other names stay.

    Only what a user writes goes through here, never what a model folder says: code is run.

    Raises:
        UserError: There is no such function.
    """
    module, colon, function = name.partition(":")
    if not colon:
        return name
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"metric: {name}: cannot be imported ({first_line(error)}); give package.module:function of a package that "
            "is installed, or of a file in a folder on PYTHONPATH"
        ) from error
    if not callable(found):
        raise UserError(f"metric: {name}: is no function of y_true and y_pred")
    return OwnMetric(found, name)


def as_name(value: Any) -> Any:
    """Return a function as an ``OwnMetric``; anything else stays as it is."""
    return OwnMetric(value) if callable(value) and not isinstance(value, OwnMetric) else value


def own_metric(name: OwnMetric, truths: Callable[[Example], Any], predicted: str) -> Metric:
    """Return a metric that calls the function of a user.

    Args:
        name: The name with its function.
        truths: Returns what the function gets of an example.
        predicted: The field of a prediction that it gets.
    """

    def prepare(spec: Asks, answers: Sequence[Answer], examples: Sequence[Example]) -> Scorer:
        del spec
        true, found = [truths(example) for example in examples], [answer[predicted] for answer in answers]

        def score(indices: Indices) -> float:
            try:
                return float(name.function(_taken(true, indices), _taken(found, indices)))
            except Exception as error:  # whatever the function raises
                raise UserError(
                    f"metric: {name}: the function failed on {quantity(len(indices), 'example')} "
                    f"({type(error).__name__}: {first_line(error)}); it gets y_true and y_pred and returns a number"
                ) from error

        return score

    return Metric(str(name), prepare)


def _taken(values: Sequence[Any], indices: Indices) -> Any:
    """Return the values at some places, single ones as an array, lists as a list."""
    if isinstance(values[0], str | int | float):
        return np.asarray(values)[indices]
    return [values[place] for place in indices]
