"""The arguments of ``load_task``, checked before anything is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from eval.errors import UserError, did_you_mean
from eval.kinds.kind_registry import kind_of
from eval.metrics.own_metric import Function
from eval.scores import default_metric, unfit
from eval.task import BM25, TaskSpec

PROMPTS = ("query_prompt", "document_prompt")
"""Arguments for what stands before texts whose role is known."""
Weights = Literal["balanced"] | Mapping[str, float]


def specification(kind: str, metric: str | Function | None, **given: Any) -> TaskSpec:
    """Return what is asked as far as it is known before the data is read: labels and pairs are not.

    Args:
        kind: Kind of task.
        metric: The primary metric; None takes the usual one.
        given: Further fields of a ``TaskSpec``; None takes the kind's default.

    Raises:
        UserError: A value is not allowed.
    """
    own = kind_of(kind)
    of_others = {
        "has no vectors": ()
        if own.vectors
        else ("pooling", "normalize", *PROMPTS, *(() if own.writes else ("prompt",))),
        "writes no text": () if own.writes else ("target_length", "beams", "length_penalty"),
        "searches no documents": () if own.searches else ("negatives",),
        "sorts no documents of a first stage": () if own.searches and not own.vectors else ("first_stage",),
    }
    named = [(name, why) for why, names in of_others.items() for name in names if given.get(name) is not None]
    problems = [f"{name}: {kind} {why}; leave it out" for name, why in named]
    given = {name: value for name, value in given.items() if name not in dict(named)}
    if given.get("choose_thresholds") and not own.thresholds(("a label",)):
        problems.append(f"choose_thresholds: {kind} has no thresholds; leave it out")
    if own.chooses and given.get("choose_thresholds") is None:
        given["choose_thresholds"] = True
    defaults = {"max_length": own.max_length, "stride": own.stride, "truncation": own.truncation}
    if own.vectors:  # what is not said, the folder of an embedder says (``teachers.sentence_folder``)
        del defaults["max_length"]
    try:
        spec = TaskSpec.model_validate(
            {
                "kind": kind,
                "metric": metric or own.default_metric(pair=True),
                # What the metric of vectors is for, until the data says it.
                "pair": own.vectors and metric != "nearest",
                **defaults,
                **{name: value for name, value in given.items() if value is not None},
            }
        )
    except ValidationError as error:
        wrong = (f"{part['loc'][0]}: got {part['input']!r}; {part['msg'].lower()}" for part in error.errors())
        raise UserError(*problems, *wrong) from None
    if misfit := unfit(spec.metric, spec):
        problems.append(f"metric: {misfit}")
    if problems:
        raise UserError(*problems)
    return spec


def as_made_for(spec: TaskSpec, kind: str | None = None) -> dict[str, Any]:
    """Return the arguments of ``load_task`` by which texts reach a model as it was made to read them.

    Args:
        spec: The model's task.
        kind: Kind of the task that the data is of, if it is another.
    """
    how: dict[str, Any] = {
        "max_length": spec.max_length,
        "stride": spec.stride,
        "truncation": spec.truncation,
        "truncation_side": spec.truncation_side,
    }
    if kind_of(spec.kind).vectors and (kind in (None, spec.kind) or spec.kind in kind_of(str(kind)).alike):
        how |= {"pooling": spec.pooling, "normalize": spec.normalize, "prompt": spec.prompt}
        how |= {name: text for name in PROMPTS if (text := getattr(spec, name)) is not None}
    if kind_of(spec.kind).writes and kind in (None, spec.kind):
        how |= {name: getattr(spec, name) for name in ("prompt", "target_length", "beams", "length_penalty")}
    if kind_of(spec.kind).searches and kind in (None, spec.kind):
        how |= {"negatives": spec.negatives} | ({} if spec.first_stage == BM25 else {"first_stage": spec.first_stage})
    return how


def unusual(spec: TaskSpec) -> dict[str, Any]:
    """Return the arguments of ``load_task``, apart from ``max_length``, that a model's task needs to be read again.

    What the kind of task has by default is left out.

    Args:
        spec: The model's task, of data that was read for it.

    Examples:
        >>> from eval.task import TaskSpec
        >>> spec = TaskSpec(kind="classification", metric="matthews", labels=("no", "yes"), truncation_side="left")
        >>> unusual(spec)
        {'truncation_side': 'left', 'metric': 'matthews'}
    """
    usual = specification(spec.kind, None)
    made = {name: value for name, value in as_made_for(spec).items() if value != getattr(usual, name)}
    made.pop("max_length", None)
    return made if spec.metric == default_metric(spec.kind, spec.pair) else {**made, "metric": spec.metric}


def wrong_arguments(
    kind: str,
    labels: Sequence[str] | None,
    class_weights: Weights | None,
    on_bad: str,
    columns: Mapping[str, str],
    limit: Mapping[str, int],
) -> list[str]:
    """Return what is wrong with the other arguments, one sentence each."""
    own, problems = kind_of(kind), []
    if on_bad not in ("refuse", "skip"):
        problems.append(f"on_bad: got {on_bad!r}; allowed: refuse, skip")
    problems += [
        f"columns: {kind} has no field {name!r}{did_you_mean(name, (*own.fields, 'group'))}"
        for name in columns
        if name not in (*own.fields, "group")
    ]
    problems += [
        f"limit: {name}: got {count!r}; must be a whole number of 1 or more"
        for name, count in limit.items()
        if isinstance(count, bool) or not isinstance(count, int) or count < 1
    ]
    problems += [
        f"{name}: {kind} has no labels; leave it out"
        for name, value in (("labels", labels), ("class_weights", class_weights))
        if value is not None and not own.labelled
    ]
    if isinstance(labels, str):
        problems.append(f"labels: got the string {labels!r}; give a list of names")
    elif labels is not None and len(set(labels)) != len(labels):
        problems.append(f"labels: named twice: {', '.join(str(one) for one, n in Counter(labels).items() if n > 1)}")
    elif own.one_label and labels is not None and len(labels) < 2:
        problems.append(f"labels: got {list(labels)}; {own.named} needs two labels or more")
    if isinstance(class_weights, str) and class_weights != "balanced":
        problems.append(f"class_weights: got {class_weights!r}; allowed: balanced, or a weight for each label")
    return problems
