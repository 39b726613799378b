"""Train a full model on a task, once: the result is kept under ``COMPRESS_HOME`` and found again by its content.

The masked-language objective on unlabelled text is one of the tasks (``masked-lm``), so this trains bases as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from eval.data.loading import Task
from eval.errors import CompressError, UserError
from eval.files.home import home
from eval.files.typed_json import read_typed
from eval.proof.known_examples import remember
from eval.task import Examples
from teachers.adapters.adapter_block import AdapterBlock
from teachers.adapters.installing import install
from teachers.chosen_on import FACTS as FACTS
from teachers.file_digests import differences, file_digests, has_config
from teachers.finetuning.adapter_folder import VERSION as ADAPTER
from teachers.finetuning.adapter_folder import save_adapted
from teachers.finetuning.auxiliary_lm import VERSION as AUXILIARY_LM
from teachers.finetuning.auxiliary_lm import WithLanguageModel
from teachers.finetuning.frozen_features import kept_features
from teachers.finetuning.strategies import clashes
from teachers.losses.catalogue import NamedLoss, named
from teachers.losses.task_loss import TaskLoss
from teachers.renamed import recorded
from teachers.taskmodel import TaskModel, load_taskmodel, save_taskmodel, weights_digest
from teachers.trained_once import trained_once
from teachers.training.config import AuxiliaryLM, Training
from teachers.training.loop import train
from teachers.training.scoring import scorable
from teachers.training.threshold_choice import with_thresholds

logger = logging.getLogger("teachers.finetuning.finetune")

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
    auxiliary_lm: AuxiliaryLM | None = None,
    features: bool = False,
    adapter: AdapterBlock | None = None,
) -> tuple[TaskModel, Path]:
    """Fine-tune ``base`` on the training split, or fetch the teacher that this very call made before.

    An interrupted call goes on where it stopped.

    Args:
        base: A model folder, a hub name, or a network that is already built.
        task: The task with its data; ``task.select`` chooses the best epoch.
        training: How; the defaults of the ``training`` block otherwise.
        seed: Seeds head, order and dropout.
        name: What reports call the teacher.
        loss: What is minimised; the task's own loss by default.
        auxiliary_lm: If given, a masked-language loss on the same texts stands beside that of the task.
        features: Whether the encoder stays as it is and runs once over all texts, and the head alone is trained.
        adapter: If given, it and the head are trained, and the encoder stays as it is. It is kept beside the teacher
            (see ``teachers.finetuning.adapter_folder``), which has it merged into its weights where that is possible.

    Returns:
        The teacher and its folder: a plain Hugging Face folder with ``task.json`` and ``teacher.json`` (its history).

    Raises:
        UserError: If the base or the data is unusable.
        DivergedError: If training fails.
    """
    training = training or Training()
    also = {"auxiliary_lm": auxiliary_lm is not None, "features": features, "adapter": adapter is not None}
    problems = clashes(task.spec.kind, training, **also)
    found = [f"{strategy}: {why}" for strategy, why in problems]
    if not len(task.train):
        found.append(f"{task.source or 'the data'}: there is no train split to fine-tune on")
    if found:
        raise UserError(*found)
    if features:
        training = training.model_copy(update={"freeze": ("embeddings", "encoder")})
    model = base if isinstance(base, TaskModel) else load_taskmodel(base, task.spec, seed=seed)
    identity = {"version": VERSION, **task_identity(model, task, loss), **training_identity(training, seed)}
    if auxiliary_lm is not None:
        identity["auxiliary_lm"] = {"version": AUXILIARY_LM, **auxiliary_lm.model_dump(mode="json")}
    if features:
        identity["features"] = True
    if adapter is not None:
        identity["adapter"] = {"version": ADAPTER, **adapter.model_dump(mode="json", exclude_none=True)}
    if "encoder" in training.freeze:  # once the pooler was frozen with it
        identity["pooler"] = "trained"
    folder = kept_place(f"{task.spec.kind}-", identity, model)
    remember(task.spec.kind, task.train, task.select)
    student = replace(model, name=name)
    base_chosen = {f"{what}, base": digest for what, digest in model.chosen_on.items()}
    before = {"chosen_on": base_chosen} if base_chosen else {}

    def teach(working: Path) -> list[dict[str, Any]]:
        logger.info("training teacher %s in %s", folder.name, folder)
        if adapter is not None:
            install(student.model, adapter.adapter, seed)
        objective = loss if auxiliary_lm is None else WithLanguageModel(loss or TaskLoss(), auxiliary_lm)
        with kept_features(student, _scored_texts(task)) if features else contextlib.nullcontext():
            return train(
                student,
                task.train,
                objective,
                training,
                seed=seed,
                validation=task.select,
                folder=working,
                identity="" if loss is None else json.dumps(named(loss)),
            )

    trained_once(
        folder,
        "the teacher",
        is_kept=(folder / FACTS).is_file,
        train=teach,
        write=lambda history, beside: keep(
            with_thresholds(student, task.select), {"identity": identity, "history": history} | before, beside, adapter
        ),
    )
    return kept_teacher(folder, name), folder


def _scored_texts(task: Task) -> Examples:
    """Return the examples that the network reads again and again."""
    select = task.select if scorable(task.spec, task.select) else ()
    return Examples([*task.train, *select], "train and select")


def task_identity(model: TaskModel, task: Task, loss: NamedLoss | None) -> dict[str, Any]:
    """Return what a network learns, and what it starts from, as plain values."""
    identity: dict[str, Any] = {
        "base": model.digest,
        "tokenizer": hashlib.sha256(model.tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        "task": task.spec.model_dump(mode="json", exclude_defaults=True),
        "train": task.train.digest,
        "validation": task.select.digest,
    }
    return identity if loss is None else identity | {"loss": named(loss)}


def training_identity(training: Training, seed: int) -> dict[str, Any]:
    """Return how it is trained, as plain values."""
    return {"training": recorded(training, exclude_defaults=True), "seed": seed}


def config_identity(model: TaskModel) -> dict[str, Any]:
    """Return the network's config; new networks that differ in their activation, say, have equal weights."""
    config = model.model.config.to_dict()
    return {key: config[key] for key in config if key not in ("transformers_version", "_name_or_path")}


