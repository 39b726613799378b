"""The gate of every export: the same inputs through the export and through the model it was made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from compress.export.check.probes import odd_examples, synthetic_examples
from eval.differences import Seen
from eval.encoding import Array, Feature, Inputs
from eval.errors import quantity
from eval.inference import Predictor, completed, predict
from eval.kinds.kind_registry import kind_of
from eval.progress.stages import counted

Example = Mapping[str, Any]
TOLERANCE = 1e-3
"""Largest difference of a float32 export, relative to the largest logit."""
LEAST_LIMIT = 1e-4
"""A difference up to this always passes: where logits are small, a relative one says nothing."""
MADE_UP_MARGIN = 0.1
"""On synthetic text, predictions between which the model hardly chooses do not count; relative to the largest logit."""
SAME_TEXTS = 0.98
"""Share of the tokens of a text that a float32 export must write as its model does; near ties may turn."""
SYNTHETIC, SYNTHETIC_EXACT = 200, 32
"""Synthetic texts on which 8-bit predictions are compared, of which a few may turn, and those where none may."""
RANKED_QUERIES, RANKED_DOCUMENTS = 10, 20
"""Queries of a reranker whose order is compared, and how many of the first documents of each are sorted."""
BATCH = 8


@dataclass(frozen=True)
class GateReport:
    """How far an export is from its model.

    Attributes:
        examples: Real examples that were compared; synthetic ones come on top.
        agreement: Share of equal predictions: labels, choices, tags, masked tokens, starts and ends of answers, or
            close scores and vectors; of written texts the share of tokens in common, as a mean over texts; where a
            reranker sorts the documents of queries, the share of the ten best that are the same.
        agreement_needed: The least that passes.
        max_abs_difference: Largest difference of a logit.
        mean_abs_difference: Mean difference of the logits.
        scale: Largest logit of the model, without its sign.
        limit: Largest difference that passes; None where only agreement counts.
        batch_difference: Largest difference of the export to itself, each row alone against rows in one batch.
        problems: Why the export is refused, one sentence each.
    """

    examples: int
    agreement: float
    agreement_needed: float
    max_abs_difference: float
    mean_abs_difference: float
    scale: float
    limit: float | None
    batch_difference: float
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the export answers as its model does."""
        return not self.problems

    def refusal(self, name: str, is_8_bit: bool) -> str:
        """Return why the export of the model with this name is not written."""
        advice = "; exclude the modules that need float32, or lower agreement if that is enough" if is_8_bit else ""
        found = "; ".join(self.problems)
        return f"{name}: the export does not answer as the model does: {found}{advice}; nothing was written"

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON."""
        return {**asdict(self), "problems": list(self.problems), "passed": self.passed}


class Remembered:
    """A model that computes its answer to the same inputs once, for exports that are compared with it one by one.

    Attributes:
        encoder: How examples become inputs.
        name: The model's.
    """

    def __init__(self, model: Predictor) -> None:
        self.encoder, self.name = model.encoder, model.name
        self._forward = model.forward
        self._write: Any = getattr(model, "write", None)
        self._known: dict[tuple[Any, ...], Array] = {}
        self._texts: dict[tuple[Any, ...], list[list[int]]] = {}

    def forward(self, inputs: Inputs) -> Array:
        """Return the model's logits."""
        key = _key(inputs)
        if key not in self._known:
            self._known[key] = self._forward(inputs)
        return self._known[key]

    def write(self, inputs: Inputs) -> list[list[int]]:
        """Return the tokens that the model writes."""
        key = _key(inputs)
        if key not in self._texts and self._write is not None:
            self._texts[key] = self._write(inputs)
        return self._texts[key]


def _key(inputs: Inputs) -> tuple[Any, ...]:
    return tuple((name, array.shape, array.tobytes()) for name, array in inputs.items())


