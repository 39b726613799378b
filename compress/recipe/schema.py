"""The recipe: what goes in, the steps, what comes out; typed values that a YAML file maps to one to one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from compress.augment.block import AugmentBlock
from compress.export.targets.registry import target_names
from compress.reading.block import Block
from compress.reading.block_reader import BlockReader
from compress.reading.overrides import apply_overrides
from compress.reading.variables import escape
from compress.reading.wording import shown
from compress.reading.yaml_places import TAG, Document, Location, decode, read_yaml
from compress.recipe.blocks import EvaluateBlock, ExportBlock, SharedTaskBlock, TaskBlock, TeacherBlock, export_block
from compress.recipe.checks import (
    augment_problems,
    block_problems,
    evaluate_problems,
    finetune_problems,
    inputs_of,
    parts_given,
    problems,
    shared_problems,
    step_problems,
)
from compress.registry import get
from compress.student.student import Student
from compress.technique import Technique
from eval.errors import UserError, did_you_mean
from teachers.training.config import Training

__all__ = [
    "Recipe",
    "parse_recipe",
    "problems",
    "read_recipe",
    "recipe_from_plain",
    "recipe_to_plain",
    "recipe_to_yaml",
]

NAME = re.compile(r"\w[\w .+-]*", re.ASCII)
BLOCKS: dict[str, type] = {
    "task": TaskBlock,
    "teacher": TeacherBlock,
    "student": Student,
    "augment": AugmentBlock,
    "training": Training,
    "evaluate": EvaluateBlock,
}
"""Fields of a recipe that are one block each."""
TaskName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=100)]
"""It names a folder, and stands before the names of losses and scores."""


@dataclass(frozen=True)
class Written:
    """The document that a recipe was read from; it is no part of what the recipe says, so all are equal."""

    document: Document | None = field(compare=False)

    def place(self, location: Location) -> str:
        """Return file and line of what stands at ``location``, with a colon; nothing without a document."""
        return "" if self.document is None else f"{self.document.place(location)}: "


class Recipe(Block):
    """Everything that leads from a teacher and data to a smaller model.

    Attributes:
        name: Names the run and its folder.
        seed: The source of all chance.
        task: What is asked, and the data.
        tasks: Several tasks by name, in the place of one: ``compress teach`` trains one encoder on all of them together
            and gives a model a task.
        teacher: The model that is compressed and that teaches.
        student: The shape to start from; without it, the teacher's own.
        augment: What the steps learn from beside the task's own examples.
        training: Defaults of every step that trains; a step's own values win.
        steps: Techniques, in order.
        export: What is written for other runtimes.
        evaluate: How the result is judged.
        ablate: Whether the recipe also runs once without each of its steps, to report what each contributed.

    Examples:
        >>> from compress.distill.logits import LogitDistillation
        >>> from compress.prune.layers import LayerPruning
        >>> recipe = Recipe(name="small", steps=(LayerPruning(keep=(0, 2)), LogitDistillation(temperature=2.0)))
        >>> [step.name for step in recipe.steps]
        ['prune.layers', 'distill.logits']
    """

    name: str = "recipe"
    seed: int = Field(default=13, ge=0, lt=2**32)
    task: TaskBlock | None = None
    tasks: dict[TaskName, SharedTaskBlock] | None = Field(default=None, min_length=2)
    teacher: TeacherBlock | None = None
    student: Student | None = None
    augment: AugmentBlock | None = None
    training: Training | None = None
    steps: tuple[Technique, ...] = ()
    export: tuple[ExportBlock, ...] = ()
    evaluate: EvaluateBlock | None = None
    ablate: bool = False
    _written: Written = PrivateAttr(default_factory=lambda: Written(None))

    def where(self, location: Location) -> str:
        """Return file and line of a part of the recipe, as messages begin; nothing if it was made in Python."""
        return self._written.place(location)

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not NAME.fullmatch(name) or len(name) > 100:
            raise ValueError(
                f"{shown(name)} must be up to 100 letters, digits, spaces or . + - _, with a letter or digit first"
            )
        return name

    @field_validator("steps")
    @classmethod
    def _with_defaults(cls, steps: tuple[Technique, ...], info: ValidationInfo) -> tuple[Technique, ...]:
        training: Training | None = info.data.get("training")
        return steps if training is None else tuple(with_defaults(step, training) for step in steps)


def with_defaults(step: Technique, training: Training) -> Technique:
    """Return ``step`` with the values of ``training`` wherever it was given none of its own."""
    blocks = {name: own for name, own in step if isinstance(own, Training)}
    merged = {name: _merged(own, name in step.model_fields_set, training) for name, own in blocks.items()}
    changed = {name: block for name, block in merged.items() if block is not blocks[name]}
    return step.model_copy(update=changed) if changed else step


def _merged(own: Training, said: bool, training: Training) -> Training:
    given = own.model_fields_set if said else set()
    added = {key: getattr(training, key) for key in training.model_fields_set - given}
    return Training.model_construct(given | added.keys(), **(dict(own) | added)) if added else own


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from a YAML file.

    Args:
        path: The file.
        overrides: ``path=value`` each, as after ``--set``.

    Raises:
        UserError: With every mistake of the file at once, each with its line.

    Examples:
        >>> from pathlib import Path
        >>> text = "{teacher: {model: runs/teacher}, steps: [{prune.layers: {keep: [0, 2]}}]}"
        >>> _ = Path("small.yaml").write_text(text)
        >>> read_recipe("small.yaml", ["seed=7"]).seed
        7
        >>> read_recipe("small.yaml", ["steps.0.prune.layers.kep=[0]"])
        Traceback (most recent call last):
        ...
        eval.errors.UserError: --set steps.0.prune.layers.kep=[0]: step 1, prune.layers: unknown field 'kep'; did you
        mean 'keep'?
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = "it is a folder" if path.is_dir() else error.strerror or str(error)
        raise UserError(f"{path}: the recipe cannot be read ({reason})") from error
    return parse_recipe(decode(raw, str(path)), str(path), overrides)


def parse_recipe(text: str, source: str = "recipe", overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe from YAML text; see ``read_recipe``."""
    document = read_yaml(text, source)
    if document.data is None:
        raise UserError(f"{source}: the recipe is empty; 'compress init' writes one to start from")
    if not isinstance(document.data, dict):
        raise UserError(f"{source}: got {shown(document.data)}, a recipe must be a mapping such as 'seed: 13'")
    apply_overrides(document, overrides)
    return _Reading(document).recipe()


