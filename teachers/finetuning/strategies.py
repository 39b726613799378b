"""Strategies of fine-tuning that exclude each other or do not fit a task; plain values, read without torch."""

from __future__ import annotations

from collections.abc import Iterator

from eval.kinds.kind_registry import kind_of
from teachers.training.config import Training


def clashes(
    kind: str,
    training: Training,
    *,
    in_domain: bool = False,
    auxiliary_lm: bool = False,
    features: bool = False,
    adapter: bool = False,
) -> Iterator[tuple[str, str]]:
    """Yield the strategy that cannot be followed, and why.

    Args:
        kind: Of the task.
        training: How the task is learned.
        in_domain: Whether the base first learns the masked-language task on the task's texts.
        auxiliary_lm: Whether a masked-language loss stands beside that of the task.
        features: Whether the encoder stays as it is and its features are kept.
        adapter: Whether the encoder stays as it is and an adapter is trained.
    """
    words = {"in_domain": in_domain, "auxiliary_lm": auxiliary_lm}
    for name, wanted in words.items():
        if wanted and kind_of(kind).truth is None:
            yield (
                name,
                f"the task itself is to predict {'masked' if kind_of(kind).masks else 'the next'} words; leave it out",
            )
    if features and kind_of(kind).masks:
        yield "features", f"{kind} hides other words in every epoch, so there is nothing to keep; leave it out"
    if features and kind_of(kind).writes:
        yield "features", f"{kind} reads the encoder in every layer of the decoder; freeze: [encoder] trains that alone"
    if features and auxiliary_lm:
        yield "auxiliary_lm", "trains the encoder, which features keeps as it is; leave out one of the two"
    if features and training.unfreeze is not None:
        yield "features", "keeps the encoder as it is, and unfreeze trains it; leave out one of the two"
    if not adapter:
        return
    if kind_of(kind).truth is None:
        yield "adapter", f"is for a task with labels, and {kind} trains a base; leave it out"
    others = {
        "features": features,
        "auxiliary_lm": auxiliary_lm,
        "freeze": bool(training.freeze),
        "unfreeze": training.unfreeze is not None,
    }
    for name, given in others.items():
        if given:
            yield (
                name,
                "an adapter trains itself and the head, and the encoder stays as it is; leave out one of the two",
            )
