"""A network that knows nothing yet, with a tokenizer learned from the texts of the task that it is made for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from eval.errors import did_you_mean
from eval.files.home import home
from eval.files.writing import atomic_folder, exclusive
from eval.kinds.kind_registry import kind_of
from eval.task import Examples, TaskSpec
from teachers.anatomy.families import FAMILIES
from teachers.pretraining.settings import NetworkBlock, TokenizerBlock

VERSION = 1
"""Raised when the same block, texts and seed give another network."""


class NewTokenizer(TokenizerBlock):
    """Its tokenizer: one of a folder (``from``), or learned from the training examples; byte pairs by default."""

    kind: Any = "bpe"

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: Any) -> Any:
        return TokenizerBlock(kind=kind).kind


class NewShape(NetworkBlock):
    """Its shape; any family with layers, and no ``from``."""

    @field_validator("family")
    @classmethod
    def _trainable(cls, family: str) -> str:
        allowed = [name for name in FAMILIES if FAMILIES.get(name).layers is not None]
        if family not in allowed:
            raise ValueError(f"got {family!r}{did_you_mean(family, allowed)}")
        return family

    @model_validator(mode="after")
    def _is_new(self) -> NewShape:
        if self.from_ is not None:
            raise ValueError("from: a new network starts from no other; name a folder as model: in its place")
        return self


class NewNetwork(BaseModel):
    """A network with random weights, to be trained on the task alone.

    Attributes:
        tokenizer: Its tokenizer.
        network: Its shape.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tokenizer: NewTokenizer = Field(default_factory=NewTokenizer)
    network: NewShape = Field(default_factory=NewShape)

    def made(self, examples: Examples, task: TaskSpec, seed: int) -> Path:
        """Return the folder of the network, made now or found again under ``COMPRESS_HOME``.

        Args:
            examples: Whose texts the tokenizer is learned from.
            task: What it is made for.
            seed: Seeds its weights.

        Raises:
            UserError: If there is no such network or tokenizer.
        """
        said = self.model_dump(mode="json", by_alias=True)
        words = json.dumps([VERSION, said, task.model_dump(mode="json"), examples.digest, seed], sort_keys=True)
        folder = home() / "teachers" / f"new-{hashlib.sha256(words.encode()).hexdigest()[:16]}"
        with exclusive(folder):
            if not folder.is_dir():
                with atomic_folder(folder, "the new network") as beside:
                    self.save(beside, examples, task, seed)
        return folder

    def save(self, folder: Path, examples: Examples, task: TaskSpec, seed: int, *, untrained: bool = False) -> None:
        """Write the network into a folder.

        Args:
            folder: An empty folder.
            examples: As for ``made``.
            task: Likewise.
            seed: Likewise.
            untrained: Whether it only stands for the network: its words are those of the beginning of the texts.

        Raises:
            UserError: As for ``made``.
        """
        from teachers.loaded_part import loaded_part
        from teachers.pretraining.network import config_for
        from teachers.pretraining.text.tokenizer_training import tokenizer_of_beginning, trained_tokenizer
        from teachers.taskmodel import build_taskmodel, load_tokenizer, save_taskmodel

        own, text, rows = self.tokenizer, ExampleTexts(examples, task.kind), 0
        if own.from_ is not None:
            source = own.from_
            tokenizer = loaded_part(source, "tokenizer", lambda: load_tokenizer(source))
        elif untrained:
            tokenizer, rows = tokenizer_of_beginning(text, own.kind, own.size, own.lowercase)
        else:
            tokenizer = trained_tokenizer(text, own.kind, own.size, own.lowercase, home() / "tokenizers")
        config = config_for(self.network, tokenizer, "new.network")
        config.vocab_size = max(config.vocab_size, rows)
        save_taskmodel(build_taskmodel(config, tokenizer, task, seed=seed, name="network"), folder)


class ExampleTexts:
    """All texts of examples, their targets among them, as often as they are asked for.

    Args:
        examples: The examples.
        kind: Kind of their task.
    """

    def __init__(self, examples: Examples, kind: str) -> None:
        self.examples, self.kind = examples, kind_of(kind)

    def __iter__(self) -> Iterator[str]:
        for example in self.examples:
            for name in self.kind.inputs(example):
                value = example[name]
                yield value if isinstance(value, str) else " ".join(map(str, value))
            if (target := self.kind.expected_text(example)) is not None:
                yield target

    @property
    def digest(self) -> bytes:
        """Recognises the texts."""
        return bytes.fromhex(self.examples.digest)
