"""A model card in markdown: what the model is for, how it was made, how good it is, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import yaml

from eval.kinds.registry import kind_of
from eval.report.markdown import escape, labels_line
from eval.report.markup import plain
from eval.report.summary import count, difference, headline, number, short, verdict, with_reference
from eval.report.tables import listed
from eval.result_values import ResultValues
from eval.task import TaskSpec

Form = Literal["transformers", "compress", "module", "onnx"]

LIBRARIES = {"transformers": "transformers", "compress": "nlp-compress", "module": "nlp-compress", "onnx": "onnx"}


def model_card(
    title: str,
    spec: TaskSpec,
    results: Sequence[ResultValues] = (),
    lineage: Sequence[Mapping[str, Any]] = (),
    *,
    form: Form = "transformers",
    base_model: str | None = None,
    data_licence: str | None = None,
    limits: Sequence[str] = (),
) -> str:
    """Return the text of a ``README.md`` for a model folder.

    Args:
        title: Name of the model.
        spec: What it was made for.
        results: What ``measure`` returned.
        lineage: Records of the steps, as plain values (see ``eval.report.page.write_page``).
        form: What loads it: stock transformers, ``compress.load``, the program that defines its module, or any ONNX
            runtime.
        base_model: Where the weights came from first, such as a hub name.
        data_licence: Licence of the training data, in the user's words; None says that none was stated.
        limits: Sentences on what it should not be used for.
    """
    kind = kind_of(spec.kind)
    parts = [
        _front(spec, lineage, form, base_model),
        f"# {escape(title)}",
        *(f"{headline(result)}." for result in map(_escaped, results)),
        *(f"{verdict(result)}." for result in map(_escaped, results) if result.comparison),
        "## Intended use",
        f"{spec.kind.capitalize()}: it answers with {kind.answer}. Inputs are cut to {spec.max_length} tokens"
        + (", in overlapping windows." if kind.per_token and not kind.masks else "."),
        labels_line(spec.labels),
        "## How to load it",
        _loading(spec, form),
        "## Evaluation",
        _evaluation(results) if results else "Not measured yet.",
        "## How it was made",
        _lineage(lineage) if lineage else "No step is recorded.",
        "## Limits",
        _limits(results, limits),
        "## Data",
        _data(results, data_licence),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _escaped(result: ResultValues) -> ResultValues:
    comparison = result.comparison
    if comparison is not None:
        comparison = comparison.model_copy(update={"reference": escape(comparison.reference)})
    rows = tuple(replace(row, name=escape(row.name)) for row in result.latency)
    return result.model_copy(update={"name": escape(result.name), "comparison": comparison, "latency": rows})


def _front(spec: TaskSpec, lineage: Sequence[Mapping[str, Any]], form: Form, base_model: str | None) -> str:
    techniques = dict.fromkeys(plain(record.get("technique", ""), 60) for record in lineage)
    values: dict[str, Any] = {
        "library_name": LIBRARIES[form],
        "pipeline_tag": kind_of(spec.kind).pipeline,
        "tags": ["compressed", *(name for name in techniques if name)],
    }
    if base_model:
        values["base_model"] = plain(base_model)
    return f"---\n{yaml.safe_dump(values, sort_keys=False, allow_unicode=True).strip()}\n---"


def _loading(spec: TaskSpec, form: Form) -> str:
    if form == "transformers":
        auto_class = kind_of(spec.kind).auto_class
        lines = [
            f"from transformers import AutoTokenizer, {auto_class}",
            "",
            'folder = "."  # this folder, or the name of the repository',
            "tokenizer = AutoTokenizer.from_pretrained(folder)",
            f"model = {auto_class}.from_pretrained(folder)",
        ]
        said = "Stock transformers loads it; nothing else has to be installed."
        return "\n\n".join(filter(None, [_code(lines, said), _pooling(spec)]))
    if form == "compress":
        lines = ["from compress import load", "", 'model = load(".")  # this folder']
        said = "No class of stock transformers can hold this model: its Auto classes refuse the folder. It loads with"
        return _code(lines, f"{said} `compress.load`, and any ONNX runtime loads its ONNX export.")
    if form == "module":
        lines = [
            "from compress.architectures.adaptor import adapt",
            "",
            'model = adapt(module, tokenizer, task, weights=".")  # module: built as it was when it was trained',
        ]
        said = "It holds the weights of a module that only its own program can build, so neither stock transformers nor"
        return _code(lines, f"{said} `compress.load` loads this folder. Any ONNX runtime loads its ONNX export.")
    lines = ["import onnxruntime", "", 'session = onnxruntime.InferenceSession("model.onnx")']
    return _code(
        lines, "Any ONNX runtime loads it; `predict.py` in this folder goes from text to answer without torch."
    )


def _pooling(spec: TaskSpec) -> str:
    if not kind_of(spec.kind).vectors:
        return ""
    means = {"mean": "the mean of the last hidden states of its real tokens", "first": "the first token's last state"}
    length = ", scaled to length 1" if spec.normalize else ""
    lines = [
        "from sentence_transformers import SentenceTransformer",
        "",
        'vectors = SentenceTransformer(".").encode(["some text"])',
    ]
    return _code(lines, f"A text's vector is {means[spec.pooling]}{length}; sentence-transformers does just that:")


def _code(lines: Sequence[str], said: str) -> str:
    return "\n".join([said, "", "```python", *lines, "```"])


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    rule = ["---" if column in words else "---:" for column in range(len(headings))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headings, rule, *rows])


def _evaluation(results: Sequence[ResultValues]) -> str:
    rows, first = [_escaped(result) for result in with_reference(results)], results[0]
    headings = ["model", first.metric, "difference, 95% interval", "verdict", "parameters", "bytes", "MACs", "p50 ms"]
    cells = []
    for result in rows:
        size, timing, comparison = result.size, result.row(1), result.comparison
        cells.append(
            [
                result.name,
                number(result.score),
                difference(result) or "-",
                comparison.verdict if comparison else "-",
                short(size.parameters if size else None),
                short(result.bytes, "B"),
                short(size.macs if size else None),
                number(timing.p50_ms if timing else None, 2),
            ]
        )
    timed = next((result.latency[0].machine for result in results if result.latency), None)
    where = f" Milliseconds are of a batch of 1 on {escape(timed)}." if timed else ""
    said = (
        f"On {count(first.examples)} examples of {escape(first.split)}, {escape(first.source) or 'source not named'}."
    )
    length = f" MACs are of one input of {first.size.macs_length} tokens." if first.size else ""
    return f"{_table(headings, cells, words=(0, 3))}\n\n{said}{length}{where}"


def _lineage(lineage: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for place, record in enumerate(lineage, start=1):
        sizes = [(record.get(side) or {}).get("parameters") for side in ("size_before", "size_after")]
        rows.append(
            [
                str(place),
                f"{escape(record.get('technique', '?'))} v{escape(record.get('version', '?'))}",
                escape(listed(record.get("config"))),
                " to ".join(dict.fromkeys(short(size) for size in sizes)),
                number(record.get("seconds"), 1),
                escape(record.get("seed", "-")),
                escape(listed(record.get("facts"))),
            ]
        )
    headings = ["", "technique", "settings", "parameters", "seconds", "seed", "facts"]
    return _table(headings, rows, words=(0, 1, 2, 6))


def _limits(results: Sequence[ResultValues], limits: Sequence[str]) -> str:
    known = [escape(limit, 1000) for limit in limits]
    for result in results:
        scored = [part for part in result.slices if part.group == "label" and part.score == part.score]
        if scored:
            worst = min(scored, key=lambda part: part.score)
            known.append(
                f"{escape(result.name)} is weakest on {escape(worst.name, 80)}: "
                f"{number(worst.score, 3)} of {count(worst.examples)} examples are right."
            )
    known.append("The figures hold for data like that of the evaluation; measure again on your own.")
    return "\n".join(f"- {line}" for line in known)


def _data(results: Sequence[ResultValues], licence: str | None) -> str:
    stated = f"Licence of the data, as stated by you: {escape(licence, 500)}." if licence else None
    digests = dict.fromkeys(f"{escape(result.split)}, sha256 {result.digest[:16]}" for result in results)
    measured = f"Evaluated on {'; '.join(digests)}." if digests else None
    unstated = "The licence of the data was not stated; look at its source before you pass this model on."
    return "\n\n".join(part for part in (stated or unstated, measured) if part)
