"""Text that goes on after a prompt, token by token, with numpy alone; whoever computes the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from eval.examples import Array

Step = Callable[[list[int], Any], tuple[Array, Any]]
"""``step(ids, past)``: the scores ``[V]`` of the token after ``ids``, and the past of the next call. ``ids`` are those
that no call has had yet; the past is None at first."""


def continued(
    step: Step,
    prompt: list[int],
    end: int,
    new_tokens: int,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
    temperature: float = 1.0,
    seed: int | None = None,
) -> list[int]:
    """Return the tokens that follow a prompt, up to an end of text, which is left out.

    Args:
        step: Computes scores.
        prompt: Ids of the prompt, at least one.
        end: The end-of-text token.
        new_tokens: Most tokens that are added.
        top_k: How many of the likeliest tokens may be drawn; 0 leaves all (Fan et al. 2018, arXiv 1805.04833).
        top_p: The least probability that those have together which may be drawn (Holtzman et al. 2020, arXiv
            1904.09751).
        temperature: What scores are divided by before any of that.
        seed: Of the draws, which are the same for the same seed; None takes the likeliest token each time.

    Raises:
        ValueError: A value that is not allowed.

    Examples:
        >>> import numpy as np
        >>> scores = np.log([[0.1, 0.6, 0.3], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5]])
        >>> continued(lambda ids, past: (scores[ids[-1]], past), [2], end=0, new_tokens=4)
        [2, 2, 2, 2]
        >>> continued(lambda ids, past: (scores[ids[-1]], past), [1], end=0, new_tokens=4)
        []
    """
    problems = [
        f"{name}: got {value}, must be {wanted}"
        for name, value, good, wanted in (
            ("new_tokens", new_tokens, new_tokens >= 1, "1 or more"),
            ("top_k", top_k, top_k >= 0, "0 (all) or more"),
            ("top_p", top_p, 0 < top_p <= 1, "above 0, at most 1"),
            ("temperature", temperature, 0 < temperature < float("inf"), "above 0"),
        )
        if not good
    ]
    if problems:
        raise ValueError("; ".join(problems))
    chance = None if seed is None else np.random.default_rng(seed)
    found: list[int] = []
    ids, past = list(prompt), None
    while len(found) < new_tokens:
        scores, past = step(ids, past)
        if chance is None:
            token = int(np.argmax(scores))
        else:
            token = int(chance.choice(len(scores), p=shares(scores, top_k, top_p, temperature)))
        if token == end:
            break
        found.append(token)
        ids = [token]
    return found


def shares(scores: Array, top_k: int = 0, top_p: float = 1.0, temperature: float = 1.0) -> Array:
    """Return the probabilities ``[V]`` that tokens are drawn with; see ``continued``.

    Examples:
        >>> import numpy as np
        >>> shares(np.log([0.5, 0.25, 0.125, 0.125]), top_p=0.7).round(3).tolist()
        [0.667, 0.333, 0.0, 0.0]
        >>> shares(np.log([0.5, 0.25, 0.125, 0.125]), top_k=1).round(3).tolist()
        [1.0, 0.0, 0.0, 0.0]
    """
    warm = np.asarray(scores, dtype=np.float64) / temperature
    found = np.exp(warm - warm.max())
    found /= found.sum()
    order = np.argsort(-found, kind="stable")
    kept = min(top_k, len(order)) if top_k else len(order)
    likeliest = found[order[:kept]]
    before = np.cumsum(likeliest / likeliest.sum()) - likeliest / likeliest.sum()
    inside = order[:kept][before < top_p]
    masked = np.zeros_like(found)
    masked[inside] = found[inside]
    return np.asarray(masked / masked.sum())


class Generating:
    """What kinds of task have in common whose models write text."""

    def generate(
        self,
        tokenizer: Any,
        begin: int,
        end: int,
        step: Step,
        prompt: str,
        new_tokens: int,
        most: int | None,
        **how: Any,
    ) -> str:
        """Return the text that follows a prompt.

        Args:
            tokenizer: A tokenizer of the tokenizers library.
            begin: The token that begins a text.
            end: The end-of-text token.
            step: Computes scores.
            prompt: A text, which may be empty. Of one that leaves no room the end is read, at least half of ``most``.
            new_tokens: Most tokens that are added; fewer where the network's positions end.
            most: Tokens that fit into the network, the prompt's among them; None if nothing bounds it.
            how: As ``continued`` takes it.
        """
        ids = [begin, *tokenizer.encode(prompt, add_special_tokens=False).ids]
        if most is not None:
            if len(ids) >= most:
                ids = ids[-(most - max(1, min(new_tokens, most // 2))) :]
            new_tokens = min(new_tokens, most - len(ids))
        found = continued(step, ids, end, new_tokens, **how)
        before, whole = (str(tokenizer.decode(read, skip_special_tokens=False)) for read in (ids, ids + found))
        # Alone the new tokens would lose the space that begins them where a tokenizer keeps it in their first.
        if whole.startswith(before):
            return whole[len(before) :]
        return str(tokenizer.decode(found, skip_special_tokens=False))
