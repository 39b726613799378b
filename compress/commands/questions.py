"""The questions of ``compress init``, and the commented recipe that their answers make."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.files.json_text import read_json
from eval.kinds.kind_registry import kind_of, own_kinds


@dataclass(frozen=True)
class Answers:
    """What has to be known to write a recipe.

    Attributes:
        kind: Kind of task.
        data: Folder, file or hub name of the data.
        teacher: Folder or hub name of the model to compress.
        finetune: Whether that model is a base that still has to learn the task.
        layers: Layers of the student.
        int8: Whether the export is quantized.
    """

    kind: str
    data: str
    teacher: str
    finetune: bool
    layers: int
    int8: bool

    @property
    def name(self) -> str:
        """A name for the recipe, made of the data's name and the number of layers."""
        stem = re.sub(r"[^A-Za-z0-9.+-]+", "-", Path(self.data.rstrip("/")).name.split("${")[0]).strip("-.+")
        return f"{stem or 'recipe'}-{self.layers}l{'-int8' if self.int8 else ''}"


def teacher_facts(teacher: str) -> dict[str, Any]:
    """Return what the config of a local model folder says: ``layers`` and ``trained``; empty if it says nothing."""
    try:
        config = read_json(Path(teacher) / "config.json")
        layers = config.get("num_hidden_layers") or config.get("n_layers") or config.get("n_layer")
        heads = tuple(kind.head for kind in own_kinds() if kind.head and not kind.masks)
        trained = any(str(name).endswith(heads) for name in config.get("architectures") or ())
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return {"trained": trained} | ({"layers": layers} if isinstance(layers, int) and layers > 0 else {})


def recipe_text(answers: Answers, file: str) -> str:
    """Return a recipe with comments; ``file`` is the name under which it will be kept."""
    blocks = [_head(answers, file), _task(answers), _teacher(answers), _student(answers), _steps(answers)]
    if not kind_of(answers.kind).masks:
        blocks += [_export(answers), _evaluate(answers)]
    return "\n".join(blocks)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _head(answers: Answers, file: str) -> str:
    return f"""\
# compress check {file}    finds every error before any compute
# compress plan {file}     predicts sizes, updates and time
# compress run {file}      writes model, exports and report to runs/{answers.name}
# Environment variables work in every value: ${{NAME}} or ${{NAME:-default}}.
name: {answers.name}
seed: 13
"""


def _task(answers: Answers) -> str:
    from eval.kinds.kind import Kind

    kind = kind_of(answers.kind)
    lengths = f"  max_length: {kind.max_length}      # tokens of {kind.longer}"
    if kind.stride != Kind.stride:
        lengths += f"\n  stride: {kind.stride}          # tokens that neighbouring windows share"
    return f"""\
# {kind.name}: {kind.meaning}.
task:
  kind: {kind.name}
  data: {_quoted(answers.data)}
{lengths}
  on_bad: refuse       # or skip: leave bad lines out and count them
"""


def _teacher(answers: Answers) -> str:
    if answers.finetune:
        note = (
            "# The base is fine-tuned on the task first, once: the result is kept under COMPRESS_HOME and found again."
        )
        block = "  finetune: {epochs: 3, learning_rate: 5.0e-5, batch_size: 32}\n"
    elif kind_of(answers.kind).vectors:
        note, block = "# A sentence embedder; it teaches what it knows already, without labels.", ""
    else:
        note = "# Trained on this task already. To fine-tune a base first, add: finetune: {epochs: 3}"
        block = ""
    return f"""\
{note}
teacher:
  model: {_quoted(answers.teacher)}
{block}"""


def _student(answers: Answers) -> str:
    return f"""\
# The student starts from layers of the teacher: a number takes them evenly spread, a list such as [0, 2, 5] names them.
student: {{from: teacher, layers: {answers.layers}}}

# For every step that trains; a step's own values win.
training:
  epochs: 3
  learning_rate: 1.0e-4
  batch_size: 32
  group_by_length: true     # batches of similar length waste less on padding
"""


def _steps(answers: Answers) -> str:
    if kind_of(answers.kind).masks:
        return """\
# 'compress list' shows all techniques, 'compress show distill.distilbert' the fields of this one.
steps:
  - distill.distilbert: {temperature: 2.0}
"""
    if kind_of(answers.kind).vectors:
        return """\
# 'compress list' shows all techniques, 'compress show distill.embedding' the fields of this one.
steps:
  - distill.embedding: {mse: 1.0, similarity: 1.0}
"""
    return """\
# 'compress list' shows all techniques, 'compress show distill.logits' the fields of this one.
steps:
  - distill.logits:
      temperature: 2.0      # both logits are divided by it
      alpha: 0.9            # weight of the teacher; the rest goes to the labels
"""


def _export(answers: Answers) -> str:
    return f"""\
# An export is written only if it answers as the model does.
export:
  - onnx: {{int8: {str(answers.int8).lower()}}}
"""


def _evaluate(answers: Answers) -> str:
    baseline = """\
  baseline: false           # true also trains the student without the teacher, to see what the teacher brought
"""
    return f"""\
evaluate:
  against: teacher
  margin: 0.01              # loss of the score that still counts as no worse
{"" if kind_of(answers.kind).vectors else baseline}\
  latency: {{batch: [1, 8, 32], lengths: data}}
"""