def recipe_from_plain(values: dict[str, Any], source: str = "recipe", overrides: Sequence[str] = ()) -> Recipe:
    """Make a recipe from plain values, such as ``recipe_to_plain`` gives; messages begin with ``source``."""
    document = Document(source, values)
    apply_overrides(document, overrides)
    return _Reading(document).recipe()


def recipe_to_yaml(recipe: Recipe) -> str:
    """Return YAML text from which ``parse_recipe`` makes an equal recipe.

    Examples:
        >>> from compress.prune.layers import LayerPruning
        >>> print(recipe_to_yaml(Recipe(name="small", steps=(LayerPruning(keep=(0, 2)),))), end="")
        name: small
        steps:
        - prune.layers:
            keep: [0, 2]
    """
    values = _escaped(recipe_to_plain(recipe))
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)


def recipe_to_plain(recipe: Recipe) -> dict[str, Any]:
    """Return the values that were given, as plain JSON values in the order and shape of the YAML file."""
    given = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"steps"})
    if recipe.steps:
        given["steps"] = [step_to_plain(step) for step in recipe.steps]
    return {key: given[key] for key in Recipe.model_fields if key in given}


def step_to_plain(step: Technique) -> dict[str, Any] | str:
    """Return a step as a recipe writes it: ``{name: fields}``, or the bare name."""
    fields = step.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {step.name: fields} if fields else step.name


