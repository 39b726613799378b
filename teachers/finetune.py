"""Train a full model on a task, once: the result is kept under ``COMPRESS_HOME`` and found again by its content.

The masked-language objective on unlabelled text is one of the tasks (``masked-lm``), so this trains bases as well.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.task import Task
from eval.writing import whole_folder
from teachers.config import Training
from teachers.home import home
from teachers.losses import NamedLoss, named
from teachers.taskmodel import TaskModel, load_taskmodel, save_taskmodel
from teachers.training import train

logger = logging.getLogger("teachers.finetune")

VERSION = 1
"""Raised when the same base, data and settings give another teacher."""


def finetune(
    base: str | Path | TaskModel,
    task: Task,
    training: Training | None = None,
    *,
    seed: int = 13,
    name: str = "teacher",
    loss: NamedLoss | None = None,
) -> tuple[TaskModel, Path]:
    """Fine-tune ``base`` on the training split, or fetch the teacher that this very call made before.

    An interrupted call goes on where it stopped.

    Args:
        base: A model folder, a hub name, or a network that is already built.
        task: The task with its data; the validation split chooses the best epoch.
        training: How; the defaults of the ``training`` block otherwise.
        seed: Seeds head, order and dropout.
        name: What reports call the teacher.
        loss: What is minimised; the task's own loss by default.

    Returns:
        The teacher and its folder: a plain Hugging Face folder with ``task.json`` and ``teacher.json`` (its history).

    Raises:
        UserError: If the base or the data is unusable.
        DivergedError: If training fails.
    """
    training = training or Training()
    if not len(task.train):
        raise UserError(f"{task.source or 'the data'}: there is no train split to fine-tune on")
    model = base if isinstance(base, TaskModel) else load_taskmodel(base, task.spec, seed=seed)
    identity: dict[str, Any] = {
        "version": VERSION,
        "base": model.digest,
        "tokenizer": hashlib.sha256(model.tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        "task": task.spec.model_dump(mode="json", exclude_defaults=True),
        "train": task.train.digest,
        "validation": task.validation.digest,
        "training": training.model_dump(mode="json", exclude_defaults=True),
        "seed": seed,
    }
    if isinstance(base, TaskModel):  # new networks that differ in their activation, say, have equal weights
        config = base.model.config.to_dict()
        identity["config"] = {
            key: config[key] for key in config if key not in ("transformers_version", "_name_or_path")
        }
    if loss is not None:
        identity["loss"] = named(loss)
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    folder = home() / "teachers" / f"{task.spec.kind}-{key}"
    if not (folder / "teacher.json").is_file():
        model = replace(model, name=name)
        working = folder.with_name(folder.name + ".working")
        logger.info("training teacher %s in %s", key, folder)
        identified = "" if loss is None else json.dumps(named(loss))
        history = train(
            model,
            task.train,
            loss,
            training,
            seed=seed,
            validation=task.validation,
            folder=working,
            identity=identified,
        )
        facts = {"identity": identity, "history": history}
        _keep(model, facts, folder)
        shutil.rmtree(working, ignore_errors=True)
    return replace(load_taskmodel(folder), name=name), folder


def _keep(model: TaskModel, facts: Mapping[str, Any], folder: Path) -> None:
    with whole_folder(folder, "the teacher") as beside:
        save_taskmodel(model, beside)
        (beside / "teacher.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
