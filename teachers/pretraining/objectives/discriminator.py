"""ELECTRA: a small generator fills the hidden places, and a discriminator says of every token whether it was replaced.

``L = L_mlm(generator) + 50 * L_disc``. No gradient passes through the sampling, so the generator learns from the
masked-language loss alone; what it guesses right counts as original.

Source: Clark et al. 2020 (2003.10555).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.encoding import IGNORED
from eval.errors import UserError
from teachers.anatomy.encoder import base_encoder, embedding_parts, family_of, reshaped, shape_of, word_embeddings
from teachers.data.encoded_dataset import Batch
from teachers.pretraining.prediction_heads import Answered, Head, WordHead


def sample(logits: Tensor, chance: torch.Generator | None = None) -> Tensor:
    """Draw a token for each row of logits ``[N, V]`` by the Gumbel trick; ``[N]``, without a gradient."""
    noise = torch.rand(logits.shape, generator=chance, dtype=torch.float32).clamp_min(1e-20)
    return (logits.detach().float().cpu() - torch.log(-torch.log(noise))).argmax(-1).to(logits.device)


def sample_rows(logits: Tensor, counts: Tensor, seeds: Tensor) -> Tensor:
    """Draw a token for each hidden place; what a row draws does not depend on its batch.

    Args:
        logits: The generator's answer at the hidden places, ``[N, V]``, row by row.
        counts: Hidden places of each row, ``[B]``, N in all.
        seeds: A source of chance for each row, ``[B]``.

    Returns:
        Token ids ``[N]``.
    """
    chances = (torch.Generator().manual_seed(seed) for seed in seeds.tolist())
    rows = torch.split(logits, counts.tolist())
    return torch.cat([sample(own, chance) for own, chance in zip(rows, chances, strict=True)])


def replaced(ids: Tensor, labels: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Return the discriminator's input, and which of its tokens differ from the text.

    Args:
        ids: The generator's input, ``[B, L]``.
        labels: The text at hidden places, ``IGNORED`` elsewhere, ``[B, L]``.
        drawn: The generator's tokens at the hidden places, ``[N]``, row by row.
    """
    hidden = labels != IGNORED
    text = torch.where(hidden, labels, ids)
    filled = text.clone()
    filled[hidden] = drawn
    return filled, (filled != text).to(torch.float32)


def discriminator_loss(scores: Tensor, is_replaced: Tensor, mask: Tensor) -> Tensor:
    """Return the mean binary cross-entropy over all tokens that are no padding.

    Args:
        scores: Logits of "replaced", ``[B, L]``.
        is_replaced: 1 or 0, ``[B, L]``.
        mask: 1 for real tokens, ``[B, L]``.
    """
    losses = F.binary_cross_entropy_with_logits(scores, is_replaced, reduction="none")
    return (losses * mask).sum() / mask.sum().clamp_min(1)


def auc(scores: Tensor, is_replaced: Tensor, mask: Tensor) -> float:
    """Return the area under the ROC curve; accuracy is near 0.9 by the base rate alone.

    Args:
        scores: As for ``discriminator_loss``, and so are the rest.
        is_replaced: 1 or 0.
        mask: 1 for real tokens.
    """
    real = mask.bool()
    values, positive = scores[real].double(), is_replaced[real].bool()
    count = int(positive.sum())
    if count in (0, len(values)):
        return float("nan")
    ranks = torch.empty_like(values)
    order = values.argsort()
    _, inverse, sizes = torch.unique_consecutive(values[order], return_inverse=True, return_counts=True)
    ends = sizes.cumsum(0).double()
    ranks[order] = (ends - (sizes.double() - 1) / 2)[inverse]  # of equal scores, the mean of their ranks
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(values) - count)))


class Discriminator(Head):
    """The generator, a smaller network of the same family with the same embeddings, and the discriminator's head.

    Only the network itself, the discriminator, is kept for fine-tuning.

    Args:
        network: The network, with factorised embeddings if the generator is to be narrower.
        width: Width of the generator's layers, as a part of the network's.
        weight: What the discriminator's loss is multiplied by.

    Raises:
        UserError: If the embeddings of the two cannot be the same.
    """

    def __init__(self, network: Any, width: float, weight: float) -> None:
        super().__init__("rtd")
        self.weight = weight
        self.generator = generator_of(network, width)
        size = shape_of(network.config).hidden_size
        self.judge = nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, 1))
        self.words = WordHead(self.generator, "generator")

    def begin(self, frequencies: Tensor) -> None:
        """Set the bias of the generator's head."""
        self.words.begin(frequencies)

    def prepare(self, batch: Batch) -> Batch:
        """Let the generator fill the hidden places; its answers travel with the batch."""
        hidden = base_encoder(self.generator)(**batch.inputs).last_hidden_state
        labels = batch.targets["generator"]
        asked = labels != IGNORED
        answers = self.words.answer(hidden, asked)
        drawn = sample_rows(answers, asked.sum(dim=1), batch.targets["generator_seed"][:, 0])
        ids, is_replaced = replaced(batch.inputs["input_ids"], labels, drawn)
        targets = {**batch.targets, "generator_answers": answers, self.target: is_replaced}
        return replace(batch, inputs={**batch.inputs, "input_ids": ids}, targets=targets)

    def counts(self, batch: Batch) -> dict[str, Tensor]:
        """Return how many tokens the generator fills, and how many the discriminator judges."""
        return {**self.words.counts(batch), self.target: batch.mask.sum()}

    def forward(self, hidden: Tensor, batch: Batch) -> dict[str, Answered]:
        """Answer for every token that is no padding."""
        real, labels = batch.mask.bool(), batch.targets["generator"]
        return {
            "generator": Answered(batch.targets["generator_answers"], labels[labels != IGNORED]),
            self.target: Answered(self.judge(hidden[real])[:, 0], batch.targets[self.target][real], self.weight),
        }


def generator_of(network: Any, width: float) -> Any:
    """Return a masked-language network of a part of the width, which shares all tables of the network's embeddings."""
    shape = shape_of(network.config)
    heads = max(1, round(shape.heads * width))
    narrow = heads * (shape.hidden_size // shape.heads)
    if narrow != shape.hidden_size and "embedding_size" not in family_of(network).config:
        raise UserError(
            f"rtd: a generator {narrow} wide cannot share the embeddings of this "
            f"{family_of(network).model_type}, which are {shape.hidden_size} wide; take a family with an "
            "embedding_size, such as electra, or generator: 1.0"
        )
    changes = {
        "hidden_size": narrow,
        "heads": heads,
        "intermediate_size": max(1, round(shape.intermediate_size * width)),
    }
    if shape.embedding_size is not None:
        changes["embedding_size"] = shape.embedding_size
    config = reshaped(copy.deepcopy(network.config), **changes)
    generator = transformers.AutoModelForMaskedLM.from_config(config)
    given = embedding_parts(network)
    encoder = base_encoder(generator)
    for role, path in family_of(network).embeddings.items():
        if role in given and role != "norm":
            parent, _, name = path.rpartition(".")
            setattr(encoder.get_submodule(parent), name, given[role])
    generator.tie_weights()
    if generator.get_output_embeddings().weight is not word_embeddings(network).weight:
        raise UserError(f"rtd: {family_of(network).model_type} cannot share its words with a generator")
    return generator
