"""From a model's outputs to answers, the same whatever predicts: a torch model, an ONNX export, a device without both.

With ``eval.encoding`` it is all that stands between texts and answers, so equal weights give equal answers everywhere.
It needs numpy and tokenizers alone: an export carries a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from eval.encoding import Array, EncoderSettings, Feature, Inputs, TextEncoder

Answer = dict[str, Any]

LONGEST_ANSWER = 30
"""Most tokens of an extracted answer, as in the SQuAD scripts of BERT (Devlin et al. 2019)."""


def decode(
    settings: EncoderSettings,
    examples: Sequence[Mapping[str, Any]],
    features: Sequence[Feature],
    outputs: Sequence[Array],
) -> tuple[list[Answer], list[Array]]:
    """Turn outputs into answers.

    Args:
        settings: Those of the encoder.
        examples: The examples that were encoded.
        features: What ``TextEncoder.encode`` returned for them.
        outputs: For each feature its unpadded output: ``[C]``, or ``[tokens, C]`` for tagging and qa; ``[d]`` for
            embedding; ``[1]`` for multiple-choice, the score of a choice.

    Returns:
        One answer an example, and its raw logits: ``[C]`` (classification), ``[1]`` (regression),
        ``[words, C]`` (tagging), ``[1]`` the score of the best span (qa), ``[texts, d]`` (embedding), ``[choices]``
        (multiple-choice).
    """
    if settings.kind == "tagging":
        return _decode_tags(settings.labels, examples, features, outputs)
    if settings.kind == "qa":
        return _decode_spans(examples, features, outputs)
    if settings.kind == "embedding":
        return _decode_vectors(examples, features, outputs)
    if settings.kind == "multiple-choice":
        return _decode_choices(examples, features, outputs)
    answers = [_answer(settings, output) for output in outputs]
    return answers, list(outputs)


def _answer(settings: EncoderSettings, logits: Array) -> Answer:
    if settings.kind == "regression":
        return {"score": float(logits[0])}
    probabilities = softmax(logits)
    best = int(probabilities.argmax())
    return {"label": settings.labels[best], "probability": float(probabilities[best])}


def _decode_tags(
    labels: Sequence[str],
    examples: Sequence[Mapping[str, Any]],
    features: Sequence[Feature],
    outputs: Sequence[Array],
) -> tuple[list[Answer], list[Array]]:
    outside = labels.index("O") if "O" in labels else 0
    # A word without a piece of its own (a control character) keeps "O" for certain.
    blank = np.zeros(len(labels), dtype=np.float32)
    blank[outside] = 1.0
    logits = [np.tile(blank, (len(example["tokens"]), 1)) for example in examples]
    seen: list[set[int]] = [set() for _ in examples]
    for feature, output in zip(features, outputs, strict=True):
        for position, word in enumerate(feature.words or ()):
            if word >= 0 and word not in seen[feature.example]:
                seen[feature.example].add(word)
                logits[feature.example][word] = output[position]
    answers: list[Answer] = [{"tags": [labels[i] for i in rows.argmax(axis=-1)]} for rows in logits]
    return answers, logits


def _decode_spans(
    examples: Sequence[Mapping[str, Any]], features: Sequence[Feature], outputs: Sequence[Array]
) -> tuple[list[Answer], list[Array]]:
    best: list[Answer] = [{"text": "", "start": 0, "end": 0, "score": -np.inf} for _ in examples]
    for feature, output in zip(features, outputs, strict=True):
        found = best_span(output[:, 0], output[:, 1], feature.offsets or [])
        if found is not None and found[0] > best[feature.example]["score"]:
            score, start, end = found
            text = examples[feature.example]["context"][start:end]
            best[feature.example] = {"text": text, "start": start, "end": end, "score": float(score)}
    for answer in best:
        if answer["score"] == -np.inf:  # an empty context: no place for an answer
            answer["score"] = 0.0
    return best, [np.array([answer["score"]], dtype=np.float32) for answer in best]


def _decode_vectors(
    examples: Sequence[Mapping[str, Any]], features: Sequence[Feature], outputs: Sequence[Array]
) -> tuple[list[Answer], list[Array]]:
    vectors: list[list[Array]] = [[] for _ in examples]
    for feature, output in zip(features, outputs, strict=True):
        vectors[feature.example].append(output)
    logits = [np.stack(rows) for rows in vectors]
    answers: list[Answer] = []
    for rows in logits:
        # Six decimals are what a vector of length 1 is worth in float32; more would only be longer to read.
        answer: Answer = {"vectors": np.round(rows.astype(np.float64), 6).tolist()}
        if len(rows) == 2:
            answer["score"] = float(cosines(rows[:1], rows[1:])[0])
        answers.append(answer)
    return answers, logits


def _decode_choices(
    examples: Sequence[Mapping[str, Any]], features: Sequence[Feature], outputs: Sequence[Array]
) -> tuple[list[Answer], list[Array]]:
    scores: list[list[float]] = [[] for _ in examples]
    for feature, output in zip(features, outputs, strict=True):
        scores[feature.example].append(float(output[0]))
    logits = [np.array(row, dtype=np.float32) for row in scores]
    answers: list[Answer] = []
    for probabilities in map(softmax, logits):
        best = int(probabilities.argmax())
        answers.append({"label": best, "probability": float(probabilities[best])})
    return answers, logits


def cosines(first: Array, second: Array) -> Array:
    """Return the cosine of each row of ``[n, d]`` with the same row of the other, in float64; 0 for a row of zeros."""
    x, y = (np.asarray(rows, dtype=np.float64) for rows in (first, second))
    lengths = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    return np.asarray((x * y).sum(axis=-1) / np.maximum(lengths, np.finfo(np.float64).tiny))


def best_span(
    start_logits: Array, end_logits: Array, offsets: Sequence[tuple[int, int] | None]
) -> tuple[float, int, int] | None:
    """Return (score, first character, last character + 1) of the best answer span inside the context, or None.

    The best is the span of at most ``LONGEST_ANSWER`` tokens with the largest sum of its start and end logit; among
    equals the shortest, then the first.

    Args:
        start_logits: ``[tokens]``.
        end_logits: ``[tokens]``.
        offsets: Characters of each token in the context, None outside of it.
    """
    inside = np.array([offset is not None for offset in offsets], dtype=bool)
    starts = np.where(inside, start_logits, -np.inf)
    ends = np.where(inside, end_logits, -np.inf)
    best: tuple[float, int, int] | None = None
    for further in range(min(LONGEST_ANSWER, len(offsets))):
        scores = starts[: len(starts) - further] + ends[further:]
        start = int(scores.argmax())
        first, last = offsets[start], offsets[start + further]
        if first is not None and last is not None and (best is None or scores[start] > best[0]):
            best = (float(scores[start]), first[0], last[1])
    return best


def softmax(logits: Array) -> Array:
    """Return probabilities along the last axis, in float64."""
    shifted = np.asarray(logits, dtype=np.float64)
    exponents = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=-1, keepdims=True))


MOST_TOKENS = 8192
"""Tokens of a batch, padding included: beyond some thousands a processor gains nothing, and attention maps grow."""


@dataclass(frozen=True)
class Predictions:
    """What a model answered, example by example.

    Attributes:
        answers: By kind: ``{"label", "probability"}`` (for multiple-choice the place of a choice from 0),
            ``{"score"}``, ``{"tags"}``, ``{"text", "start", "end", "score"}``, or for embedding
            ``{"vectors"}``, one a text, with the cosine of two as ``"score"``.
        logits: The raw outputs behind each answer (see ``decode``).
        layers: Layers that each example ran through, of a model in which not every one runs through all.
    """

    answers: list[Answer]
    logits: list[Array]
    layers: list[int] | None = None


class Predictor(Protocol):
    """Anything that can be measured: a torch model, an export, or a user's own.

    One in which not every input runs through all layers may have ``forward_counted`` too: it takes what ``forward``
    takes, and returns its result and the layers that each row ran through, ``[rows]``, or None.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def encoder(self) -> TextEncoder:
        """How examples become inputs."""
        ...

    def forward(self, inputs: Inputs) -> Array:
        """Return float32 logits ``[rows, C]``, or ``[rows, length, C]`` for tagging and qa (C = start, end).

        For embedding they are the vectors of the texts, ``[rows, d]``; for multiple-choice every choice is a row, and
        they are the scores ``[rows, 1]``.
        """
        ...


