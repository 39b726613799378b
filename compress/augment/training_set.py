"""The examples that a distillation learns from: the task's own, their copies, and unlabelled text."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from compress.augment.block import AugmentBlock
from compress.augment.copies import ORIGIN, augment
from compress.augment.opening import identity_of, open_rule
from compress.augment.rule import Rule
from compress.augment.text_files import read_unlabelled
from eval.errors import CompressError
from eval.files.full_disk import full_disk
from eval.files.home import home
from eval.files.writing import atomic_file
from eval.task import Example, Examples, TaskSpec

logger = logging.getLogger("compress.augment")

READ = frozenset({"text", "text_a", "text_b", "tokens"})
"""Fields of an example that are read; of two examples with the same ones, the unlabelled one is left out."""
VERSION = 1
"""Raised when the same data, rule and seed give other copies."""


def training_set(
    block: AugmentBlock,
    examples: Examples,
    spec: TaskSpec,
    seed: int,
    mask_word: str | None = None,
    beside: Iterable[Example] = (),
    columns: Mapping[str, str] | None = None,
) -> Examples:
    """Return ``examples`` with the copies and texts that a block asks for.

    Copies are kept in ``augmented`` under ``COMPRESS_HOME``, named by the content of data, rule and models, and are
    read back by the next call: an interrupted run goes on with the very same examples.

    Args:
        block: What is added.
        examples: The labelled examples of the task.
        spec: The task.
        seed: The source of all chance, unless the block has a seed of its own.
        mask_word: What a masked word becomes unless the block says it.
        beside: Further examples of the task, those that choose and report: unlabelled texts that they have, or
            ``examples``, are left out.
        columns: The task's column for each of our fields, of the texts of ``unlabelled`` too where they have it.

    Raises:
        UserError: If a model, a file or a tagger is missing or unfit.
        CompressError: If the copies cannot be kept.
    """
    known = {_read(example) for example in (*examples, *beside)} if block.unlabelled is not None else set()
    added = [example for example in unlabelled_texts(block, spec, seed, columns) if _read(example) not in known]
    found: list[Example] = list(examples)
    if block.rule is not None:
        found = _copies(block, examples, seed if block.seed is None else block.seed, spec.pair, mask_word)
        logger.info("augmented %d examples to %d", len(examples), len(found))
    return Examples([*found, *added], examples.name, examples.skipped)


def unlabelled_texts(
    block: AugmentBlock, spec: TaskSpec, seed: int, columns: Mapping[str, str] | None = None
) -> list[Example]:
    """Return the texts of ``unlabelled``, or a sample of as many as ``limit`` says; ``columns`` are the task's.

    Raises:
        UserError: If the file is missing or unfit.
    """
    if block.unlabelled is None:
        return []
    texts = Examples(read_unlabelled(block.unlabelled, spec, columns))
    drawn = seed if block.seed is None else block.seed
    return list(texts if block.limit is None else texts.sample(block.limit, drawn))


def _read(example: Example) -> str:
    """Return what is read of an example, as text."""
    return json.dumps({name: example[name] for name in sorted(READ & example.keys())}, ensure_ascii=False)


def expected(
    block: AugmentBlock, examples: Examples, spec: TaskSpec, columns: Mapping[str, str] | None = None
) -> tuple[int, Rule | None]:
    """Open everything that a block names, and draw nothing.

    Returns:
        How many examples ``training_set`` gives at most, and the rule.

    Raises:
        UserError: As ``training_set`` does.
    """
    added = len(unlabelled_texts(block, spec, 0, columns))
    if block.rule is None:
        return len(examples) + added, None
    return len(examples) * (1 + block.copies_of(spec.pair)) + added, open_rule(block)


def _copies(block: AugmentBlock, examples: Examples, seed: int, pair: bool, mask_word: str | None) -> list[Example]:
    rule = open_rule(block, mask_word)
    copies = block.copies_of(pair)
    identity = {
        "version": VERSION,
        "rule": identity_of(block, rule) | {"copies": copies},
        "examples": examples.digest,
        "seed": seed,
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    file = home() / "augmented" / f"{block.rule}-{key}.jsonl"
    if not file.is_file():
        write_copies(file, augment(examples, rule, copies, seed))
    with file.open(encoding="utf-8") as lines:
        return [_without_origin(json.loads(line)) for line in lines]


def write_copies(file: Path, examples: Iterator[dict[str, Any]]) -> tuple[int, int]:
    """Write examples as JSON lines, so that the file is whole or not there; return how many are originals and copies.

    Raises:
        CompressError: If the file cannot be written.
    """
    originals = copies = 0
    try:
        # A lone surrogate becomes its JSON escape.
        with (
            atomic_file(file) as beside,
            beside.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as lines,
        ):
            for example in examples:
                lines.write(json.dumps(example, ensure_ascii=False) + "\n")
                copied = all(name in example for name in ORIGIN)
                originals, copies = originals + (not copied), copies + copied
    except OSError as error:
        raise CompressError(full_disk(error, file) or f"{file}: cannot be written ({error})") from error
    return originals, copies


def _without_origin(example: dict[str, Any]) -> Example:
    return {key: value for key, value in example.items() if key not in ORIGIN}
