"""From a model's outputs to answers, the same whatever predicts: a torch model, an ONNX export, a device without both.

With ``eval.encoding`` it is all that stands between texts and answers, so equal weights give equal answers everywhere.
It needs numpy and tokenizers alone: an export carries a copy of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from eval.encoding import Array, EncoderSettings, Feature, Inputs, TextEncoder
from eval.examples import Answer as Answer
from eval.kinds.kind_registry import kind_of
from eval.kinds.reading import softmax as softmax


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
            embedding; ``[1]`` for multiple-choice, the score of a choice; for causal-lm ``[tokens, 2]``, loss and
            whether it was the likeliest, of each token that is predicted.

    Returns:
        One answer an example, and its raw logits: ``[C]`` (classification, multilabel), ``[1]`` (regression),
        ``[words, C]`` (tagging), ``[1]`` the score of the best span (qa), ``[texts, d]`` (embedding), ``[choices]``
        (multiple-choice).
    """
    return kind_of(settings.kind).decode(settings, examples, features, outputs)


MOST_TOKENS = 8192
"""Tokens of a batch, padding included: beyond some thousands a processor gains nothing, and attention maps grow."""
WRITTEN_ON_GPU = 8
"""How many times as many texts are written at once on a GPU."""


@dataclass(frozen=True)
class Predictions:
    """What a model answered, example by example.

    Attributes:
        answers: By kind: ``{"label", "probability"}`` (for multiple-choice the place of a choice from 0),
            ``{"labels", "probabilities"}``, ``{"score"}``, ``{"tags"}``, ``{"text", "start", "end", "score"}``, for
            seq2seq ``{"text"}``, or for embedding ``{"vectors"}``, one a text, with the cosine of two as ``"score"``.
        logits: The raw outputs behind each answer (see ``decode``).
        layers: Layers that each example ran through, of a model in which not every one runs through all.
    """

    answers: list[Answer]
    logits: list[Array]
    layers: list[int] | None = None


def joined(parts: Iterable[Predictions]) -> Predictions:
    """Return the predictions for several lots of examples as one."""
    held = list(parts)
    layers = [count for part in held for count in part.layers or ()]
    return Predictions(
        [answer for part in held for answer in part.answers],
        [row for part in held for row in part.logits],
        layers or None,
    )


