"""``compress init``: a few questions, or flags, and a commented recipe."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compress.commands.optimize import Label, Text
from compress.shortcuts.recipe_text import (
    Answers,
    known_classes,
    known_examples,
    recipe_text,
    refuse_unnamed,
    teacher_facts,
)
from compress.terminal.next_command import say_next
from eval.cost.machine import bf16_is_fast, cpu_features
from eval.data.beir import is_beir
from eval.errors import UserError, did_you_mean
from eval.files.writing import atomic_write
from eval.kinds.kind_registry import OWN, all_kinds, kind_names, kind_of

if TYPE_CHECKING:
    from eval.kinds.kind import Kind


def init(
    task: Annotated[str | None, typer.Option(help=f"Kind of task: {', '.join(OWN)}.")] = None,
    data: Annotated[str | None, typer.Option(help="Folder, file or hub name of the data.")] = None,
    text: Text = None,
    label: Label = None,
    teacher: Annotated[str | None, typer.Option(help="Folder or hub name of the model to compress.")] = None,
    finetune: Annotated[
        bool | None, typer.Option("--finetune/--trained", help="Whether it still has to learn the task, or has.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the student.")] = None,
    int8: Annotated[bool | None, typer.Option("--int8/--no-int8", help="Quantize the export.")] = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("recipe.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """Write a commented recipe; what no flag says is asked."""
    if out.exists() and not force:
        raise UserError(f"{out}: is there already; --force replaces it, --out names another file")
    try:
        answers = _ask(task, data, text, label, teacher, finetune, layers, int8)
    except typer.Abort as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        if sys.stdin.isatty():
            raise
        raise UserError(
            "the answers ended early; give --task, --data, --teacher, --finetune or --trained, --layers, and --int8 or "
            "--no-int8 as flags"
        ) from None
    written = recipe_text(answers, str(out))

    from compress.recipe import parse_recipe

    parse_recipe(written, str(out))
    atomic_write(out, written.encode())
    typer.echo(f"wrote {out}")
    say_next("compress", "check", out)


def _ask(
    task: str | None,
    data: str | None,
    text: list[str] | None,
    label: str | None,
    teacher: str | None,
    finetune: bool | None,
    layers: int | None,
    int8: bool | None,
) -> Answers:
    if task is None:
        for kind in all_kinds():
            typer.echo(f"  {kind.name}: {kind.meaning}", err=True)
        task = _until_known("What is asked of the model?", "retrieval" if is_beir(data) else "classification")
    elif task not in kind_names():
        raise UserError(f"--task: got {task!r}{did_you_mean(task, kind_names())}")
    if data is None:
        data = str(_prompt("Where is the data (folder, file or hub name)?"))
    from eval.data.columns import named_columns

    columns = named_columns(kind_of(task), text, label)
    refuse_unnamed(data, task, columns)
    if teacher is None:
        teacher = str(_prompt("Which model is compressed (folder or hub name)?"))
    facts = teacher_facts(teacher, task)
    _refuse(kind_of(task), finetune, layers, int8, facts.get("layers"))
    if not _is_fine_tuned(kind_of(task)):
        finetune = False
    if finetune is None:
        known = facts.get("trained")
        finetune = not known if known is not None else _confirm("Does it still have to learn the task?", True)
    if not kind_of(task).scored:
        int8 = False
    if layers is None:
        layers = int(_prompt("How many layers shall the student have?", max(1, facts.get("layers", 6) // 2), int))
        _refuse(kind_of(task), None, layers, None, facts.get("layers"))
    if int8 is None:
        int8 = _confirm("Shall the export be quantized to int8 for CPUs?", True)
    target = "generator" if kind_of(task).writes else "onnx"
    known = {"teacher_layers": facts.get("layers"), "teacher_width": facts.get("width")}
    export = {target: {"int8": int8}}
    # On a GPU the number format is chosen by itself; to ask torch for one would take seconds.
    bf16 = bf16_is_fast(cpu_features()) and which("nvidia-smi") is None
    known |= {"examples": known_examples(data), "classes": known_classes(data, task, columns), "columns": columns}
    return Answers(task, data, teacher, finetune, layers, export, **known, bf16=bf16)


def _refuse(kind: Kind, finetune: bool | None, layers: int | None, int8: bool | None, most: int | None) -> None:
    """Refuse answers that fit neither the kind of task nor the teacher, which has ``most`` layers where they are known.

    Raises:
        UserError: With every one of them.
    """
    problems, whose = [], "the teacher's decoder" if kind.writes else "the teacher"
    if finetune and not _is_fine_tuned(kind):
        problems.append(f"--finetune: {kind.named} model is not fine-tuned on labels; leave it out")
    if layers is not None and not 1 <= layers <= (most or layers):
        problems.append(
            f"--layers: got {layers}, must be {f'1 to {most}, the layers of {whose}' if most else '1 or more'}"
        )
    if int8 and not kind.scored:
        problems.append(f"--int8: {kind.named} model has no export; leave it out")
    if problems:
        raise UserError(*problems)


def _is_fine_tuned(kind: Kind) -> bool:
    return not kind.vectors and kind.truth is not None


def _until_known(question: str, default: str) -> str:
    while True:
        given = str(_prompt(question, default))
        if given in kind_names():
            return given
        typer.echo(f"{given!r} is no kind of task{did_you_mean(given, kind_names())}", err=True)


def _prompt(question: str, default: Any = None, kind: Any = None) -> Any:
    return typer.prompt(question, default=default, type=kind, err=True)


def _confirm(question: str, default: bool) -> bool:
    return bool(typer.confirm(question, default=default, err=True))
