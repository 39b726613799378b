"""A task of a pretraining as the training loop takes it: its rows, its loss, and what watches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.inference import batches_by_length
from eval.metrics.scorers import perplexity_of
from teachers.anatomy.encoder import base_encoder, has_decoder, layer_count
from teachers.data.encoded_dataset import Batch
from teachers.losses.loss import Loss
from teachers.pretraining.objectives.discriminator import auc
from teachers.pretraining.prediction_heads import Answered, Head
from teachers.pretraining.pretraining_batches import PretextDataset
from teachers.signals.hooks import NOTHING, Signals, SignalSpec
from teachers.taskmodel import evaluating

WATCHED = 256
"""Sequences of the validation text that are scored."""
PERPLEXED = ("mlm", "next_word", "plm", "prefix_lm")
"""Terms whose answers are words, of which reports tell the perplexity."""


@dataclass
class PretextLoss(Loss):
    """The objectives of a task over known rows.

    Attributes:
        heads: What answers, by objective.
        weights: What the loss of each objective is multiplied by.
        reads: The last hidden states; heads answer from them, so the network's own head does not run.
        modules: The heads, trained beside the network.
    """

    heads: Mapping[str, Head]
    weights: Mapping[str, float]
    reads: SignalSpec
    modules: nn.Module = field(init=False)

    def __post_init__(self) -> None:
        """Let the loop train the heads."""
        self.modules = nn.ModuleList(self.heads.values())

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as the network shall see it."""
        for head in self.heads.values():
            batch = head.prepare(batch)
        return batch

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return over how many answers each term is a mean."""
        return {name: count for head in self.heads.values() for name, count in head.counts(batch).items()}

    def __call__(self, student: Signals, batch: Batch) -> dict[str, Tensor]:
        """Return a term for each objective, and two for replaced tokens."""
        hidden = student.logits
        if self.reads.hidden_states:
            (place,) = self.reads.hidden_states
            hidden = student.hidden_states[place]
        terms: dict[str, Tensor] = {}
        for name, head in self.heads.items():
            for term, answered in head(hidden, batch).items():
                terms[term] = self.weights[name] * answered.weight * mean_loss(answered, hidden)
        return terms


def reads_last(network: Any, streams: int = 1) -> SignalSpec:
    """Return that nothing but the last hidden states is read, of two streams those of the second.

    Of a decoder that writes it is its scores of all words.
    """
    if has_decoder(network):
        return NOTHING
    return SignalSpec(hidden_states=(streams * (layer_count(network) + 1) - 1,), logits=False)


def mean_loss(answered: Answered, hidden: Tensor) -> Tensor:
    """Return the mean cross-entropy of some answers; 0 if there are none."""
    logits, labels = answered.logits.float(), answered.labels
    if not len(labels):
        return hidden.float().sum() * 0.0
    if logits.ndim == 1:
        return F.binary_cross_entropy_with_logits(logits, labels.float())
    return F.cross_entropy(logits, labels)


class _Outcomes(dict[str, list[tuple[Tensor, Tensor]]]):
    """Of each term, by batches, what ``_outcome`` returns."""


class PretextMonitor:
    """Scores a network on validation text: the share of right answers, and for masked words the perplexity.

    Args:
        network: The network.
        loss: Its heads.
        rows: Sequences of the validation text; they are the same at every look.
    """

    def __init__(self, network: Any, loss: PretextLoss, rows: PretextDataset) -> None:
        self.network, self.loss, self.rows = network, loss, rows

    def refuse_collapse(self, step: int, learning_rate: float) -> None:
        """Refuse nothing: a loss that is not finite stops the training already."""

    def figures(self) -> dict[str, Any]:
        """Return ``scores`` by term, and ``score``, the first of them.

        They are accuracies; where classes are very unequal, as of replaced tokens, areas under the curve. Of a network
        with memory the perplexity without it is told too.
        """
        found, bare = _Outcomes(), _Outcomes()
        device = next(self.network.parameters()).device
        with evaluating(self.network), evaluating(self.loss.modules):
            for rows in batches_by_length(self.rows.lengths.tolist(), 32):
                batch = self.rows.batch(rows).to(device)
                self._answer(batch, found)
                targets = {name: target for name, target in batch.targets.items() if name != "memory"}
                if len(targets) < len(batch.targets):
                    self._answer(replace(batch, targets=targets), bare)
        scores: dict[str, float] = {}
        for name, outcomes in found.items():
            values, losses = (torch.cat(parts) for parts in zip(*outcomes, strict=True))
            if values.ndim == 2:  # scores of yes, and whether it is
                area = auc(values[None, :, 0], values[None, :, 1], torch.ones(1, len(values)))
                scores[f"{name}.auc"] = area
            else:
                scores[f"{name}.accuracy"] = float(values.double().mean())
            loss = float(losses.double().mean())
            perplexing = name in PERPLEXED or has_decoder(self.network)
            scores |= {f"{name}.perplexity": perplexity_of(loss)} if perplexing else {f"{name}.loss": loss}
        for name, outcomes in bare.items():
            mean = float(torch.cat([losses for _, losses in outcomes]).double().mean())
            scores[f"{name}.perplexity_without_memory"] = perplexity_of(mean)
        return {"scores": scores, "score": next(iter(scores.values()))}

    def _answer(self, batch: Batch, found: _Outcomes) -> None:
        batch = self.loss.prepare(batch)
        if has_decoder(self.network):
            hidden = self.network(**batch.inputs).logits
        else:
            hidden = base_encoder(self.network)(**batch.inputs).last_hidden_state
        for head in self.loss.heads.values():
            for name, answered in head(hidden, batch).items():
                found.setdefault(name, []).append(_outcome(answered))


def _outcome(answered: Answered) -> tuple[Tensor, Tensor]:
    """Return whether each answer is right, or the score of yes beside the truth, and the loss of each."""
    logits, labels = answered.logits.float().cpu(), answered.labels.cpu()
    if logits.ndim == 1:
        losses = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none")
        return torch.stack([logits, labels.float()], dim=1), losses
    return logits.argmax(-1) == labels, F.cross_entropy(logits, labels, reduction="none")
