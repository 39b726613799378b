"""What training asks of a kind of task; the defaults are those of one prediction for a text or a pair of texts.

Torch is imported only inside of what needs it: an export carries a copy of this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eval.examples import IGNORED, TEXTS, Array, Asks, Example, Feature, Reads
from eval.kinds.reading import Reading

if TYPE_CHECKING:
    from torch import Tensor


class Learning(Reading):
    """What is learned from examples, and how far a prediction is from it.

    Attributes:
        truth: The field that holds the truth; None for unlabelled text.
        optional_truth: Whether training leaves out examples without their truth, instead of refusing them.
        number: Whether the prediction is a number; distillation then compares by squared error.
        vectors: Whether the prediction is a vector of a text, of which no label speaks.
        scored: Whether examples can score a model: by their truth, or because a text is its own.
        texts_alone: Whether training reads texts without their truth, unless it is asked to read it.
        independent: Whether each output is a yes-or-no question of its own, not one of several to choose from.
    """

    truth: str | None = "label"
    optional_truth: bool = True
    number: bool = False
    vectors: bool = False
    scored: bool = True
    texts_alone: bool = False
    independent: bool = False

    def arranged(self, spec: Asks, splits: Mapping[str, Sequence[Example]]) -> dict[str, Sequence[Example]]:
        """Return the examples of all splits as they are learned from and measured; by default as they were read."""
        del spec
        return dict(splits)

    def learnable(self, example: Example) -> bool:
        """Return whether an example holds what the task's own loss learns from: its truth."""
        return self.truth in example

    def text_pairs(self, examples: Sequence[Example]) -> list[Example]:
        """Return the pairs of texts, ``text_a`` and ``text_b``, that examples hold, with what is known of them."""
        return [example for example in examples if TEXTS[0] in example]

    def query_pairs(self, spec: Asks, examples: Sequence[Example]) -> list[Example]:
        """Return the pairs of a query with several passages, right and wrong ones; by default ``text_pairs``."""
        del spec
        return self.text_pairs(examples)

    def learned(self, features: Sequence[Feature], settings: Reads) -> list[Feature]:
        """Return the inputs that are learned from, given those that are answered; by default the same."""
        del settings
        return list(features)

    def target(self, spec: Asks, feature: Feature, example: Example, left: bool) -> Any:
        """Return what a feature should be answered with; see ``teachers.data.encoded_dataset.target``.

        Args:
            spec: What is asked.
            feature: The input.
            example: What it was made of.
            left: Whether padding stands on the left, and the classifier token on the right.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement target")

    def padded(
        self, targets: Sequence[Any], places: Sequence[slice], length: int, inputs: Sequence[int]
    ) -> dict[str, Array]:
        """Return the targets of a batch as arrays.

        Args:
            targets: Of each row.
            places: Where the tokens of each row stand in the padded batch.
            length: Its padded length.
            inputs: How many inputs each row has.
        """
        del places, length, inputs
        return {"labels": np.array(targets, dtype=np.float32 if self.number else np.int64)}

    def padded_tokens(self, targets: Sequence[Sequence[int]], places: Sequence[slice], length: int) -> dict[str, Array]:
        """Return as ``labels`` ``[rows, length]`` what is said of each token, ``IGNORED`` elsewhere; see ``padded``."""
        labels = np.full((len(targets), length), IGNORED, dtype=np.int64)
        for row, (values, place) in enumerate(zip(targets, places, strict=True)):
            labels[row, place] = values
        return {"labels": labels}

    def loss(self, spec: Asks, logits: Tensor, targets: Mapping[str, Tensor], mask: Tensor) -> Tensor:
        """Return the loss of the labels, by default the cross-entropy, 0 where nothing is labelled; a scalar.

        Args:
            spec: What is asked.
            logits: float32 ``[B, C]`` or ``[B, L, C]``.
            targets: What ``padded`` returned, as tensors.
            mask: 1 for real tokens ``[B, L]``.
        """
        from torch.nn import functional

        del mask
        weights = None if spec.class_weights is None else logits.new_tensor(spec.class_weights)
        labels = targets["labels"].reshape(-1)
        flat = logits.reshape(len(labels), -1)
        if not bool((labels != IGNORED).any()):  # a batch in which nothing is predicted
            return flat.sum() * 0.0
        return functional.cross_entropy(flat, labels, weight=weights, ignore_index=IGNORED)

    def counted(self, spec: Asks, labels: Tensor) -> Tensor:
        """Return over how many labels ``loss`` averages, or the sum of their class weights; a scalar."""
        import torch

        known = labels[labels != IGNORED]
        weights = spec.class_weights
        return known.new_tensor(len(known)) if weights is None else torch.tensor(weights).to(known.device)[known].sum()

    def soft_rows(self, targets: Mapping[str, Tensor], mask: Tensor, only_predicted: bool) -> Tensor | None:
        """Return which tokens of ``[B, L]`` distillation compares, a boolean mask; None where it compares rows."""
        del targets, mask, only_predicted
        return None

    def soft_pairs(
        self,
        student: Tensor,
        teacher: Tensor,
        targets: Mapping[str, Tensor],
        mask: Tensor,
        only_predicted: bool = False,
    ) -> list[tuple[Tensor, Tensor]]:
        """Return pairs of logits ``[n, C]`` of student and teacher; distillation compares them."""
        rows = self.soft_rows(targets, mask, only_predicted)
        return [(student, teacher) if rows is None else (student[rows], teacher[rows])]

    def combined(self, members: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
        """Return the logits of an ensemble: by default the log of the weighted mean of the probabilities.

        Args:
            members: Logits of the members ``[M, ...]``.
            weights: Theirs, with as many axes, and a sum of 1.
            mask: 1 for real tokens ``[B, L]``.
        """
        del mask
        return (members.log_softmax(dim=-1) + weights.log()).logsumexp(dim=0)
