"""The command that most likely comes next, ready to be copied: one line on standard error, never beside ``--json``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from teachers.training.processes import how_many

TEXT = "a text to predict"
"""What is predicted where the user's own texts are not known."""


def say_next(*words: str | Path) -> None:
    """Say the next command.

    Args:
        words: Its words, as they are before quoting.
    """
    typer.echo(f"next: {shlex.join(map(str, words))}", err=True)


def say_next_predict(export: Path) -> None:
    """Say the command that predicts an example with an export, or verifies one that has no answers."""
    from compress.export.runtime.manifest import read_manifest
    from compress.export.targets.target_registry import FIRST_TARGET, get_target

    say_next_trial(export, get_target(FIRST_TARGET).trial(read_manifest(export)["task"]["kind"]))


def say_next_trial(export: Path, trial: str) -> None:
    """Say the command that tries an export.

    Args:
        export: Its folder.
        trial: The command, with ``{out}`` for the folder and ``{text}`` for an example, as ``Target.trial`` returns it.
    """
    words = trial.split()
    text = example_of(export) if "{text}" in words else ""
    say_next(*(word.format(out=export, text=text) for word in words))


def set_again(overrides: Sequence[str] | None) -> list[str]:
    """Return the words that change the same values of a recipe again."""
    return [word for override in overrides or () for word in ("--set", override)]


def after_check(recipe: Path, overrides: Sequence[str] | None, file_only: bool, several: bool) -> list[str]:
    """Return the command after ``compress check``: a check of data and models too, training, or the plan.

    Args:
        recipe: The file.
        overrides: What was changed in it.
        file_only: Whether the file alone was looked at.
        several: Whether it has several tasks, which are trained and not compressed.
    """
    if several and not file_only:
        return ["compress", "teach", "--recipe", str(recipe), *set_again(overrides)]
    return ["compress", "check" if file_only else "plan", str(recipe), *set_again(overrides)]


def example_of(export: Path) -> str:
    """Return a line that an export can predict: a text, or the fields of its kind of task as JSON.

    Args:
        export: Its folder.
    """
    from compress.export.runtime.manifest import read_manifest
    from eval.kinds.kind_registry import kind_of

    task = read_manifest(export)["task"]
    kind = kind_of(task["kind"])
    pair = task["pair"] and not kind.vectors  # a vector is of one text, whatever pairs it was judged on
    read = {*kind.given(pair), *kind.others}
    example = {field: value for field, value in kind.probe(TEXT, pair).items() if field in read}
    if "text_b" in example:
        example["text_b"] = "another text"
    return TEXT if list(example.values()) == [TEXT] else json.dumps(example)


def say_how_to_go_on(command: Sequence[str], kept_in: Path | None) -> None:
    """Say that a command was stopped, and how it goes on if something was kept.

    Args:
        command: The words of the command that goes on.
        kept_in: Folder with what was done.
    """
    if kept_in is None or not any(kept_in.glob("[!.]*")):
        typer.echo("stopped", err=True)
        return
    typer.echo(f"stopped; what was done is kept in {kept_in}", err=True)
    if how_many() == 1:  # whatever started several processes starts them again
        say_next(*command)
