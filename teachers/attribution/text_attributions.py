"""Attributions of one model to the tokens of texts, by each method that it allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from eval.attribution.aligned_units import Attributed
from eval.cost.size import device_of
from eval.errors import UserError
from eval.examples import Example
from eval.kinds.kind_registry import all_kinds, kind_of
from eval.task import TaskSpec
from teachers.anatomy.encoder import embedding_parts
from teachers.attribution.attention_rollout import attention_rollout, no_attention
from teachers.attribution.integrated_gradients import integrated_gradients
from teachers.taskmodel import TaskModel, logits_of

GRADIENTS, ROLLOUT = "integrated gradients", "attention rollout"
Baseline = Literal["pad", "mask"]
BASELINES: tuple[Baseline, ...] = ("pad", "mask")


@dataclass(frozen=True)
class Explained:
    """How a model's prediction of one example is explained.

    Attributes:
        methods: Name of the method -> attributions.
        missing: By how much integrated gradients miss the difference of the score between both ends of their path.
        difference: That difference.
    """

    methods: dict[str, Attributed]
    missing: float
    difference: float


def explain(
    model: TaskModel,
    example: Example,
    label: str | None = None,
    *,
    baseline: Baseline | None = None,
    steps: int | None = None,
    rollout: bool = True,
) -> Explained:
    """Attribute a model's score of one example to the tokens that it reads.

    The score is the logit of a label: minus the mean of the others where one label is chosen of several, so that what
    is added to all of them does not count. Of regression it is the number that is predicted.

    Args:
        model: A model of a task with one score (``eval.kinds.kind.Kind.one_score``).
        example: Its texts.
        label: The label; None takes the one that the model predicts.
        baseline: The token that stands for nothing: of padding, or the mask; None takes ``usual_baseline``.
        steps: Points at which gradients are taken, as for ``integrated_gradients``.
        rollout: Whether attention is rolled out too; the network must allow it (``no_attention``).

    Raises:
        UserError: The kind of task has no such score, the tokenizer lacks the token, or the network has no gradient.
    """
    if problems := unexplained(model.task, [model], baseline or "pad"):
        raise UserError(*problems)
    baseline = baseline or usual_baseline([model])
    encoder, network = model.encoder, model.model
    (feature,), spans = encoder.encode([example]), encoder.spans(example)
    inputs = _row(model, feature)
    weights = torch.from_numpy(_weights(model, label if label is not None else predicted_label(model, example)))

    def score(outputs: Any) -> Tensor:
        logits = logits_of(outputs, network.config, inputs["attention_mask"])
        return logits.float() @ weights.to(logits.device)

    replaced = [place for place, span in enumerate(spans) if span is not None]
    token = getattr(model.tokenizer, f"{baseline}_token_id")
    values, missing = integrated_gradients(network, inputs, replaced, token, score, steps)
    found = {GRADIENTS: Attributed(feature.ids, spans, values)}
    if rollout:
        found[ROLLOUT] = Attributed(feature.ids, spans, attention_rollout(network, inputs))
    return Explained(found, missing, float(values.sum()) - missing)


def usual_baseline(models: Sequence[TaskModel]) -> Baseline:
    """Return the token that stands for nothing where none is named: that of padding, or the mask where that cannot be.

    Where a vector of padding is 0 and goes straight into a layer norm, as in DeBERTa, the whole way to a token has one
    and the same norm, so that there is no gradient along it.

    Args:
        models: All that are to be explained; they share the token.
    """
    masked = all(model.tokenizer.mask_token_id is not None for model in models)
    return "mask" if masked and any(map(_starts_in_a_norm, models)) else "pad"


def _starts_in_a_norm(model: TaskModel) -> bool:
    parts, network = embedding_parts(model.model), model.model
    if "norm" not in parts or parts.keys() & {"positions", "token_types"}:
        return False
    padding = torch.tensor([[model.tokenizer.pad_token_id or 0]], device=device_of(network))
    with torch.no_grad():
        return not bool(network.get_input_embeddings()(padding).any())


def predicted_label(model: TaskModel, example: Example) -> str | None:
    """Return the label with the highest logit; None where a number is predicted."""
    labels = model.encoder.settings.labels
    if not labels:
        return None
    logits = model.forward(model.encoder.collate(model.encoder.encode([example])))
    return labels[int(logits[0].argmax())]


def why_no_rollout(model: TaskModel, example: Example) -> str:
    """Return why attention cannot be rolled out in a model, tried with an example; nothing if it can."""
    (feature,) = model.encoder.encode([example])
    return no_attention(model.model, _row(model, feature))


def unexplained(spec: TaskSpec, models: Sequence[Any], baseline: str = "pad") -> list[str]:
    """Return why predictions of models cannot be attributed to the tokens of their inputs; nothing if they can.

    Args:
        spec: What is asked.
        models: All that are to be explained.
        baseline: ``pad`` or ``mask``.
    """
    kind, problems = kind_of(spec.kind), []
    if not kind.one_score:
        allowed = ", ".join(other.name for other in all_kinds() if other.one_score)
        problems.append(f"attributions: {kind.named} model does not give one score for an input; allowed: {allowed}")
    for model in models:
        if not isinstance(model, TaskModel):
            problems.append(
                f"attributions: {model.name} is no single torch model, so it has no gradients; give a model folder, "
                "for an export that of its model"
            )
        elif baseline not in BASELINES:
            problems.append(f"attributions: baseline is {baseline!r}; allowed: {', '.join(BASELINES)}")
        elif getattr(model.tokenizer, f"{baseline}_token_id") is None:
            problems.append(
                f"attributions: the tokenizer of {model.name} has no {baseline} token; take another baseline"
            )
    return list(dict.fromkeys(problems))


def _row(model: TaskModel, feature: Any) -> dict[str, Tensor]:
    device = device_of(model.model)
    return {name: torch.from_numpy(values).to(device) for name, values in model.encoder.collate([feature]).items()}


def _weights(model: TaskModel, label: str | None) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return what each output counts in the score, ``[C]``."""
    labels, kind = model.encoder.settings.labels, model.encoder.kind
    if label is None or not labels:
        return np.ones(1, dtype=np.float32)
    if label not in labels:
        raise UserError(f"attributions: {model.name} has no label {label!r}; its labels are {', '.join(labels)}")
    own = np.array([name == label for name in labels], dtype=np.float32)
    others = 0.0 if kind.independent or len(labels) == 1 else 1 / (len(labels) - 1)
    return np.where(own > 0, own, -others).astype(np.float32)