def compare(
    export: Predictor,
    reference: Predictor,
    examples: Iterable[Example] = (),
    *,
    tolerance: float | None = TOLERANCE,
    agreement: float = 1.0,
) -> GateReport:
    """Compare an export with its model on real examples and on odd and synthetic texts, in batches of mixed lengths.

    Args:
        export: What is to be proven.
        reference: The model it was made from.
        examples: Real inputs; without any, the predictions on synthetic texts are compared.
        tolerance: Largest difference of a logit relative to the largest logit, at least 1e-4 in all; it also holds for
            rows alone against the same rows in a batch. None: 8-bit arithmetic, where only agreement is asked for.
        agreement: Least share of equal predictions. With a tolerance, ties within twice the limit are equal.
    """
    real = list(examples)
    settings = reference.encoder.settings
    odd = odd_examples(reference.encoder)
    judged = real or synthetic_examples(reference.encoder, SYNTHETIC if tolerance is None else SYNTHETIC_EXACT)
    seen = Seen(settings)
    for example_set, decide in ((judged, True), (odd, False)):
        batches = _same_features(export, reference, example_set, seen.problems)
        for features in counted(batches, "comparing with the model", len(example_set)):
            inputs = reference.encoder.collate(features)
            seen.add(features, reference.encoder, reference.forward(inputs), export.forward(inputs), decide)
    together = _alone_and_together(export, [*judged[:3], odd[0], *odd[-4:]])
    parts = _in_two_parts(export, judged[:BATCH])
    limit = None if tolerance is None else max(LEAST_LIMIT, tolerance * seen.scale)
    undecided = 0.0 if real else MADE_UP_MARGIN * seen.scale
    share = seen.agreement(undecided if limit is None else 2 * limit)
    if reference.encoder.kind.writes:
        texts = _texts_alike(export, reference, judged)
        share = texts if limit is None else share
        if limit is not None and texts < SAME_TEXTS:
            seen.problems.append(f"texts are {texts:.2%} the same tokens as the model's, needed are {SAME_TEXTS:.0%}")
    elif limit is None:
        share = _ranks_alike(export, reference, real, share)
    problems = list(dict.fromkeys(seen.problems))
    if limit is not None and not seen.largest <= limit:
        problems.append(f"logits differ by up to {seen.largest:.3g}, allowed is {limit:.3g}")
    if limit is not None and not together <= limit:
        problems.append(f"a row alone and in a batch differs by up to {together:.3g}, allowed is {limit:.3g}")
    if limit is not None and not parts <= limit:
        problems.append(f"a text read in two parts differs by up to {parts:.3g}, allowed is {limit:.3g}")
    if share < agreement:
        what = quantity(len(real), "example") if real else quantity(len(judged), "synthetic text")
        problems.append(f"{share:.2%} of the predictions on {what} are equal, needed are {agreement:.2%}")
    return GateReport(
        len(real), share, agreement, seen.largest, seen.mean, seen.scale, limit, together, tuple(problems)
    )


def _same_features(
    export: Predictor, reference: Predictor, examples: Sequence[Example], problems: list[str]
) -> Iterator[list[Feature]]:
    """Yield batches of the reference's features, in the order of the examples, and check the export's against them."""
    for first in range(0, len(examples), BATCH):
        chunk = examples[first : first + BATCH]
        features = reference.encoder.encode(chunk)
        rows = len(features) if kind_of(reference.encoder.settings.kind).joined else BATCH
        if export.encoder.encode(chunk) != features:
            problems.append("the exported tokenizer gives other tokens than the model's")
        yield from (features[start : start + rows] for start in range(0, len(features), rows))


def _texts_alike(export: Any, reference: Any, examples: Sequence[Example]) -> float:
    """Return the share of tokens that the texts of two models have in common, as a mean over examples."""
    encoder, found = reference.encoder, list[float]()
    kind: Any = encoder.kind
    for first in range(0, len(examples), BATCH):
        inputs = encoder.collate(encoder.encode(examples[first : first + BATCH]))
        pairs = zip(reference.write(inputs), export.write(inputs), strict=True)
        found += [kind.in_common(one, other) for one, other in pairs]
    return float(np.mean(found)) if found else 1.0


def _ranks_alike(export: Predictor, reference: Predictor, examples: Sequence[Example], otherwise: float) -> float:
    """Return the share of the best documents that two rerankers have in common; ``otherwise`` without queries."""
    kind = reference.encoder.kind
    if not kind.searches or kind.vectors:
        return otherwise
    asked = [example for example in examples if example.get("candidates")][:RANKED_QUERIES]
    few = [{**example, "candidates": example["candidates"][:RANKED_DOCUMENTS]} for example in asked]
    orders = [completed(model, few, predict(model, few)).answers for model in (reference, export)]
    return kind.agreement(list(zip(*orders, strict=True)))["top_10"] if few else otherwise


def _in_two_parts(export: Predictor, examples: Sequence[Example]) -> float:
    """Return how far the logits of a text are from those of its second half after its first, where there is a cache."""
    engine: Any = getattr(export, "engine", None)
    step: Any = getattr(engine, "step", None)
    writes, largest = export.encoder.kind.writes, 0.0
    for feature in export.encoder.encode(examples) if step is not None else ():
        inputs = export.encoder.collate([feature])
        begun = engine.read(inputs) if writes else {}
        tokens = {"input_ids": inputs["decoder_input_ids"]} if writes else inputs
        half = tokens["input_ids"].shape[1] // 2
        first, second = (
            {name: array[:, part] for name, array in tokens.items()} for part in (slice(half), slice(half, None))
        )
        past = step(first, begun)[1] if half else begun
        after = step(second, past)[0]
        largest = max(largest, float(np.abs(export.forward(inputs)[:, half:] - after).max(initial=0)))
    return largest


def _alone_and_together(export: Predictor, examples: Sequence[Example]) -> float:
    encoder = export.encoder
    features = encoder.encode(examples)[:BATCH]
    largest = 0.0
    for feature, row in zip(features, export.forward(encoder.collate(features)), strict=True):
        alone = export.forward(encoder.collate([feature]))[0]
        row, alone = encoder.unpadded(feature, row), encoder.unpadded(feature, alone)
        largest = max(largest, float(np.abs(row - alone).max(initial=0)))
    return largest
