"""Which parts of a network are trained, and from when on.

Gradual unfreezing trains the head first, then one more layer from the top at a time, the embeddings last (Howard and
Ruder 2018, arXiv 1801.06146: ULMFiT, one more layer each epoch). Frozen layers take no update and hold no moments;
their dropout stays active, as in the paper.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch import nn

from teachers.anatomy.encoder import base_encoder, constants, has_decoder, head_parameters, word_embeddings
from teachers.training.config import Training
from teachers.training.layer_groups import layer_groups

logger = logging.getLogger("teachers.training.freezing")


def freeze(network: Any, training: Training) -> None:
    """Let the parts that ``training.freeze`` names stay as they are, in place, and what is computed and not learned.

    A pooler belongs to the head and is trained with it, as the hidden layer is that other families have in its place.
    Modules that say of themselves that they are ``fixed`` stay as they are too. Where a decoder reads what the encoder
    makes of a text, it is trained, but for the word embeddings that both share.
    """
    encoder = network.get_encoder() if has_decoder(network) else base_encoder(network)
    for constant in constants(network):
        constant.requires_grad_(False)
    if "encoder" in training.freeze:
        encoder.requires_grad_(False)
        for parameter in head_parameters(network).values() if encoder is not network else ():
            parameter.requires_grad_(True)
    if "embeddings" in training.freeze:
        word_embeddings(network).requires_grad_(False)
    for part in network.modules():
        if getattr(part, "fixed", False) is True:
            part.requires_grad_(False)


class Unfreezing(nn.Module):
    """A scheduled module (see ``teachers.training.scheduled_modules``) that says which parameters are trained.

    Args:
        groups: Parameters, in the order in which they begin to be trained; the first group does at once.
        every: Updates from one group to the next.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Parameter]], every: float) -> None:
        super().__init__()
        self.groups, self.every = [tuple(group) for group in groups], every

    def at_step(self, step: int, total: int) -> bool:
        """Let gradients reach the groups whose turn has come; the network keeps its shape throughout."""
        del total
        for number, group in enumerate(self.groups):
            for parameter in group:
                parameter.requires_grad_(number <= step / self.every)
        return True


def unfreezing(
    networks: Sequence[Any], trained: Collection[nn.Parameter], training: Training, total: int, an_epoch: int
) -> Iterator[Unfreezing]:
    """Yield for each network what unfreezes it, if the training asks for it.

    Args:
        networks: What is trained.
        trained: Parameters that may be trained at all; the others are left alone.
        training: Its ``unfreeze`` says when.
        total: Optimizer steps of the training.
        an_epoch: Updates of an epoch.
    """
    if training.unfreeze is None:
        return
    allowed = set(map(id, trained))
    for network in networks:
        own = [[parameter for parameter in group if id(parameter) in allowed] for group in layer_groups(network)]
        groups = [group for group in own if group]
        every = float(an_epoch) if training.unfreeze == "epoch" else training.unfreeze * total / max(len(groups), 1)
        reached = 1 + int((total - 1) / every)
        if training.max_steps is None and reached < len(groups):
            logger.warning(
                "unfreeze: %d of %d groups of layers are trained before the training ends; give more epochs, or "
                "unfreeze: 0.5, which trains all of them after half of the optimizer steps",
                reached,
                len(groups),
            )
        yield Unfreezing(groups, every)
