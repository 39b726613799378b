"""A commented recipe for a student of fewer layers, as ``compress init`` and ``compress distill`` write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from compress.shortcuts.recommendation import Recommendation, finetuning, recommend
from eval.errors import UserError
from eval.files.json_text import read_json
from eval.files.paths import user_path
from eval.kinds.kind_registry import kind_of, own_kinds

ALL_LAYERS = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
DECODER_LAYERS = ("num_decoder_layers", "decoder_layers")
"""Fields of configs that say how many layers there are; T5's without the second kind has as many of each."""
LINES = {".jsonl": 0, ".txt": 0, ".csv": 1, ".tsv": 1}
"""Files with an example a line -> lines of the head."""


@dataclass(frozen=True)
class Answers:
    """What has to be known to write a recipe.

    Attributes:
        kind: Kind of task.
        data: Folder, file or hub name of the data.
        teacher: Folder or hub name of the model to compress.
        finetune: Whether that model is a base that still has to learn the task.
        layers: Layers of the student; of its decoder where that writes the answer, as ``teacher_layers``.
        export: The target, and what is asked of it.
        teacher_layers: Layers of the teacher, if they are known.
        teacher_width: Its hidden size, likewise.
        examples: Training examples, with labels and without, if they are known.
        classes: How many labels or tags there are to choose from, if it is known; by default as many as ``labels``.
        columns: The data's column for each of our fields, where they were named.
        labels: Class names or tags in the order of the model's outputs; by default those in the data, sorted.
        max_length: Most tokens of one input; by default the kind's.
        reads: Further fields of the task block, such as ``truncation_side``, that differ from the kind's defaults.
        unlabelled: A file of texts that only the teacher answers.
        margin: Loss of the score that still counts as no worse.
        briefly: Whether only what a first look needs is measured: latency of one text a time, and no memory.
        called: What the recipe's name is made of; by default the data.
        quick: Whether the student is trained with the teacher alone, and not on labels only as well.
        bf16: Whether trainings compute in bfloat16.
    """

    kind: str
    data: str
    teacher: str
    finetune: bool
    layers: int
    export: dict[str, dict[str, Any]]
    teacher_layers: int | None = None
    teacher_width: int | None = None
    examples: int | None = None
    classes: int | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    max_length: int | None = None
    reads: Mapping[str, Any] = field(default_factory=dict)
    unlabelled: str | None = None
    margin: float = 0.01
    briefly: bool = False
    called: str | None = None
    quick: bool = False
    bf16: bool = False

    @property
    def name(self) -> str:
        """A name for the recipe, made of the data's name and the number of layers."""
        from compress.recipe.schema import fitting_name

        called = self.called or Path(self.data.rstrip("/")).name.split("." if self.one_file else "${")[0]
        stem = re.sub(r"[^A-Za-z0-9.+-]+", "-", called).strip("-.+")
        int8 = any(settings.get("int8") for settings in self.export.values())
        return fitting_name(stem, f"-{self.layers}l{'-int8' if int8 else ''}")

    @property
    def one_file(self) -> bool:
        """Whether the data is a file, which is then learned from; what chooses and what reports is taken out of it."""
        return user_path(self.data).is_file()

    @property
    def advice(self) -> Recommendation:
        """What is recommended for such a student."""
        classes = len(self.labels) or self.classes
        return recommend(self.kind, self.layers, self.teacher_layers, self.examples, classes, self.quick)


def teacher_facts(teacher: str, kind: str) -> dict[str, Any]:
    """Return what the config of a local model folder says, if anything: ``layers``, ``width``, ``trained``.

    Args:
        teacher: Folder or hub name.
        kind: Kind of task; the layers are those of the decoder where that writes the answer.
    """
    own = DECODER_LAYERS if kind_of(kind).writes else ()
    try:
        config = read_json(user_path(teacher) / "config.json")
        layers = next((config[name] for name in (*own, *ALL_LAYERS) if config.get(name)), None)
        width = config.get("hidden_size") or config.get("dim") or config.get("d_model") or config.get("n_embd")
        learned = [kind for kind in own_kinds() if kind.truth is not None]
        trained = any(kind.has_head(str(name)) for name in config.get("architectures") or () for kind in learned)
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    sizes = {"layers": layers, "width": width}
    return {"trained": trained} | {name: size for name, size in sizes.items() if isinstance(size, int) and size > 0}


