"""How certain an input has to be to leave early: what a speed costs and saves, and the highest that costs little."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eval.inference import Answer, batches_by_length, predict
from eval.scores import resampler
from eval.task import Examples
from teachers.taskmodel import TaskModel, evaluating

SPEEDS = tuple(step / 100 for step in range(101))
"""What is chosen from."""
HELD_OUT, MOST_HELD_OUT = 0.1, 2048
"""Share of the training examples that are kept apart for the choice where no others are given, and the most of them."""


def held_out(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Return the examples to learn from, and a part that is kept apart to choose on; both are all of fewer than two."""
    if len(examples) < 2:
        return examples, examples
    count = min(MOST_HELD_OUT, max(1, int(HELD_OUT * len(examples))))
    apart = set(random.Random(seed).sample(range(len(examples)), count))
    split: tuple[list[Any], list[Any]] = ([], [])
    for place, example in enumerate(examples):
        split[place in apart].append(example)
    return Examples(split[0], examples.name, examples.skipped), Examples(split[1], f"held-out {examples.name}")


def effect(model: TaskModel, examples: Examples) -> dict[str, Any]:
    """Return what leaving early saves and costs at the speed of the model.

    Returns:
        ``mean_layers`` that run; ``score_loss``, by how much the task's metric is lower than that of all layers, on
        these examples, whose number and name are ``measured_on``. Where labels are missing, the answers of all layers
        stand for them.
    """
    with running_all(model):
        lost = score_loss(model, examples, predict(model, examples).answers)
    found = predict(model, examples)
    return {
        "mean_layers": float(np.mean(found.layers or 0)),
        "score_loss": lost(found.answers),
        "measured_on": f"{len(examples)} {examples.name} examples",
    }


def fastest(model: TaskModel, examples: Examples, tolerance: float) -> float:
    """Return the highest speed up to which no speed loses more than ``tolerance`` of the score of all layers.

    That no lower speed may lose more keeps a speed from being chosen by luck.

    Args:
        model: A model with early exits; its own speed does not matter.
        examples: What none of its parts has learned from. Without labels, the answers of all layers stand for them.
        tolerance: In units of the task's metric.
    """
    logits = every_answer(model, examples)
    labels = [[{"label": model.task.labels[best]} for best in column] for column in logits.argmax(dim=-1).T.tolist()]
    lost = score_loss(model, examples, labels[-1])
    chosen = 0.0
    for speed in SPEEDS:
        exits = first_exit(logits, speed).tolist()
        if lost([labels[exit_][row] for row, exit_ in enumerate(exits)]) > tolerance + 1e-9:
            break
        chosen = speed
    return chosen


def first_exit(logits: Tensor, speed: float) -> Tensor:
    """Return the number of the classifier that each row leaves by, ``[N]``, for logits ``[N, exits, C]`` of all."""
    from compress.architectures.early_exit_network import goes_on

    stays = torch.stack([goes_on(one, speed) for one in logits.unbind(dim=1)], dim=1)
    stays[:, -1] = False
    return (~stays).int().argmax(dim=1)


def every_answer(model: TaskModel, examples: Examples) -> Tensor:
    """Return the logits of every classifier for each example, float32 ``[N, exits, C]``, the last one's included."""
    features = model.encoder.encode(examples)
    device = next(model.model.parameters()).device
    found: dict[int, Tensor] = {}
    for rows in batches_by_length([len(feature.ids) for feature in features], 32):
        inputs = model.encoder.collate([features[row] for row in rows])
        with evaluating(model.model):
            logits = model.model.every_answer(**{name: torch.from_numpy(x).to(device) for name, x in inputs.items()})
        found |= dict(zip(rows, logits.float().cpu(), strict=True))
    return torch.stack([found[row] for row in range(len(features))])


def score_loss(model: TaskModel, examples: Examples, whole: Sequence[Answer]) -> Callable[[Sequence[Answer]], float]:
    """Return by how much answers score less than ``whole``, those of all layers, as a function of the answers."""
    pairs = list(zip(examples, whole, strict=True))
    labelled = all("label" in example for example in examples)
    truths = examples if labelled else Examples([{**e, "label": a["label"]} for e, a in pairs], examples.name)
    everything = np.arange(len(truths))

    def score(answers: Sequence[Answer]) -> float:
        return resampler(model.task, answers, truths)(everything)

    best = score(whole)
    return lambda answers: best - score(answers)


@contextmanager
def running_all(model: TaskModel) -> Iterator[None]:
    """Let every layer of a model with early exits run for a while."""
    config = model.model.config
    speed, config.speed = config.speed, 0.0
    try:
        yield
    finally:
        config.speed = speed
