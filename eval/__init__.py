"""The common harness: tasks, data, metrics, size, speed, paired statistics and reports.

The names below load on use, so that importing this package costs nothing. Write ``from eval import load_task``; a bare
``import eval`` would hide the builtin.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eval.data.loading import Task as Task
    from eval.data.loading import load_task as load_task
    from eval.data.roles import assign_roles as assign_roles
    from eval.encoding import EncoderSettings as EncoderSettings
    from eval.encoding import TextEncoder as TextEncoder
    from eval.errors import CompressError as CompressError
    from eval.errors import DivergedError as DivergedError
    from eval.errors import UserError as UserError
    from eval.inference import Predictions as Predictions
    from eval.inference import Predictor as Predictor
    from eval.inference import predict as predict
    from eval.measurement import measure as measure
    from eval.measurement import pair as pair
    from eval.result import Result as Result
    from eval.scores import metrics_of as metrics_of
    from eval.scores import score as score
    from eval.task import Examples as Examples
    from eval.task import TaskSpec as TaskSpec

_MODULES = {
    "data.loading": ("Task", "load_task"),
    "data.roles": ("assign_roles",),
    "errors": ("CompressError", "DivergedError", "UserError"),
    "encoding": ("EncoderSettings", "TextEncoder"),
    "inference": ("Predictions", "Predictor", "predict"),
    "measurement": ("measure", "pair"),
    "scores": ("metrics_of", "score"),
    "result": ("Result",),
    "task": ("Examples", "TaskSpec"),
}
_HOMES = {name: f"eval.{module}" for module, names in _MODULES.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'eval' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