class Predictor(Protocol):
    """Anything that can be measured: a torch model, an export, or a user's own.

    One in which not every input runs through all layers may have ``forward_counted`` too: it takes what ``forward``
    takes, and returns its result and the layers that each row ran through, ``[rows]``, or None. One whose kind of task
    is to write text also has ``write``, which takes the same and returns the tokens that it writes for each row. One
    that many examples should find on a GPU has the context manager ``on_gpu``.
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


def batches_for(
    model: Predictor, lengths: Sequence[int], batch_size: int, most_tokens: int = MOST_TOKENS
) -> Iterator[list[int]]:
    """Yield what ``batches_by_length`` does, in larger batches for a model that writes on a GPU where it stands.

    A step of writing takes as long there for many rows as for few.
    """
    at_once = WRITTEN_ON_GPU if model.encoder.kind.writes and getattr(model, "is_on_gpu", False) else 1
    return batches_by_length(lengths, at_once * batch_size, at_once * most_tokens)


def cheapest_batches(
    lengths: Sequence[int], most_tokens: int, call_tokens: int, batch_size: int | None = None
) -> Iterator[list[int]]:
    """Yield indices in those batches of similar length that cost least together, longest first.

    A batch costs ``call_tokens`` and its rows times its longest input. Of inputs sorted by length the best batches are
    runs of neighbours, so the cheapest way to end before each input follows from those before it (a shortest path).

    Args:
        lengths: Tokens of each input.
        most_tokens: Most tokens of a batch, padding included, unless one input alone has more.
        call_tokens: What a call costs beside its tokens: so many tokens could be computed instead.
        batch_size: Most inputs of a batch; None leaves it to ``most_tokens``.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    costs: list[float] = [0, *[math.inf] * len(order)]
    begins = [0] * len(costs)
    before, reached = 0, 0
    for first, index in enumerate(order):
        longest = max(1, lengths[index])
        if longest != before:
            before, reached = longest, first
        most = max(1, most_tokens // longest)
        last = min(len(order), first + min(most, batch_size or most))
        # Of inputs of one length the first begins the cheapest batch, so later ones only add ends that it cannot reach.
        for end in range(max(first, reached) + 1, last + 1):
            cost = costs[first] + call_tokens + longest * (end - first)
            if cost < costs[end]:
                costs[end], begins[end] = cost, first
        reached = last
    ends = [len(order)]
    while ends[-1]:
        ends.append(begins[ends[-1]])
    for first, end in pairwise(reversed(ends)):
        yield order[first:end]


def predict(
    model: Predictor, examples: Sequence[Mapping[str, Any]], batch_size: int = 32, most_tokens: int = MOST_TOKENS
) -> Predictions:
    """Answer every example, in batches of similar length; answers come in the order of the examples."""
    with on_gpu(model):
        return predict_in_place(model, examples, batch_size, most_tokens)


def predict_in_place(
    model: Predictor, examples: Sequence[Mapping[str, Any]], batch_size: int = 32, most_tokens: int = MOST_TOKENS
) -> Predictions:
    """Answer every example as ``predict`` does, wherever the model stands."""
    features = model.encoder.encode(examples)
    batches = batches_for(model, [len(feature.ids) for feature in features], batch_size, most_tokens)
    return answered(model, examples, features, batches)


def on_gpu(model: Predictor) -> AbstractContextManager[None]:
    """Have a model that can on the GPU for a while, where there is one."""
    place: Callable[[], AbstractContextManager[None]] = getattr(model, "on_gpu", nullcontext)
    return place()


def answered(
    model: Predictor,
    examples: Sequence[Mapping[str, Any]],
    features: Sequence[Feature],
    batches: Iterable[Sequence[int]],
    run: Callable[[Iterable[Inputs]], Iterable[tuple[Array, Array | None]]] | None = None,
) -> Predictions:
    """Answer examples that are encoded.

    Args:
        model: What answers.
        examples: The examples.
        features: What its encoder returned for them.
        batches: Indices of the features that run together; each index once.
        run: Gives for each batch its logits and the layers that its rows ran through, in the place of the model.
    """
    encoder = model.encoder
    if encoder.kind.writes:
        return _written(model, features, batches)
    outputs: list[Array] = [np.empty(0, dtype=np.float32)] * len(features)
    layers: dict[int, int] = {}
    counted = getattr(model, "forward_counted", None) or (lambda inputs: (model.forward(inputs), None))
    batches = list(batches)
    inputs = (encoder.collate([features[i] for i in indices]) for indices in batches)
    for indices, (rows, ran) in zip(batches, run(inputs) if run else map(counted, inputs), strict=True):
        if ran is not None:
            layers |= zip(indices, ran.tolist(), strict=True)
        for row, index in zip(rows, indices, strict=True):
            outputs[index] = encoder.kind.kept(features[index], encoder.unpadded(features[index], row))
    answers, logits = decode(encoder.settings, examples, features, outputs)
    return Predictions(answers, logits, [layers[i] for i in range(len(features))] if layers else None)


def _written(model: Any, features: Sequence[Feature], batches: Iterable[Sequence[int]]) -> Predictions:
    """Return the texts that a model writes, and as raw outputs their tokens ``[n]``."""
    encoder: TextEncoder = model.encoder
    found: list[list[int]] = [[] for _ in features]
    for indices in batches:
        inputs = encoder.collate([features[i] for i in indices])
        for index, ids in zip(indices, model.write(inputs), strict=True):
            found[index] = ids
    answers: list[Answer] = [{"text": encoder.text_of(ids)} for ids in found]
    return Predictions(answers, [np.array(ids, dtype=np.float32) for ids in found])


def completed(model: Predictor, examples: Sequence[Mapping[str, Any]], found: Predictions) -> Predictions:
    """Return predictions as scores read them; of most kinds they are so already.

    Of retrieval the model reads all documents for it, and of reranking a query with each of its candidates. So this is
    called where predictions are scored, and not wherever a model is run.

    Args:
        model: What predicted.
        examples: The examples.
        found: What ``predict`` returned for them.
    """
    kind, index, held = model.encoder.kind, *(getattr(model, name, None) for name in ("index", "held"))
    more = {} if index is None else {"index": index}  # that of ``eval.ranking.indexed.Indexed``, as ``held`` is

    def read(texts: Sequence[Mapping[str, Any]]) -> list[Array]:
        return predict(model, texts).logits

    reads = read if held is None else partial(held.vectors, read=read)
    answers = kind.completed(examples, found.answers, found.logits, reads, **more)
    return replace(found, answers=answers)
