"""The losses of distillation as pure functions of tensors, and the rows of a batch that they count."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.data.encoded_dataset import Batch

SoftLoss = Callable[[Tensor, Tensor, float], Tensor]
"""Student's logits, teacher's logits and temperature -> a scalar."""


def kl_divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return ``T² · mean over rows of KL(softmax(teacher / T) ‖ softmax(student / T))``; 0 for equal logits or no rows.

    Hinton et al. 2015, arXiv 1503.02531: the factor T² keeps the size of the gradient when T changes.

    Args:
        student: Logits ``[n, C]``; -inf in both for a class that the row does not have, as in the losses below.
        teacher: Logits ``[n, C]``.
        temperature: T.

    Examples:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> kl_divergence(logits, logits).item(), round(kl_divergence(logits, -logits, temperature=2.0).item(), 4)
        (0.0, 1.1692)
    """
    log_student, log_teacher = log_probabilities(student, temperature), log_probabilities(teacher, temperature)
    total = F.kl_div(log_student, log_teacher, reduction="sum", log_target=True)
    return total / max(len(student), 1) * temperature**2


def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return ``T² · mean over rows of -Σ softmax(teacher / T) · log softmax(student / T)``; 0 for no rows.

    The gradient is that of ``kl_divergence``; the value is larger by the teacher's entropy and not 0 for equal logits.
    Hinton et al. 2015, arXiv 1503.02531.

    Args:
        student: Logits ``[n, C]``.
        teacher: Logits ``[n, C]``.
        temperature: T.

    Examples:
        >>> import torch
        >>> round(soft_cross_entropy(torch.zeros(1, 2), torch.zeros(1, 2)).item(), 4)
        0.6931
    """
    log_student = log_probabilities(student, temperature)
    total = -(F.softmax(teacher / temperature, dim=-1) * log_student).sum(dim=-1).sum()
    return total / max(len(student), 1) * temperature**2


def log_probabilities(logits: Tensor, temperature: float) -> Tensor:
    """Return ``log softmax(logits / T)`` over the classes that a row has, and 0 for the others, whose logit is -inf.

    A finite number in their place would not do: divided by a small T it overflows, and 0 · -inf is not a number.

    Args:
        logits: ``[…, C]``; so is the result.
        temperature: T.
    """
    return F.log_softmax(logits / temperature, dim=-1).masked_fill(logits.isneginf(), 0.0)


def logit_mse(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the mean over rows of the mean squared difference of the logits that a row has; 0 for no rows.

    Ba and Caruana 2014, arXiv 1312.6184.

    Args:
        student: Logits ``[n, C]``.
        teacher: Logits ``[n, C]``.
        temperature: Not used; it is there so that the losses can stand for each other.

    Examples:
        >>> import torch
        >>> logit_mse(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0]])).item()
        2.0
    """
    del temperature
    missing = student.isneginf()
    squares = (student.masked_fill(missing, 0.0) - teacher.masked_fill(missing, 0.0)).square()
    return (squares.sum(dim=-1) / (~missing).sum(dim=-1)).sum() / max(len(student), 1)


SOFT_LOSSES: dict[str, SoftLoss] = {
    "kl": kl_divergence,
    "soft_cross_entropy": soft_cross_entropy,
    "mse": logit_mse,
}
"""The losses on logits by the names that recipes use."""


def soft_loss(spec: TaskSpec, name: str) -> SoftLoss:
    """Return the loss of a name in ``SOFT_LOSSES`` for the logits of a task; numbers always get the squared difference.

    Args:
        spec: What is asked.
        name: The name.
    """
    if name == "mse" or kind_of(spec.kind).number:
        return logit_mse
    return of_probabilities(spec, SOFT_LOSSES[name])


def of_probabilities(spec: TaskSpec, loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a loss of class probabilities, ``(student, teacher, …)``, as one of the probabilities that a task has.

    Where every output is a question of its own, these are the two probabilities of each label, yes and no, and the loss
    is the mean over labels and rows: with ``kl_divergence`` the binary divergence
    ``T² · mean of KL(Bernoulli(sigmoid(teacher / T)) ‖ Bernoulli(sigmoid(student / T)))``.
    """
    if not kind_of(spec.kind).independent:
        return loss
    return lambda student, teacher, *more: loss(yes_or_no(student), yes_or_no(teacher), *more)


def yes_or_no(logits: Tensor) -> Tensor:
    """Return the logits of no and yes of each label, ``[n · C, 2]``: their softmax is ``sigmoid(logits)``.

    Args:
        logits: ``[n, C]``.

    Examples:
        >>> import torch
        >>> yes_or_no(torch.tensor([[2.0, -1.0]])).tolist()
        [[0.0, 2.0], [0.0, -1.0]]
    """
    return torch.stack([torch.zeros_like(logits), logits], dim=-1).flatten(end_dim=-2)


def cosine_distance(student: Tensor, teacher: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean over vectors of ``1 - cos``: DistilBERT's loss of hidden states, or that of embeddings.

    Sanh et al. 2019, arXiv 1910.01108.

    Args:
        student: Vectors ``[n, d]``, or hidden states ``[B, L, d]`` with a mask.
        teacher: The same shape.
        mask: 1 for real tokens, ``[B, L]``; the mean is over these alone.

    Examples:
        >>> import torch
        >>> cosine_distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])).item()
        1.0
    """
    if mask is not None:
        student, teacher = student[mask.bool()], teacher[mask.bool()]
    return (1 - F.cosine_similarity(student, teacher, dim=-1)).mean()


def counted_rows(spec: TaskSpec, batch: Batch, only_predicted: bool = False) -> Tensor:
    """Return which tokens of ``[B, L]`` a loss on logits counts, as a boolean mask; padding never is.

    Tagging counts the first token of each word, which alone is read later. The masked-language objective counts every
    real token, or only those to be predicted.
    """
    rows = kind_of(spec.kind).soft_rows(batch.targets, batch.mask, only_predicted)
    return batch.mask.bool() if rows is None else rows


def soft_count(spec: TaskSpec, batch: Batch, only_predicted: bool = False) -> Tensor:
    """Return over how many rows of logits, as ``paired_logits`` gives them, a soft loss is a mean; a scalar."""
    rows = kind_of(spec.kind).soft_rows(batch.targets, batch.mask, only_predicted)
    return batch.rows.new_tensor(len(batch)) if rows is None else rows.sum()


def paired_logits(
    spec: TaskSpec, student: Tensor, teacher: Tensor, batch: Batch, only_predicted: bool = False
) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of logits ``[n, C]`` of student and teacher, row by row, without padding.

    Classification, multilabel and regression give one pair of ``[B, C]``, tagging and masked-lm one of
    ``[tokens, C]``, and qa two of ``[B, L]``: the start and the end, each a choice among the tokens. Multiple-choice
    gives one of ``[examples, choices]``. Where a row has fewer tokens or choices than others, its logits there are
    -inf.

    Args:
        spec: What is asked.
        student: Logits ``[B, C]``, for a kind with an output at every token ``[B, L, C]``.
        teacher: The same shape.
        batch: The batch that they answer.
        only_predicted: For masked-lm: whether only the tokens to be predicted count.

    Raises:
        UserError: If the kind has no logits.
    """
    return kind_of(spec.kind).soft_pairs(student, teacher, batch.targets, batch.mask, only_predicted)
