"""Batches of one task of a pretraining: sequences of a source, with what each objective asks of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from eval.encoding import IGNORED
from eval.errors import UserError
from teachers.data.encoded_dataset import Batch
from teachers.pretraining.objectives.pretext_objective import Ask
from teachers.pretraining.text.sequence import START, Drawn, Frame
from teachers.pretraining.text.sequence_sources import Drawable


class PretextDataset:
    """Sequences by number, padded batch by batch; equal seed, epoch and number give equal sequences.

    Args:
        source: Where sequences come from.
        frame: The tokenizer's special tokens.
        asks: What asks, by name of the objective, those first that change a sequence.
        label: Name of the target that holds the class of a sequence; none without.
        inputs: Names of what the network takes.
        seed: The source of chance.
        draws: How many different sequences chance makes of each number; 1 is BERT's static masking, None RoBERTa's
            dynamic one.
        task_type: ERNIE 2.0's number of the task, where the network takes it.
        memory: Tokens before a sequence that are its memory; the sequences then are those of one stream. At most as
            many as each of them has.
        first_position: Position of the first token, where ``inputs`` have positions.
        digest: Recognises the text behind the sequences.
        most: Most sequences, by number; all by default.
        start: The token that a decoder begins with, where the network has one.

    Raises:
        UserError: If there are no sequences.
    """

    def __init__(
        self,
        source: Drawable,
        frame: Frame,
        asks: Mapping[str, Ask],
        *,
        label: str = "",
        inputs: Sequence[str] = ("input_ids", "attention_mask"),
        seed: int = 13,
        draws: int | None = None,
        task_type: int = 0,
        memory: int = 0,
        first_position: int = 0,
        digest: str = "",
        most: int | None = None,
        start: int = 0,
    ) -> None:
        self.source, self.frame, self.asks, self.label = source, frame, dict(asks), label
        self.inputs, self.seed, self.draws, self.task_type = tuple(inputs), seed, draws, task_type
        self.lengths = source.lengths[:most]
        self.memory, self.first_position, self.digest, self.start = memory, first_position, digest, start
        if not len(self.lengths):
            raise UserError("the text gives no sequence; it is empty, or every document is shorter than two tokens")

    def __len__(self) -> int:
        return len(self.lengths)

    def draw(self, number: int, epoch: int) -> Drawn:
        """Return one sequence as the objectives leave it."""
        chance = np.random.default_rng([self.seed, epoch if self.draws is None else epoch % self.draws, number])
        drawn = self.source.draw(number, chance)
        for ask in self.asks.values():
            ask(drawn, chance)
        return drawn

    def batch(self, rows: Sequence[int], epoch: int = 0, progress: float = 0.0) -> Batch:
        """Return the padded tensors of these rows."""
        drawn = [self.draw(row, epoch) for row in rows]
        length = max(len(one.ids) for one in drawn)
        arrays: dict[str, Any] = {
            "input_ids": _padded([one.ids for one in drawn], length, self.frame.pad),
            "attention_mask": _padded([np.ones(len(one.ids), dtype=np.int64) for one in drawn], length, 0),
            "token_type_ids": _padded([one.types for one in drawn], length, 0),
            "task_type_ids": np.full((len(drawn), length), self.task_type, dtype=np.int64),
        }
        if "position_ids" in self.inputs:
            positions = [np.arange(len(one.ids)) if one.positions is None else one.positions for one in drawn]
            arrays["position_ids"] = _padded([one + self.first_position for one in positions], length, 0)
        read, inputs = [one.decoder for one in drawn if one.decoder is not None], self.inputs
        if read:
            length, inputs = max(map(len, read)), (*inputs, "decoder_input_ids")
            arrays["decoder_input_ids"] = _padded(
                [np.where(r == START, self.start, r) for r in read], length, self.frame.pad
            )
        targets = {name: _padded([one.targets[name] for one in drawn], length, IGNORED) for name in drawn[0].targets}
        if self.memory:
            targets |= self._memories(rows, epoch)
        if self.label:
            targets[self.label] = np.array([one.label for one in drawn], dtype=np.int64)
        return Batch(
            {name: torch.from_numpy(arrays[name]) for name in inputs},
            {name: torch.from_numpy(values) for name, values in targets.items()},
            torch.tensor(list(rows), dtype=torch.int64),
            progress,
        )

    def _memories(self, rows: Sequence[int], epoch: int) -> dict[str, Any]:
        """Return the tokens before each sequence, and the order in which they are seen; ``IGNORED`` before the first.

        Both ``[B, memory]``.
        """
        before = [self.draw(row - 1, epoch) if row else None for row in rows]
        found = {"memory": [None if one is None else one.ids for one in before]}
        orders = [name for one in before if one is not None for name in one.targets if name.endswith("_order")]
        for name in orders[:1]:
            found["memory_order"] = [None if one is None else one.targets[name] for one in before]
        nothing = np.full(self.memory, IGNORED, dtype=np.int64)
        return {
            name: np.stack([nothing if value is None else value[-self.memory :] for value in values])
            for name, values in found.items()
        }


def _padded(rows: Sequence[Any], length: int, fill: int) -> Any:
    padded = np.full((len(rows), length), fill, dtype=np.int64)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded
