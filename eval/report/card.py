"""A model card in markdown: what the model is for, how it was made, how good it is, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from markupsafe import Markup

from eval.kinds.kind_registry import kind_of
from eval.report.attributed import attribution_headings, attribution_rows, attribution_sentences
from eval.report.hub_header import model_index, with_header
from eval.report.markdown import escape, labels_line
from eval.report.plain_text import plain
from eval.report.summary import (
    count,
    difference,
    headline,
    listed,
    number,
    role_sentences,
    short,
    verdict,
    with_reference,
)
from eval.report.templating import render_template
from eval.report.under_stress import sentences_of, stress_headings, stress_rows
from eval.result_values import ResultValues
from eval.task import TaskSpec

Form = Literal["transformers", "compress", "module", "static", "onnx"]

POOLINGS = {
    "mean": "the mean of the last hidden states of its real tokens",
    "weighted_mean": "the mean of the last hidden states of its real tokens, weighted by their places from 1",
    "max": "the highest value of each channel among the last hidden states of its real tokens",
    "first": "the first token's last state",
    "last": "the last real token's last state",
}
LIBRARIES = {
    "transformers": "transformers",
    "compress": "nlp-compress",
    "module": "nlp-compress",
    "static": "sentence-transformers",
    "onnx": "onnx",
}


def model_card(
    title: str,
    spec: TaskSpec,
    results: Sequence[ResultValues] = (),
    lineage: Sequence[Mapping[str, Any]] = (),
    *,
    form: Form = "transformers",
    base_model: str | None = None,
    license: str | None = None,  # noqa: A002 (the hub's own name)
    language: str | Sequence[str] | None = None,
    data_licence: str | None = None,
    limits: Sequence[str] = (),
) -> str:
    """Return the text of a ``README.md`` for a model folder.

    Args:
        title: Name of the model.
        spec: What it was made for.
        results: What ``measure`` returned.
        lineage: Records of the steps, as plain values (see ``eval.report.page.write_page``).
        form: What loads it: standard Hugging Face classes, ``compress.load``, the program that defines its
            module, sentence-transformers and model2vec (``static``), or any ONNX runtime.
        base_model: Where the weights came from first, such as a hub name.
        license: Licence of the model, as the hub calls it, such as ``apache-2.0``.
        language: Code of its language, or several.
        data_licence: Licence of the training data, in the user's words; None says that none was stated.
        limits: Sentences on what it should not be used for.
    """
    kind, escaped = kind_of(spec.kind), [_escaped(result) for result in results]
    body = render_template(
        "model_card.md.j2",
        title=title,
        findings=[Markup(headline(result)) for result in escaped]
        + [Markup(verdict(result)) for result in escaped if result.comparison]
        + [Markup(sentence) for sentence in role_sentences(escaped)],
        kind=spec.kind.capitalize(),
        answer=kind.answer,
        length=spec.max_length,
        windows=kind.per_token and not kind.masks,
        labels=Markup(labels_line(spec.labels)),
        form=form,
        auto_class=kind.auto_class,
        pooling=POOLINGS[spec.pooling] + ", scaled to length 1" * spec.normalize if kind.vectors else "",
        stress=[
            (
                [Markup(heading) for heading in stress_headings(one)],
                [[Markup(cell) for cell in row] for row in stress_rows(one.stress)],
                [Markup(sentence) for sentence in sentences_of(one)],
            )
            for one in escaped
            if one.stress
        ],
        attributions=[
            (
                [Markup(heading) for heading in attribution_headings(one)],
                [[Markup(cell) for cell in row] for row in attribution_rows(one)],
                [Markup(sentence) for sentence in attribution_sentences(one)],
            )
            for one in escaped
            if one.attributions
        ],
        metric=results[0].metric if results else "",
        rows=[_figures(result) for result in with_reference(results)],
        measured=results[0] if results else None,
        examples=count(results[0].examples) if results else "",
        machine=next((result.latency[0].machine for result in results if result.latency), None),
        steps=[_step(place, record) for place, record in enumerate(lineage, start=1)],
        limits=limits,
        weakest=list(filter(None, map(_weakest, results))),
        licence=data_licence,
        digests=dict.fromkeys((result.split, result.digest[:16]) for result in results),
    )
    techniques = dict.fromkeys(plain(record.get("technique", ""), 60) for record in lineage)
    return with_header(
        body,
        base_model=plain(base_model) if base_model else None,
        license=plain(license) if license else None,
        language=language,
        library_name=LIBRARIES[form],
        pipeline_tag=kind.pipeline,
        tags=["compressed", *filter(None, techniques)],
        **model_index(title, kind.pipeline, results),
    )


def _escaped(result: ResultValues) -> ResultValues:
    comparison = result.comparison
    if comparison is not None:
        comparison = comparison.model_copy(update={"reference": escape(comparison.reference)})
    rows = tuple(replace(row, name=escape(row.name)) for row in result.latency)
    names = {"name": escape(result.name), "same_engine": result.same_engine and escape(result.same_engine)}
    return result.model_copy(update=names | {"comparison": comparison, "latency": rows})


def _figures(result: ResultValues) -> list[str]:
    """Return the cells of a measured model; only its name is text from outside."""
    size, timing, comparison = result.size, result.row(1), result.comparison
    cells = [
        number(result.score),
        difference(result) or "-",
        comparison.verdict if comparison else "-",
        short(size.parameters if size else None),
        short(result.bytes, "B"),
        short(size.macs if size else None),
        number(timing.p50_ms if timing else None, 2),
        short(result.memory.bytes if result.memory else None, "B"),
    ]
    return [result.name, *map(Markup, cells)]


def _step(place: int, record: Mapping[str, Any]) -> list[str]:
    sizes = [(record.get(side) or {}).get("parameters") for side in ("size_before", "size_after")]
    seed = record.get("seed")
    return [
        str(place),
        f"{record.get('technique', '?')} v{record.get('version', '?')}",
        listed(record.get("config")),
        Markup(" to ".join(dict.fromkeys(short(size) for size in sizes))),
        Markup(number(record.get("seconds"), 1)),
        Markup("-") if seed is None else str(seed),
        listed(record.get("facts")),
    ]


def _weakest(result: ResultValues) -> tuple[str, str, str, str] | None:
    """Return the model, the label that it predicts worst, its score and its number of examples."""
    scored = [part for part in result.slices if part.group == "label" and part.score == part.score]
    if not scored:
        return None
    worst = min(scored, key=lambda part: part.score)
    return result.name, worst.name, Markup(number(worst.score, 3)), count(worst.examples)
