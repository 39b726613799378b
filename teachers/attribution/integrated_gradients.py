"""Integrated gradients: how much each token moves a score on the way from an input that says nothing.

Source:
    Sundararajan, Taly and Yan 2017, Axiomatic Attribution for Deep Networks, arXiv 1703.01365 (equation 1). The path is
    straight, from a baseline embedding to a token's own; its integral is taken by Gauss and Legendre's rule, which
    needs fewer points than the paper's sum of equal steps. The score is made of logits, the paper's of probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from eval.errors import UserError
from teachers.taskmodel import evaluating

STEPS, MOST_STEPS = 20, 80
"""Points at which gradients are taken at first and at most; the paper says 20 to 300 of a plain sum."""
ROUGH = 0.05
"""A sum that misses a larger share of what it explains is taken again, of twice as many points."""
PIECE = 32
"""Points that a network reads together."""
HIGHEST_ID = 1 << 40
"""Above the ids of all tokens."""


def integrated_gradients(
    network: Any,
    inputs: Mapping[str, Tensor],
    replaced: Sequence[int],
    baseline: int,
    score: Callable[[Any], Tensor],
    steps: int | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Return the attribution of each token of one input, and by how much their sum misses what they explain.

    The word embeddings of some tokens go from those of a baseline token to their own. Everything else that a network
    reads stays: positions, token types, mask and the other tokens, whose attribution is 0.

    Args:
        network: A transformers model.
        inputs: One row without padding, ``[1, L]`` each.
        replaced: Places of the tokens whose embeddings the path changes.
        baseline: Id of the baseline token.
        score: Outputs of the network -> what is explained, one number a row ``[B]``.
        steps: Points at which gradients are taken; None begins with ``STEPS`` and takes twice as many until the sum is
            less than ``ROUGH`` off, or ``MOST_STEPS``: the way of large networks is uneven.

    Returns:
        Attributions ``[L]``, and their sum minus what they explain: the score of the input minus that of the baseline.
        By the axiom of completeness that is 0, but for the error of the integral.

    Raises:
        UserError: The score has no gradient at the word embeddings.
    """
    if steps is None:
        found, missing = integrated_gradients(network, inputs, replaced, baseline, score, points := STEPS)
        while abs(missing) > ROUGH * abs(float(found.sum()) - missing) and points < MOST_STEPS:
            points *= 2
            found, missing = integrated_gradients(network, inputs, replaced, baseline, score, points)
        return found, missing
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    table, ids, places = network.get_input_embeddings(), inputs["input_ids"], list(replaced)
    empty = ids.clone()
    empty[0, places] = baseline
    # The ends of the path run along, so that what is explained is known: they have no weight.
    along = torch.tensor([*((nodes + 1) / 2), 0.0, 1.0], device=ids.device).float()[:, None, None]
    shares = torch.tensor([*(weights / 2), 0.0, 0.0], device=ids.device).float()[:, None, None]
    with evaluating(network), torch.inference_mode(mode=False), torch.enable_grad():
        with torch.no_grad():
            start, end = table(empty), table(ids)
        mean, scores = torch.zeros_like(end[0], dtype=torch.float32), []
        for piece, share in zip(torch.split(along, PIECE), torch.split(shares, PIECE), strict=True):
            points = (start + piece.to(end.dtype) * (end - start)).requires_grad_()
            rows = {name: values.expand(len(points), -1) for name, values in inputs.items()}
            own = score(_run(network, rows, points, places))
            try:
                (gradients,) = torch.autograd.grad(own.sum(), points)
            except RuntimeError as error:
                raise UserError(
                    f"{type(network).__name__}: its score has no gradient at the word embeddings ({error})"
                ) from error
            mean += (share * gradients.float()).sum(dim=0)
            scores += own.detach().tolist()
    found = ((end - start)[0].float() * mean).sum(dim=-1).cpu().numpy().astype(np.float64)
    return found, float(found.sum()) - (scores[-1] - scores[-2])


def _run(network: Any, inputs: Mapping[str, Tensor], embeddings: Tensor, places: Sequence[int]) -> Any:
    """Run a network with given word embeddings ``[B, L, d]`` at some places, wherever it moves these tokens first.

    Until they are looked up, their ids are numbers that no token has and that say which row and place they are of.
    """
    table, ids = network.get_input_embeddings(), inputs["input_ids"].clone()
    known, first = ids.clone(), HIGHEST_ID
    ids[:, places] = first + torch.arange(ids.numel(), device=ids.device).reshape(ids.shape)[:, places]
    asked: list[Tensor] = []

    def take(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        own = args[0] >= first
        asked.append(args[0])
        return (torch.where(own, known.reshape(-1)[(args[0] - first).clamp(min=0)], args[0]), *args[1:])

    def give(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        wanted = asked.pop()
        given = embeddings.reshape(-1, embeddings.shape[-1])[(wanted - first).clamp(min=0)]
        return torch.where((wanted >= first)[..., None], given, output)

    handles = [table.register_forward_pre_hook(take), table.register_forward_hook(give)]
    try:
        return network(**{**inputs, "input_ids": ids})
    finally:
        for handle in handles:
            handle.remove()
