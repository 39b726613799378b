"""One teacher read by several losses at once: what any of them wants is computed together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.signals.hooks import NOTHING, Signals, SignalSpec
from teachers.signals.model_teacher import Reader, TeacherSource


@dataclass
class SharedTeacher:
    """One teacher read by several losses at once: what any of them wants is computed together, once a batch.

    Attributes:
        teacher: The teacher itself.
    """

    teacher: TeacherSource
    _shares: list[_Share] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.teacher, name)

    def read(self, rows: EncodedDataset, wanted: SignalSpec = NOTHING) -> Reader:
        """Return a reader that also gives what the other losses want of the same rows."""
        share = next((share for share in self._shares if share.rows is rows), None)
        if share is None:
            share = _Share(self.teacher, rows, wanted)
            self._shares.append(share)
        share.also(wanted)
        return share


@dataclass
class _Share:
    """What several losses want of one teacher and the same rows."""

    teacher: TeacherSource
    rows: EncodedDataset
    wanted: SignalSpec
    reader: Reader | None = None
    last: tuple[Batch, Signals] | None = None

    def also(self, wanted: SignalSpec) -> None:
        """Give more from now on, even if a loss has read before that another one asks for."""
        if (both := self.wanted | wanted) != self.wanted:
            self.wanted, self.reader, self.last = both, None, None

    def __call__(self, batch: Batch) -> Signals:
        """Return all that is wanted, computed once a batch."""
        if self.reader is None:
            self.reader = self.teacher.read(self.rows, self.wanted)
        if self.last is None or self.last[0] is not batch:
            self.last = (batch, self.reader(batch))
        return self.last[1]
