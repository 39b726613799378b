"""Which rows stand together in a batch: grouped by length, shuffled, the same for the same seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

POOL = 64
"""Batches whose rows are sorted together; larger pools pad less and shuffle less."""


def cut(rows: Sequence[int], pieces: int, together: Sequence[int] | None = None) -> list[list[int]]:
    """Cut rows into runs of nearly equal size, the later ones empty if there are too few.

    Args:
        rows: Numbers of rows.
        pieces: How many runs.
        together: The number of each row's group; rows of one group stay in one run. Without it each row is one.
    """
    members: dict[int, list[int]] = {}
    for row in rows:
        members.setdefault(row if together is None else together[row], []).append(row)
    parts = np.array_split(np.array(list(members)), pieces)
    return [[row for number in part.tolist() for row in members[number]] for part in parts]


class LengthGroupedBatches(Sampler[list[int]]):
    """Batches of rows for one epoch, as a pure function of seed and epoch, so that a run resumes exactly.

    Rows are shuffled, cut into pools of ``POOL`` batches, sorted by length inside a pool, cut into batches,
    and the batches are shuffled. The longest batch comes first in the first epoch: a run out of memory shows at once.

    Args:
        lengths: Tokens of each row.
        batch_size: Rows a batch.
        seed: Seed of the shuffle.
        group: False leaves the rows shuffled without grouping.
        together: A number for each row: rows of one number are moved as one, by their longest. The border between two
            batches may still fall among them.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        seed: int,
        group: bool = True,
        together: Sequence[int] | None = None,
    ) -> None:
        self.lengths = np.asarray(lengths)
        self.batch_size, self.seed, self.group = batch_size, seed, group
        self.together = None if together is None else np.asarray(together)
        self.drop_last = False
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order is yielded next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng([self.seed, self.epoch])
        order = generator.permutation(len(self.lengths))
        if self.group:
            size = POOL * self.batch_size
            pools = [order[i : i + size] for i in range(0, len(order), size)]
            order = np.concatenate([pool[np.argsort(-self.lengths[pool], kind="stable")] for pool in pools])
        if self.together is not None:  # every group to the place of its first row
            first: dict[int, int] = {}
            places = [first.setdefault(number, place) for place, number in enumerate(self.together[order].tolist())]
            order = order[np.argsort(places, kind="stable")]
        batches = [order[i : i + self.batch_size].tolist() for i in range(0, len(order), self.batch_size)]
        if self.group:
            batches = [batches[i] for i in generator.permutation(len(batches))]
            if self.epoch == 0:
                longest = max(range(len(batches)), key=lambda i: self._cost(batches[i]))
                batches[0], batches[longest] = batches[longest], batches[0]
        return iter(batches)

    def _cost(self, batch: list[int]) -> int:
        """Return what says which batch takes most memory: its longest row."""
        return int(self.lengths[batch].max())


class WholeGroupBatches(LengthGroupedBatches):
    """Batches of rows in which no group of rows is cut; the order of groups is that of their longest rows.

    Each batch holds as many groups as fit if they are of the mean size, so that the number of batches is the same in
    every epoch; one group at the least. Where sizes differ a batch may have more rows than ``batch_size``; the one that
    takes most memory comes first.

    Args:
        lengths: Tokens of each row.
        batch_size: Rows of a batch; exceeded by large groups alone.
        seed: Seed of the shuffle.
        group: False leaves the groups shuffled without grouping by length.
        together: The number of each row's group; without it each row is one.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        batch_size: int,
        seed: int,
        group: bool = True,
        together: Sequence[int] | None = None,
    ) -> None:
        members: dict[int, list[int]] = {}
        for row, number in enumerate(range(len(lengths)) if together is None else together):
            members.setdefault(number, []).append(row)
        self.members = list(members.values())
        longest = [max(lengths[row] for row in rows) for rows in self.members]
        super().__init__(longest, max(1, batch_size * len(self.members) // max(1, len(lengths))), seed, group)

    def __iter__(self) -> Iterator[list[int]]:
        for numbers in super().__iter__():
            yield [row for number in numbers for row in self.members[number]]

    def _cost(self, batch: list[int]) -> int:
        """Return the tokens of its groups once they are padded."""
        return super()._cost(batch) * sum(len(self.members[number]) for number in batch)


class MixedBatches:
    """Batches of several tasks, each of one task alone, in shuffled order; as MT-DNN trains (Liu et al. 2019).

    A single task keeps its own order.

    Args:
        parts: The batches of each task.
        seed: Seed of the shuffle.
    """

    def __init__(self, parts: Sequence[LengthGroupedBatches], seed: int) -> None:
        self.parts, self.seed, self.epoch = parts, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order is yielded next."""
        self.epoch = epoch
        for part in self.parts:
            part.set_epoch(epoch)

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the number of the task, and rows of it."""
        owners = np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])
        np.random.default_rng([self.seed, self.epoch, 1]).shuffle(owners)
        batches = [iter(part) for part in self.parts]
        for owner in owners.tolist():
            yield owner, next(batches[owner])
