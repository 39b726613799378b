"""In-domain pretraining: a base learns to predict masked words of the task's own texts before it learns the task.

Source: Howard and Ruder 2018, arXiv 1801.06146 (ULMFiT's second stage), with BERT's objective; Sun et al. 2019, arXiv
1905.05583, and Gururangan et al. 2020, arXiv 2004.10964 (task-adaptive pretraining).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval.data.loading import Task
from eval.errors import UserError
from eval.task import Example, Examples, TaskSpec
from teachers.anatomy.encoder import base_encoder
from teachers.finetuning.finetune import finetune
from teachers.finetuning.strategies import clashes
from teachers.taskmodel import TaskModel, load_taskmodel
from teachers.training.config import Training

logger = logging.getLogger("teachers.finetuning.in_domain")

Start = Callable[[TaskSpec], str | Path | TaskModel]
"""Returns what a training on a task starts from: a model folder, a hub name, or a network."""


def in_domain_base(start: Start, task: Task, training: Training, *, seed: int = 13) -> TaskModel:
    """Return what fine-tuning on ``task`` starts from, after its encoder has learned the task's own texts.

    The masked-language network in between is kept under ``COMPRESS_HOME`` and found again by its content. It begins
    with the masked-language head of the base where there is one; the head, and a pooler, of the result are those that
    ``start`` gives for the task.

    Args:
        start: Gives the base for a task.
        task: Its train and unlabelled texts are learned from; those of ``task.select`` choose the best epoch.
        training: How the texts are learned.
        seed: Seeds heads, order, dropout and masks.

    Raises:
        UserError: If the base or the texts are unusable.
        DivergedError: If training fails.
    """
    if found := [f"{name}: {why}" for name, why in clashes(task.spec.kind, training, in_domain=True)]:
        raise UserError(*found)
    texts = text_task(task)
    words, folder = finetune(start(texts.spec), texts, training, seed=seed, name="in-domain base")
    logger.info("in-domain base of %d texts: %s", len(texts.train), folder)
    base = start(task.spec)
    model = base if isinstance(base, TaskModel) else load_taskmodel(base, task.spec, seed=seed)
    take_encoder(model.model, words.model)
    return replace(model)  # digests are computed once an object, and the weights have changed


def text_task(task: Task) -> Task:
    """Return the masked-language task on the texts of another: each text once, both of a pair, contexts and questions.

    Train and unlabelled texts become ``train``, those of ``select`` become ``validation``; texts that report are left
    alone.
    """
    spec = TaskSpec(
        kind="masked-lm", metric="masked_accuracy", max_length=task.spec.max_length, stride=task.spec.stride
    )
    splits = {
        "train": _texts("train", task.train, task.splits.get("unlabeled", ())),
        "validation": _texts("validation", task.select),
    }
    return Task(spec, splits, task.source)


def texts_in(example: Example) -> Iterator[str]:
    """Yield the texts of an example of any kind; the words of a tagged sentence are joined by spaces."""
    for field in ("text", "text_a", "text_b", "question", "context"):
        if field in example:
            yield example[field]
    if "tokens" in example:
        yield " ".join(example["tokens"])


def _texts(name: str, *splits: Sequence[Example]) -> Examples:
    found = dict.fromkeys(text for split in splits for example in split for text in texts_in(example) if text.strip())
    return Examples([{"text": text} for text in found], name)


def take_encoder(target: Any, source: Any) -> None:
    """Copy the encoder of one network into another of the same base, in place; a pooler that only one has is left.

    Raises:
        UserError: If the encoders differ in shape.
    """
    try:
        found = base_encoder(target).load_state_dict(base_encoder(source).state_dict(), strict=False)
    except RuntimeError as error:
        raise UserError(f"in_domain: the base has another shape for words than for the task ({error})") from error
    other = [name for name in (*found.missing_keys, *found.unexpected_keys) if not name.startswith("pooler.")]
    if other:
        raise UserError(f"in_domain: the base has other parts for words than for the task: {', '.join(other[:3])}")
