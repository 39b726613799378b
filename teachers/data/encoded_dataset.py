"""Rows of training data: features with their targets, and the masks of the masked-language objective."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import torch

from eval.encoding import IGNORED, Feature, TextEncoder
from eval.errors import UserError
from eval.kinds.kind_registry import kind_of
from eval.task import Examples, TaskSpec
from teachers.data.example_pairs import labelled_pairs

MASKED = 0.15
"""Share of the tokens that the masked-language objective hides."""


@dataclass(frozen=True)
class Batch:
    """One update's worth of rows, as tensors.

    Attributes:
        inputs: What the model takes: int64 ``[B, L]`` each; ``attention_mask`` is always there.
        targets: By kind: ``labels`` ``[B]`` or ``[B, L]``; ``start_positions`` and ``end_positions`` ``[B]`` for qa;
            none for embedding; ``labels`` and ``choices``, their number, ``[examples]`` for multiple-choice.
        rows: Index of each input among all features, ``[B]``.
        progress: 0 at the first optimizer step of the training, 1 at the last; schedules of a loss read it.
    """

    inputs: dict[str, torch.Tensor]
    targets: dict[str, torch.Tensor]
    rows: torch.Tensor
    progress: float = 0.0

    def __len__(self) -> int:
        """How many rows of the training data it holds: inputs, or for multiple-choice examples with all choices."""
        return len(self.targets.get("choices", self.rows))

    @property
    def mask(self) -> torch.Tensor:
        """1 for real tokens, 0 for padding, ``[B, L]``."""
        return self.inputs["attention_mask"]

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return Batch(
            {name: tensor.to(device) for name, tensor in self.inputs.items()},
            {name: tensor.to(device) for name, tensor in self.targets.items()},
            self.rows.to(device),
            self.progress,
        )

    def part(self, start: int, stop: int) -> Batch:
        """Return some of its rows, from ``start`` to before ``stop``; the choices of an example stay together."""
        counts = self.targets.get("choices", torch.ones_like(self.rows)).tolist()
        ends = [0, *accumulate(counts)]
        own, inputs = slice(start, stop), slice(ends[start], ends[stop])
        return Batch(
            {name: tensor[inputs] for name, tensor in self.inputs.items()},
            {name: tensor[own] for name, tensor in self.targets.items()},
            self.rows[inputs],
            self.progress,
        )


class EncodedDataset:
    """All rows of a split: encoded once, padded batch by batch.

    A row is one input of the network, a *feature*; for multiple-choice it is an example with a feature a choice.

    Args:
        examples: The examples.
        encoder: How the student reads them.
        spec: The task; it says which targets there are.
        seed: Seeds the masks of the masked-language objective, anew in every epoch (RoBERTa's dynamic masking).
        special_ids: Token ids that are never masked; only read for masked-lm.
        mask_id: The id of the mask token; only read for masked-lm.
        vocab_size: Random replacements are drawn below this; only read for masked-lm.

    Raises:
        UserError: If examples lack their labels.
    """

    def __init__(
        self,
        examples: Examples,
        encoder: TextEncoder,
        spec: TaskSpec,
        seed: int = 0,
        special_ids: Sequence[int] = (),
        mask_id: int | None = None,
        vocab_size: int = 0,
    ) -> None:
        self.kind = kind_of(spec.kind)
        if self.kind.masks and mask_id is None:
            raise UserError("the masked-language objective needs a tokenizer with a mask token")
        self.examples, self.encoder, self.spec = examples, encoder, spec
        self.features = self.kind.learned(encoder.encode(examples), encoder.settings)
        self.tokens = [len(feature.ids) for feature in self.features]
        self.members = _members(self.features, joined=self.kind.joined)
        self.lengths = [max(self.tokens[i] for i in own) for own in self.members]
        self.seed, self.mask_id, self.vocab_size = seed, mask_id, vocab_size
        self.special_ids = np.array(sorted(special_ids), dtype=np.int64)
        self.mask_weights: np.ndarray | None = None
        firsts = [self.features[own[0]] for own in self.members]
        self.targets = [target(spec, feature, examples[feature.example], encoder) for feature in firsts]

    def __len__(self) -> int:
        return len(self.members)

    @property
    def digest(self) -> str:
        """Recognises the examples."""
        return self.examples.digest

    def smooth_masks(self, exponent: float) -> None:
        """Let rare tokens be masked more often from now on, as a loss may ask: by ``smoothed`` counts of these rows.

        Of each row 15% of the tokens are then masked, rounded up or down by chance; see ``weighted_places``.
        """
        ids = np.concatenate([np.asarray(feature.ids, dtype=np.int64) for feature in self.features])
        self.mask_weights = smoothed(np.bincount(ids, minlength=self.vocab_size), exponent)

    def batch(self, rows: Sequence[int], epoch: int = 0, progress: float = 0.0) -> Batch:
        """Return the padded tensors of these rows."""
        members = [i for row in rows for i in self.members[row]]
        inputs = self.inputs(members)
        targets: dict[str, Any]
        if self.kind.masks:
            chances = [np.random.default_rng([self.seed, epoch, row]) for row in members]
            ids, labels = self.masked(inputs["input_ids"].numpy(), inputs["attention_mask"].numpy(), chances)
            inputs["input_ids"], targets = torch.from_numpy(ids), {"labels": labels}
        else:
            targets = self._pad_targets(rows, inputs["input_ids"].shape[1])
        return Batch(
            inputs,
            {name: torch.as_tensor(values) for name, values in targets.items()},
            torch.tensor(members, dtype=torch.int64),
            progress,
        )

    def inputs(self, features: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return what the model takes of some features, by their index among all (``Batch.rows``)."""
        arrays = self.encoder.collate([self.features[i] for i in features])
        return {name: torch.from_numpy(values) for name, values in arrays.items()}

    def masked(
        self, ids: np.ndarray, real: np.ndarray, chances: Sequence[np.random.Generator]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hide tokens of padded rows; each row has a source of chance, so its masks do not depend on its batch.

        Args:
            ids: Token ids ``[B, L]``.
            real: 1 for real tokens, 0 for padding, ``[B, L]``.
            chances: One a row.

        Returns:
            The changed ids and the labels, ``IGNORED`` where nothing is predicted; both ``[B, L]``.
        """
        mask_id = int(self.mask_id or 0)
        return mask_rows(ids, real, chances, self.special_ids, mask_id, self.vocab_size, self.mask_weights)

    def _pad_targets(self, rows: Sequence[int], length: int) -> dict[str, Any]:
        chosen = [self.targets[i] for i in rows]
        places = [self.encoder.place(self.lengths[i], length) for i in rows]
        return self.kind.padded(chosen, places, length, [len(self.members[i]) for i in rows])


def _members(features: Sequence[Feature], *, joined: bool) -> list[list[int]]:
    if not joined:
        return [[i] for i in range(len(features))]
    return [list(own) for _, own in groupby(range(len(features)), key=lambda i: features[i].example)]


def target(spec: TaskSpec, feature: Feature, example: Mapping[str, Any], encoder: TextEncoder) -> Any:
    """Return what a feature should be answered with.

    A class id, the place of a choice, a float, a list of tag ids (``IGNORED`` on all but the first token of a word),
    or the first and last token of the answer (the [CLS] place for a window that does not hold the answer). Without a
    label, the class id or the place is ``IGNORED`` and the float not a number.
    """
    kind = kind_of(spec.kind)
    if kind.truth is not None and kind.truth not in example and not kind.optional_truth:
        raise UserError(f"an example without {kind.truth!r} cannot be trained on: {str(dict(example))[:120]}")
    return kind.target(spec, feature, example, encoder.settings.pad_side == "left")


def labelled(spec: TaskSpec, examples: Examples) -> Examples:
    """Return the examples that hold their answer; texts, choices and pairs of embedding may be trained without it.

    Raises:
        UserError: If none does.
    """
    kind = kind_of(spec.kind)
    if kind.vectors:
        return labelled_pairs(spec, examples)
    if not kind.optional_truth or all(map(kind.learnable, examples)):
        return examples
    found = [example for example in examples if kind.learnable(example)]
    if not found:
        raise UserError(f"none of the {len(examples)} examples of {examples.name} has a {kind.truth} to learn from")
    return Examples(found, examples.name, examples.skipped)


def mask_rows(
    ids: np.ndarray,
    real: np.ndarray,
    chances: Sequence[np.random.Generator],
    special_ids: np.ndarray,
    mask_id: int,
    vocab_size: int,
    weights: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Hide tokens of padded rows, each by a source of chance of its own.

    Args:
        ids: Token ids ``[B, L]``.
        real: 1 for real tokens, 0 for padding, ``[B, L]``.
        chances: One a row.
        special_ids: As for ``mask_tokens``.
        mask_id: Id of the mask token.
        vocab_size: Random tokens are drawn from 0 to this.
        weights: Of each id in the vocabulary, above 0: tokens are drawn in proportion; None draws each with 15%.

    Returns:
        The changed ids and the labels, ``IGNORED`` where nothing is predicted; both ``[B, L]``.
    """
    changed, labels = ids.copy(), np.full_like(ids, IGNORED)
    for row, chance in enumerate(chances):
        own, chosen = real[row] == 1, None
        if weights is not None:
            count = math.floor(MASKED * int(own.sum()) + chance.random())
            chosen = weighted_places(ids[row, own], special_ids, weights, count, chance)
        found = mask_tokens(ids[row, own], special_ids, mask_id, vocab_size, chance, chosen)
        changed[row, own], labels[row, own] = found
    return changed, labels


def mask_tokens(
    ids: np.ndarray,
    special_ids: np.ndarray,
    mask_id: int,
    vocab_size: int,
    generator: np.random.Generator,
    chosen: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Choose 15% of the tokens; of these 80% become the mask, 10% a random token, 10% stay (Devlin et al. 2019).

    Args:
        ids: Token ids ``[B, L]``; special tokens and padding are in ``special_ids`` and never chosen.
        special_ids: Sorted ids.
        mask_id: Id of the mask token.
        vocab_size: Random tokens are drawn from 0 to this.
        generator: The source of chance.
        chosen: The tokens, boolean ``[B, L]``; None draws each for itself, with a chance of 15%.

    Returns:
        The changed ids and the labels, ``IGNORED`` where nothing is predicted; both ``[B, L]``.
    """
    if chosen is None:
        chosen = (generator.random(ids.shape) < MASKED) & ~np.isin(ids, special_ids)
    draw = generator.random(ids.shape)
    random_ids = generator.integers(0, vocab_size, ids.shape)
    changed = np.where(chosen & (draw < 0.8), mask_id, ids)
    changed = np.where(chosen & (draw >= 0.8) & (draw < 0.9), random_ids, changed)
    return changed, np.where(chosen, ids, IGNORED)


def smoothed(counts: np.ndarray, exponent: float) -> np.ndarray:
    """Return ``max(count, 1) ** -exponent`` for each token: by how much likelier a rare one is masked.

    ``mlm_smoothing`` of DistilBERT's code, after Lample and Conneau 2019, arXiv 1901.07291; 0 makes all equal.
    """
    return np.asarray(np.maximum(counts, 1).astype(np.float64) ** -exponent)


def weighted_places(
    ids: np.ndarray, special_ids: np.ndarray, weights: np.ndarray, count: int, generator: np.random.Generator
) -> np.ndarray:
    """Draw places without replacement, each time in proportion to the weights of what is left.

    Args:
        ids: Token ids of any shape.
        special_ids: Ids that are never drawn.
        weights: Of each id in the vocabulary, above 0.
        count: How many places; all there are if there are fewer.
        generator: The source of chance.

    Returns:
        Which places were drawn, boolean, of the same shape.
    """
    shares = np.where(np.isin(ids, special_ids), 0.0, weights[ids]).reshape(-1)
    chosen = np.zeros(shares.shape, dtype=bool)
    count = min(count, int((shares > 0).sum()))
    if count:
        chosen[generator.choice(len(shares), count, replace=False, p=shares / shares.sum())] = True
    return chosen.reshape(ids.shape)
