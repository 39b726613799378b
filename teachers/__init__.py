"""Full models: their anatomy, their training, and the signals they give to students."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "EnsembleTeacher": "teachers.signals.ensemble_teacher",
    "ModelTeacher": "teachers.signals.model_teacher",
    "PredictionsTeacher": "teachers.signals.predictions_teacher",
    "TaskLoss": "teachers.losses.task_loss",
    "TaskModel": "teachers.taskmodel",
    "Training": "teachers.training.config",
    "finetune": "teachers.finetuning.finetune",
    "load_taskmodel": "teachers.taskmodel",
    "track_with": "teachers.training.tracking",
    "train": "teachers.training.loop",
    "train_together": "teachers.finetuning.multitask",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'teachers' has no attribute {name!r}")
