"""From the ``augment`` block of a recipe to a rule with its models loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from compress.augment.bilstm_rule import BilstmRule
from compress.augment.block import AugmentBlock
from compress.augment.masked_lm_words import MaskedWords
from compress.augment.neighbours import vectors_of_file, vectors_of_model
from compress.augment.rule import Rule
from compress.augment.tagger import open_tagger
from compress.augment.tinybert_rule import TinyBertRule
from eval.errors import UserError
from eval.files.paths import user_path
from eval.task import TaskSpec
from teachers.taskmodel import TaskModel

LENGTH = 512
"""Most pieces of a text in which words are predicted."""


def open_rule(block: AugmentBlock, mask_word: str | None = None) -> Rule:
    """Load what the rule of a block needs.

    Args:
        block: Its ``rule`` must be given.
        mask_word: What a masked word becomes unless the block says it.

    Raises:
        UserError: If a model, a file or a tagger is missing or unfit.
    """
    if block.rule == "bilstm":
        tagger = open_tagger(block.tagger) if block.tagger is not None and block.pos else None
        word = block.mask_word or mask_word or "[MASK]"
        return BilstmRule(block.mask, block.pos, block.ngram, word, tagger)
    model = open_masked(str(block.model))
    vectors = vectors_of_model(model) if block.vectors is None else vectors_of_file(block.vectors)
    masked = MaskedWords(model, beside=block.beside)
    return TinyBertRule(masked, vectors, block.replace, block.candidates)


def open_masked(source: str) -> TaskModel:
    """Load a masked-language model.

    Raises:
        UserError: If it has no trained head; a new one would propose words at random.
    """
    from compress.artifact.artifact import load_model

    model = load_model(source, TaskSpec(kind="masked-lm", metric="masked_accuracy", max_length=LENGTH))
    config = model.model.config
    architecture = str((config.architectures or ["no head"])[0])
    # What ELECTRA calls pretraining tells replaced words from others and predicts none.
    heads = ("ForMaskedLM",) if config.model_type == "electra" else ("ForMaskedLM", "ForPreTraining")
    if not architecture.endswith(heads):
        raise UserError(
            f"model: {source} has no trained masked-language head (it is {architecture}); name the base that it was "
            "made from, or train one with compress teach --task masked-lm"
        )
    return model


def identity_of(block: AugmentBlock, rule: Rule) -> dict[str, Any]:
    """Return what decides the copies beside data and seed, as plain JSON; models and files by their content."""
    found = block.model_dump(mode="json", exclude={"unlabelled", "seed"})
    if isinstance(rule, TinyBertRule):
        model = rule.masked.model
        tokenizer = model.tokenizer.backend_tokenizer.to_str()
        found["model"] = [model.digest, hashlib.sha256(tokenizer.encode()).hexdigest()]
        if block.vectors is not None:
            found["vectors"] = _digest(user_path(block.vectors))
    if isinstance(rule, BilstmRule):
        found["mask_word"] = rule.mask_word
        pipeline = getattr(rule.tagger, "pipeline", None)
        found["tagger"] = block.tagger if pipeline is None else [pipeline.meta["name"], pipeline.meta["version"]]
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
