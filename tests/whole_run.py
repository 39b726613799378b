"""A tiny run of everything a recipe can ask for, from text alone to the report, to be interrupted and compared."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.forking import Call, Ending, Forker
from tests.interrupting import Interruption, contents
from tests.recipes.test_recipes import write_data
from tests.tiny import tiny_task

RECIPE = """\
name: whole
task: {kind: classification, data: data, max_length: 16}
teacher:
  pretrain:
    text: [text]
    tokenizer: {kind: wordpiece, size: 120}
    network: {family: bert, layers: 2, hidden_size: 16, heads: 2}
    stages:
      - length: 16
        tasks: {text: {objectives: mlm}}
        training: {max_steps: 3, batch_size: 4, learning_rate: 3.0e-3, checkpoint_seconds: 0}
  finetune: {max_steps: 3, batch_size: 4, learning_rate: 3.0e-3, checkpoint_seconds: 0}
student: {from: teacher, layers: [0, 1]}
training: {max_steps: 3, batch_size: 4, learning_rate: 3.0e-3, checkpoint_seconds: 0}
steps:
  - prune.layers: {keep: [0]}
  - distill.logits: {alpha: 0.9}
export:
  - onnx: {int8: true, agreement: 0.5}
evaluate: {against: teacher, baseline: true, latency: null}
"""
TEXT = "\n\n".join(
    "\n".join(f"The film in {place} was good. It is a warm room of Ann." for _ in range(8))
    for place in ("Paris", "Rome", "Oslo", "Lima")
)
STEADY = Interruption()
"""Lets a command be; its clock stands still, so that what it writes can be compared."""


@dataclass(frozen=True)
class WholeRun:
    """The run and what it must leave.

    Attributes:
        scene: A folder with data, text and recipe, to be copied.
        forker: What runs it.
        expected: What the uninterrupted run left, file by file.
        seconds: How long that took.
        changes: The kind and path of each change that it made to the disk.
    """

    scene: Path
    forker: Forker
    expected: dict[str, bytes]
    seconds: float
    changes: tuple[str, ...]

    @classmethod
    def made_in(cls, folder: Path, forker: Forker) -> WholeRun:
        """Return the run that ``make`` made in a folder."""
        made = contents(folder / "whole" / "out", folder / "whole" / "home")
        seconds, changes = ((folder / name).read_text("utf-8") for name in ("seconds.txt", "changes.txt"))
        return cls(folder / "scene", forker, made, float(seconds), tuple(changes.splitlines()))

    def copy(self, place: Path) -> Path:
        """Return a new folder in which the recipe can be run."""
        place.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.scene, place, dirs_exist_ok=True)
        return place

    def go_on(self, place: Path, interruption: Interruption = STEADY, seconds: float = 120) -> Ending:
        """Start the run or go on with it."""
        return self.forker.run_together([call(place, interruption, seconds=seconds)])[0]


def make(folder: Path, forker: Forker) -> None:
    """Make the scene and run the recipe in a copy of it without interruption."""
    scene, place = folder / "scene", folder / "whole"
    write_data(tiny_task("classification", examples=16), scene / "data")
    (scene / "text").mkdir()
    for split in ("train", "validation"):
        (scene / "text" / f"{split}.txt").write_text(TEXT, encoding="utf-8")
    (scene / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    shutil.copytree(scene, place)
    ending = forker.run_together([call(place, Interruption(log=str(folder / "changes.txt")), seconds=300)])[0]
    assert ending.code == 0, ending.err
    (folder / "seconds.txt").write_text(str(ending.seconds))


def call(
    place: Path, interruption: Interruption = STEADY, *, out: str = "out", home: str = "home", seconds: float = 120
) -> Call:
    """Return the command that starts the run in a folder, or goes on with it."""
    arguments = ["run", "recipe.yaml", "--out", out, "--resume"]
    home_of_run = {"COMPRESS_HOME": str(place / home)}
    return Call(arguments, place, home_of_run, seconds=seconds, interruption=interruption, rendered=False)
