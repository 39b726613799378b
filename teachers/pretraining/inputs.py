"""What a pretraining reads beside its own settings: text, lists of phrases, given pairs and dialogues."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from eval.data.sources import Source, find_sources
from eval.errors import UserError
from teachers.pretraining.settings import PretextTask, Pretraining
from teachers.pretraining.text.corpus import digest_of


def check_inputs(block: Pretraining) -> None:
    """Find everything that a block names, without reading it.

    Raises:
        UserError: If something is not there; all that is missing at once, each with its place.
    """
    problems, splits = [], set[str]()
    for place, name in [*(("text", text) for text in block.text), *_sources(block)]:
        try:
            found = find_sources(name, {})
        except UserError as error:
            problems += [f"pretrain.{place}: {problem}" for problem in error.problems]
        else:
            splits |= found.keys() if place == "text" else set()
    if splits and "train" not in splits:
        problems.append(
            f"pretrain.text: {', '.join(block.text)} has no train split; name its file train.txt or train.jsonl"
        )
    for place, name in _lists(block):
        if not Path(name).is_file():
            problems.append(f"pretrain.{place}: {name}: no such file; a list holds one phrase a line")
    if problems:
        raise UserError(*problems)


def given_sources(task: PretextTask) -> dict[str, Source]:
    """Return the pairs, dialogues or translations of a task: of its first split, and of one named validation."""
    found = find_sources(str(task.own_source), {})
    watched = {"validation": found["validation"]} if {"train", "validation"} <= found.keys() else {}
    return {"train": next(iter(found.values())), **watched}


def digests(block: Pretraining) -> dict[str, str]:
    """Return the digest of every list of phrases, and of all pairs and dialogues, that tasks name."""
    found = {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for _, name in _lists(block)}
    for stage in block.stages:
        for task in stage.tasks.values():
            if task.own_source:
                content = (digest_of(source).hex() for source in given_sources(task).values())
                found[task.own_source] = "".join(content)
    return found


def _sources(block: Pretraining) -> Iterator[tuple[str, str]]:
    for number, stage in enumerate(block.stages):
        for name, task in stage.tasks.items():
            for field in ("given", "dialogues", "translations"):
                if getattr(task, field):
                    yield f"stages.{number}.tasks.{name}.{field}", getattr(task, field)


def _lists(block: Pretraining) -> Iterator[tuple[str, str]]:
    for number, stage in enumerate(block.stages):
        for name, task in stage.tasks.items():
            if task.objectives.mlm is not None:
                for file in task.objectives.mlm.lists:
                    yield f"stages.{number}.tasks.{name}.objectives.mlm.lists", str(file)