def kept_place(prefix: str, identity: dict[str, Any], model: TaskModel) -> Path:
    """Return where what is trained from a network is kept, and add its config to the identity.

    Earlier versions left the config of a base folder out; what they kept is taken if it has this very config.

    Args:
        prefix: Begins the folder's name.
        identity: What else tells trainings apart.
        model: What is trained, with its task set.
    """
    earlier = home() / "teachers" / f"{prefix}{key_of(identity)}"
    if (earlier / FACTS).is_file() and has_config(earlier, model):
        return earlier
    identity["config"] = config_identity(model)
    return home() / "teachers" / f"{prefix}{key_of(identity)}"


def key_of(identity: Mapping[str, Any]) -> str:
    """Return the name by which a finished training is found again."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def keep(model: TaskModel, facts: Mapping[str, Any], folder: Path, adapter: AdapterBlock | None = None) -> None:
    """Write a teacher and ``teacher.json`` into ``folder``, which must exist, and make sure that it can be read again.

    Args:
        model: The teacher.
        facts: What ``teacher.json`` says.
        folder: Where to.
        adapter: The adapter that it was trained with; it is written by itself too, and merged into the network, in
            place, if it can be.

    Raises:
        CompressError: If what was written is not what was trained.
    """
    if adapter is None:
        save_taskmodel(model, folder)
    else:
        save_adapted(model, adapter, folder)
    digest = weights_digest(model.model)
    thresholds = {"thresholds": list(model.task.thresholds)} if model.task.choose_thresholds else {}
    kept = {**facts, **thresholds, "weights": digest, "files": file_digests(folder)}
    (folder / FACTS).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    try:
        kept_teacher(folder, model.name)
    except UserError as error:
        raise CompressError(f"the trained teacher could not be read again, so it was not kept: {error}") from error


class Facts(BaseModel):
    """What of ``teacher.json`` is read again."""

    model_config = ConfigDict(extra="allow")

    history: list[dict[str, Any]] = []
    weights: str | None = None
    files: dict[str, str] = {}


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what ``teacher.json`` says of a kept teacher.

    Raises:
        UserError: If it is damaged.
    """
    return read_typed(folder / FACTS, Facts, f"remove {folder} to train it anew").model_dump(exclude_unset=True)


def kept_teacher(folder: Path, name: str) -> TaskModel:
    """Load a teacher that was kept.

    Raises:
        UserError: If its weights are not those that were trained, or a file beside them was changed.
    """
    facts = read_facts(folder)
    if changed := differences(folder, facts.get("files", {}), FACTS):
        raise UserError(*(f"{problem}; remove the folder to train it anew" for problem in changed))
    model = replace(load_taskmodel(folder), name=name)
    recorded = facts.get("weights")
    if recorded not in (None, model.digest):  # teachers that were kept before digests were have none
        raise UserError(
            f"{folder}: the weights of this kept teacher are not those that {FACTS} records ({model.digest[:12]}, "
            f"recorded {recorded[:12]}); a file was changed or mixed up; remove the folder to train it anew"
        )
    return model