class _Dumper(yaml.SafeDumper):
    """Writes text with unusual characters in double quotes; PyYAML reads its own other styles of it back wrongly."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(f"{TAG}str", text, style=None if text.isprintable() else '"'),
)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list) else value


class _Reading:
    """One pass over a document that makes a recipe of it, or all of its problems."""

    def __init__(self, document: Document) -> None:
        self.data: dict[str, Any] = document.data
        self.reader = BlockReader(document)

    def recipe(self) -> Recipe:
        rest = {key: value for key, value in self.data.items() if key not in BLOCKS and key not in ("steps", "export")}
        header = self.reader.block(
            Recipe, {key: rest[key] for key in rest if rest[key] is not None or key not in Recipe.model_fields}, (), ""
        )
        blocks = {
            key: self.reader.block(model, self.data[key], (key,), key)
            for key, model in BLOCKS.items()
            if self.data.get(key) is not None
        }
        steps = self._steps()
        exports = self._exports()
        self._check(blocks, steps)
        if self.reader.problems or not isinstance(header, Recipe):
            raise UserError(*self.reader.sorted_problems())
        values: dict[str, Any] = {key: getattr(header, key) for key in header.model_fields_set} | blocks
        if "steps" in self.data:
            values["steps"] = tuple(step for _, step in steps)
        if "export" in self.data:
            values["export"] = tuple(exports)
        recipe = Recipe(**values)
        recipe._written = Written(self.reader.document)
        return recipe

    def _steps(self) -> list[tuple[int, Technique]]:
        found = []
        for index, name, fields in self._named("steps", "step", "distill.logits: {temperature: 2.0}"):
            try:
                technique = get(name)
            except UserError as error:
                self.reader.report(("steps", index), f"step {index + 1}: {error}")
                continue
            step = self.reader.block(technique, fields, ("steps", index, name), f"step {index + 1}, {name}")
            if isinstance(step, Technique):
                found.append((index, step))
        return found

    def _exports(self) -> list[ExportBlock]:
        found = []
        for index, name, fields in self._named("export", "export", "onnx: {int8: true}"):
            where = f"export {index + 1}"
            if name not in target_names():
                self.reader.report(
                    ("export", index), f"{where}: unknown format {shown(name)}{did_you_mean(name, target_names())}"
                )
                continue
            try:
                block = self.reader.block(export_block(name), {name: fields}, ("export", index), where)
            except UserError as error:
                self.reader.report(("export", index), f"{where}: {error}")
                continue
            if block is not None:
                found.append(ExportBlock.model_validate({name: block.settings}))
        return found

    def _named(self, key: str, one: str, example: str) -> list[tuple[int, str, Any]]:
        """Return place, name and fields of each item of a list such as ``- name: {fields}``."""
        items = self.data.get(key)
        if items is None:
            return []
        if not isinstance(items, list):
            self.reader.report((key,), f"{key}: got {shown(items)}, must be a list of items such as '- {example}'")
            return []
        found: list[tuple[int, str, Any]] = []
        for index, item in enumerate(items):
            if isinstance(item, str):
                found.append((index, item, {}))
            elif isinstance(item, dict) and len(item) == 1:
                ((name, fields),) = item.items()
                found.append((index, name, {} if fields is None else fields))
            else:
                self.reader.report((key, index), f"{one} {index + 1}: {_no_item(item, example)}")
        return found

    def _check(self, blocks: Mapping[str, Any], steps: Sequence[tuple[int, Technique]]) -> None:
        given = parts_given(self.data)
        if self.data.get("ablate") is True and self.data.get("evaluate") is None:
            self.reader.report(("ablate",), "ablate: needs evaluate, which measures what each step contributed")
        found = [
            *step_problems(steps, inputs_of(given)),
            *block_problems(blocks.get("teacher"), blocks.get("student"), blocks.get("evaluate"), given),
            *shared_problems(blocks.get("teacher"), given),
            *augment_problems(blocks.get("augment"), blocks.get("task"), given),
            *evaluate_problems(blocks.get("task"), blocks.get("evaluate")),
            *finetune_problems(blocks.get("task"), blocks.get("teacher")),
        ]
        for location, sentence in found:
            self.reader.report(location, sentence)


def _no_item(item: Any, example: str) -> str:
    if isinstance(item, dict) and item and next(iter(item.values())) is None:
        return f"the fields of {shown(next(iter(item)))} must be indented further than its name"
    if isinstance(item, dict) and item:
        return f"holds {len(item)} names ({shown(', '.join(item))}); write each as an item of its own"
    return f"got {shown(item)}, must be one name with its fields, such as '{example}'"