def known_examples(data: str) -> int | None:
    """Return about how many training examples a local file or folder has, a line each; None where lines do not tell."""
    file = _training_file(data)
    if file is None:
        return None
    with file.open("rb") as lines:
        return max(0, sum(1 for line in lines if line.strip()) - LINES[file.suffix])


def known_classes(data: str, kind: str, columns: Mapping[str, str]) -> int | None:
    """Return how many labels or tags the training examples of a local file or folder have; None if they do not tell.

    Args:
        data: File, folder or hub name.
        kind: Kind of task.
        columns: Columns that were named.
    """
    from eval.data.columns import usual_column
    from eval.data.readers import read

    file, asked = _training_file(data), kind_of(kind)
    if file is None or not asked.labelled or asked.truth is None:
        return None
    try:
        named = columns.get(asked.truth)
        values = [row.values.get(named or usual_column(asked.truth, row.values) or "") for row in read(file)]
    except UserError:
        return None  # 'compress check' says what is wrong with it
    several = (value if isinstance(value, list | Mapping) else [value] for value in values if value is not None)
    return len({str(label) for labels in several for label in labels}) or None


def refuse_unnamed(data: str, kind: str, columns: Mapping[str, str]) -> None:
    """Refuse a local file that is learned from if a field has no column; a recipe for it would be refused later.

    Args:
        data: File, folder or hub name.
        kind: Kind of task.
        columns: Columns that were named.

    Raises:
        UserError: A field has none, or the file cannot be read at all.
    """
    from eval.data.sources import Source
    from eval.data.split_reading import without_column

    file = _local_file(data)
    if file is None or kind_of(kind).searches:
        return
    _, problem = without_column(Source.of(file), kind, columns)
    if problem:
        raise UserError(problem)


def _local_file(data: str) -> Path | None:
    """Return the local file that is learned from: what was given, or the training split of a folder."""
    from eval.data.readers import format_of

    place = user_path(data)
    found = [place] if place.is_file() else sorted(place.glob("train.*"))
    return found[0] if found and format_of(found[0]) is not None else None


def _training_file(data: str) -> Path | None:
    """Return the local file that is learned from if a line of it is an example."""
    file = _local_file(data)
    return file if file is not None and file.suffix in LINES else None


def recipe_text(answers: Answers, file: str, out: Path | None = None) -> str:
    """Return a recipe with comments.

    Args:
        answers: What it is for.
        file: The name under which it will be kept.
        out: The folder that ``compress run`` is told to write; by default its own, ``runs/NAME``.
    """
    blocks = [_head(answers, file, out), _task(answers), _teacher(answers), _student(answers), _steps(answers)]
    if not kind_of(answers.kind).masks:
        blocks += [_export(answers), _evaluate(answers)]
    return "\n".join(blocks)


def _quoted(value: Any) -> str:
    """Return a value as YAML reads it in quotes, in which control characters stand as escapes alone."""
    said = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[\x7f-\x9f\u2028\u2029\ufeff]", lambda found: f"\\u{ord(found[0]):04x}", said)


def _head(answers: Answers, file: str, out: Path | None) -> str:
    file, told = quote(file), "" if out is None else f" --out {quote(str(out))}"
    return f"""\
# compress check {file}    finds every error before any compute
# compress plan {file}     predicts sizes, optimizer steps and time
# compress run {file}{told}      writes model, exports and report to {out or f"runs/{answers.name}"}
# Environment variables work in every value: ${{NAME}} or ${{NAME:-default}}.
name: {answers.name}
seed: 13
"""


