"""Ranking: which candidate of a query is right; the loss over the scores of all candidates of a query at once.

Liu, He, Chen, Gao 2019, arXiv 1901.11504. Rows are pairs of texts: ``text_a`` the query, ``text_b`` a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eval.errors import UserError, did_you_mean
from eval.kinds.kind_registry import kind_of
from eval.task import Example, Examples, TaskSpec
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.losses.loss import Loss
from teachers.signals.hooks import Signals


@dataclass
class RankingLoss(Loss):
    """The loss of known rows.

    Attributes:
        right: Whether each row is a right candidate.
        groups: Number of each row's query; a query's rows stand in one batch.
        sign: -1 if the relevant one of two classes is the first, else 1.
    """

    right: Sequence[bool]
    groups: Sequence[int]
    sign: int = 1
    whole_groups: bool = True

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many right candidates there are with a wrong one beside them."""
        right, group = self._of(batch)
        return {"ranking": (right & _rivals(right, group).any(dim=1)).sum()}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return ``{"ranking": …}``."""
        return {"ranking": ranking_loss(self.sign * scores(student.logits.float()), *self._of(batch))}

    def _of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        right, group = (torch.tensor(values, device=batch.rows.device) for values in (self.right, self.groups))
        return right[batch.rows], group[batch.rows]


def ranking_loss(scores: Tensor, right: Tensor, group: Tensor) -> Tensor:
    """Return the mean over right candidates of ``-log( exp(r⁺) / (exp(r⁺) + sum_wrong exp(r)) )``.

    A right candidate without a wrong one of the same query is not counted; 0 if none is. Liu, He, Chen, Gao 2019,
    arXiv 1901.11504.

    Args:
        scores: r, ``[B]``.
        right: True for right candidates, ``[B]``.
        group: Number of the query, ``[B]``.

    Examples:
        >>> import torch
        >>> scores, right = torch.tensor([2.0, 2.0, 1.0]), torch.tensor([True, False, True])
        >>> round(ranking_loss(scores, right, torch.tensor([0, 0, 1])).item(), 4)  # query 1 has no wrong candidate
        0.6931
    """
    against = _rivals(right, group)
    counted = right & against.any(dim=1)
    if not bool(counted.any()):
        return scores.sum() * 0.0
    candidates = against | torch.eye(len(scores), dtype=torch.bool, device=scores.device)
    total = scores.expand(len(scores), -1).masked_fill(~candidates, -torch.inf).logsumexp(dim=1)
    return (total - scores)[counted].mean()


def _rivals(right: Tensor, group: Tensor) -> Tensor:
    """Return whether a row's candidate is asked to beat a column's, ``[B, B]``."""
    return (group[:, None] == group[None, :]) & ~right[None, :]


def scores(logits: Tensor) -> Tensor:
    """Return one number a row ``[B]``: the only output, or the second logit less the first."""
    return logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]


def queries(rows: EncodedDataset) -> list[int]:
    """Return for each row the number of its query, counted in the order in which queries first appear.

    A single text, which an embedding task may have beside pairs, is one by itself.
    """
    numbers: dict[str | int, int] = {}
    asked = [rows.examples[feature.example].get("text_a", feature.example) for feature in rows.features]
    return [numbers.setdefault(query, len(numbers)) for query in asked]


def bound(spec: TaskSpec, rows: EncodedDataset, relevant: str | None) -> RankingLoss:
    """Return the loss of these rows; see ``teachers.losses.catalogue.PairwiseRanking``."""
    found = _right(spec, rows.examples, relevant)
    sign = -1 if spec.labels and _relevant(spec, relevant) == spec.labels[0] else 1
    return RankingLoss([found[feature.example] for feature in rows.features], queries(rows), sign)


def rankable(spec: TaskSpec, examples: Examples, relevant: str | None) -> Examples:
    """Return the labelled examples of all queries that have a right candidate and a wrong one.

    Raises:
        UserError: If the task gives no score of a pair, or there is no such query.
    """
    if not spec.pair or not kind_of(spec.kind).pairs or len(spec.labels) > 2:
        form = f"pairs with {len(spec.labels)} classes" if spec.pair else "single texts"
        raise UserError(
            "loss: ranking: needs pairs of texts (text_a the query, text_b a candidate) with two classes or a number, "
            f"and the task is {spec.kind} of {form}"
        )
    _relevant(spec, relevant)
    known = [example for example in examples if "label" in example]
    kinds: dict[str, set[bool]] = {}
    for example, right in zip(known, _right(spec, known, relevant), strict=True):
        kinds.setdefault(str(example["text_a"]), set()).add(right)
    found = [example for example in known if len(kinds[str(example["text_a"])]) == 2]
    if not found:
        raise UserError(
            f"loss: ranking: none of the {len(kinds)} queries (text_a) of {examples.name} has both a right candidate "
            "and a wrong one; give each query several rows, one of them right"
        )
    return Examples(found, examples.name, examples.skipped)


def _right(spec: TaskSpec, examples: Sequence[Example], relevant: str | None) -> list[bool]:
    """Return which examples are right: those with the relevant label, or with the largest number of their query."""
    if kind_of(spec.kind).one_label:
        return [example["label"] == _relevant(spec, relevant) for example in examples]
    best: dict[str, float] = {}
    worst: dict[str, float] = {}
    for example in examples:
        query, label = str(example["text_a"]), float(example["label"])
        best[query], worst[query] = max(best.get(query, label), label), min(worst.get(query, label), label)
    return [worst[query] < best[query] == label for query, label in ((str(e["text_a"]), e["label"]) for e in examples)]


def _relevant(spec: TaskSpec, relevant: str | None) -> str:
    """Return the label of right candidates; empty where labels are numbers.

    Raises:
        UserError: If there is no such label.
    """
    if relevant is None:
        return spec.labels[-1] if spec.labels else ""
    if relevant not in spec.labels:
        raise UserError(f"loss: ranking: relevant: there is no label {relevant!r}{did_you_mean(relevant, spec.labels)}")
    return relevant