def batches_by_length(lengths: Sequence[int], batch_size: int, most_tokens: int = MOST_TOKENS) -> Iterator[list[int]]:
    """Yield indices of similar length, longest first, so that a run out of memory shows at once.

    Args:
        lengths: Tokens of each input.
        batch_size: Most inputs of a batch.
        most_tokens: Most tokens of a batch, padding included, unless one input alone has more.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    first = 0
    while first < len(order):
        rows = min(batch_size, max(1, most_tokens // max(1, lengths[order[first]])))
        yield order[first : first + rows]
        first += rows


def predict(
    model: Predictor, examples: Sequence[Mapping[str, Any]], batch_size: int = 32, most_tokens: int = MOST_TOKENS
) -> Predictions:
    """Answer every example, in batches of similar length; answers come in the order of the examples."""
    encoder = model.encoder
    features = encoder.encode(examples)
    outputs: list[Array] = [np.empty(0, dtype=np.float32)] * len(features)
    layers: dict[int, int] = {}
    counted = getattr(model, "forward_counted", None)
    for indices in batches_by_length([len(feature.ids) for feature in features], batch_size, most_tokens):
        inputs = encoder.collate([features[i] for i in indices])
        rows, ran = counted(inputs) if counted is not None else (model.forward(inputs), None)
        if ran is not None:
            layers |= zip(indices, ran.tolist(), strict=True)
        for row, index in zip(rows, indices, strict=True):
            output = row
            if row.ndim == 2:
                output = row[encoder.place(len(features[index].ids), row.shape[0])]
            outputs[index] = np.array(output, dtype=np.float32)
    answers, logits = decode(encoder.settings, examples, features, outputs)
    return Predictions(answers, logits, [layers[i] for i in range(len(features))] if layers else None)