def _task(answers: Answers) -> str:
    from compress.reading.variables import escape
    from eval.kinds.kind import Kind

    kind = kind_of(answers.kind)
    lengths = f"  max_length: {answers.max_length or kind.max_length}      # tokens of {kind.longer}"
    if kind.stride != Kind.stride and "stride" not in answers.reads:
        lengths += f"\n  stride: {kind.stride}          # tokens that neighbouring windows share"
    lengths += "".join(f"\n  {name}: {_quoted(value)}" for name, value in answers.reads.items())
    data = f"data: {_quoted(answers.data)}"
    if answers.one_file:
        data = f"files: {{train: {_quoted(answers.data)}}}      # what chooses and what reports is taken out of it"
    named = ", ".join(f"{name}: {_quoted(column)}" for name, column in answers.columns.items())
    columns = f"\n  columns: {{{named}}}" if named else ""
    labels = f"\n  labels: {escape(_quoted(list(answers.labels)))}" if answers.labels else ""
    return f"""\
# {kind.name}: {kind.meaning}.
task:
  kind: {kind.name}
  {data}{columns}{labels}
{lengths}
  on_bad: refuse       # or skip: leave bad lines out and count them
"""


def _teacher(answers: Answers) -> str:
    if answers.finetune:
        note = (
            "# The base is fine-tuned on the task first, once: the result is kept under COMPRESS_HOME and found again."
        )
        how = finetuning(answers.teacher_width, answers.examples)
        how["learning_rate"] = _rate(how["learning_rate"])
        how |= {"precision": "bf16"} if answers.bf16 else {}
        block = f"  finetune: {{{', '.join(f'{name}: {value}' for name, value in how.items())}}}\n"
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
    advice = answers.advice
    layers = list(advice.layers) if isinstance(advice.layers, tuple) else advice.layers
    why = "".join(f"# {sentence[0].upper()}{sentence[1:]}.\n" for sentence in advice.why)
    more = ""
    if answers.unlabelled is not None:
        more = "# The teacher answers these too, and the student learns from it.\n"
        more += f"augment: {{unlabelled: {_quoted(answers.unlabelled)}}}\n\n"
    precision = "  precision: bf16           # this processor has instructions for it; elsewhere leave it out\n"
    return f"""\
# The student starts from layers of the teacher: a number takes them evenly spread, a list such as [0, 2, 5] names them.
{why}student: {{from: teacher, {"decoder_layers" if kind_of(answers.kind).writes else "layers"}: {layers}}}

{more}# For every step that trains; a step's own values win.
training:
  epochs: {advice.epochs}
  learning_rate: {_rate(advice.learning_rate)}
  batch_size: {advice.batch_size}
  group_by_length: true     # batches of similar length waste less on padding
{precision if answers.bf16 else ""}"""


def _rate(value: float) -> str:
    """Return a learning rate as YAML reads numbers: with a point before the exponent."""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}"


COMMENTS = {
    "temperature": "both logits are divided by it",
    "loss": "squared difference of the logits; kl compares probabilities",
    "of": "each is trained; the best on the examples that choose is kept",
    "beams": "the teacher's beam search writes every training text anew, once",
    "alpha": "weight of the teacher; the rest goes to the labels",
}
"""What is said beside a field of the step."""


def _steps(answers: Answers) -> str:
    advice = answers.advice
    fields = "".join(
        f"      {name}: {value if isinstance(value, int | float | str) else _quoted(value)}"
        + (f"      # {COMMENTS[name]}\n" if name in COMMENTS else "\n")
        for name, value in advice.settings.items()
    )
    return f"""\
# 'compress list' shows all techniques, 'compress show {advice.technique}' the fields of this one.
steps:
  - {advice.technique}:
{fields}"""


def _export(answers: Answers) -> str:
    return f"""\
# An export is written only if it answers as the model does.
export:
{"".join(f"  - {name}: {_flow(settings)}" for name, settings in answers.export.items())}
"""


def _flow(settings: dict[str, Any]) -> str:
    return "{" + ", ".join(f"{name}: {_quoted(value)}" for name, value in settings.items()) + "}"


def _evaluate(answers: Answers) -> str:
    baseline = """\
  baseline: false           # true also trains the student without the teacher, to see what the teacher brought
"""
    cost = "  latency: {batch: [1, 8, 32], lengths: data}\n"
    if answers.briefly:
        cost = "  latency: {batch: [1], lengths: data}     # more sizes: batch: [1, 8, 32]\n  memory: false\n"
    return f"""\
evaluate:
  against: teacher
  margin: {answers.margin:g}              # loss of the score that still counts as no worse
{"" if kind_of(answers.kind).vectors else baseline}\
{cost}"""
