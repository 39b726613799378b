"""How a text is searched for, in ``generation_config.json``: what of a folder is not followed, and what is written."""

from __future__ import annotations

import logging
from typing import Any

from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec

logger = logging.getLogger(__name__)

NEUTRAL: dict[str, Any] = {
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "diversity_penalty": 0.0,
    "exponential_decay_length_penalty": None,
    "sequence_bias": None,
    "do_sample": False,
    "early_stopping": False,
    "min_length": 0,
    "min_new_tokens": 0,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
"""Settings of transformers' ``generate`` that the search of a task does not have -> the value that changes nothing."""
KEPT = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
"""What of a model's own settings says no search."""


def tell_unfollowed(network: Any, task: TaskSpec, source: str) -> None:
    """Log which settings of a model's own search its texts are written without; nothing for other kinds of task.

    Args:
        network: Of any family.
        task: What it answers.
        source: What the log calls it.
    """
    said = getattr(network, "generation_config", None)
    if said is None or not kind_of(task.kind).writes:
        return
    found = {name: getattr(said, name, None) for name in NEUTRAL}
    asked = {"num_beams": task.beams, "length_penalty": task.length_penalty}
    others = [f"{name} {value}" for name, value in found.items() if value not in (None, NEUTRAL[name], [])]
    others += [
        f"{name} {value}" for name, own in asked.items() if (value := getattr(said, name, None)) not in (None, own)
    ]
    if others:
        logger.warning(
            "%s: its generation_config.json says %s, and texts are written by the task's search: beams %d, "
            "length_penalty %g, up to target_length %d tokens; they may differ from those of generate",
            source,
            ", ".join(others),
            task.beams,
            task.length_penalty,
            task.target_length,
        )


def write_search(network: Any, task: TaskSpec) -> None:
    """Let ``generate`` of transformers search as the task does, once the network is saved; in place.

    Nothing else that a model's own settings asked for is left, so the folder writes the texts that were measured, and
    transformers finds no two of them that do not go together, with which it saves none.
    """
    from transformers import GenerationConfig

    said = getattr(network, "generation_config", None)
    if said is None or not kind_of(task.kind).writes:
        return
    beams = {"length_penalty": task.length_penalty} if task.beams > 1 else {}
    network.generation_config = GenerationConfig(
        **{name: getattr(said, name, None) for name in KEPT},
        num_beams=task.beams,
        max_new_tokens=task.target_length,
        do_sample=False,
        early_stopping=False,
        **beams,
    )
