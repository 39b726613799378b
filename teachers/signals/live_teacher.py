"""A teacher for batches of somebody else's loader: it runs on each, and nothing is computed beforehand or kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eval.errors import UserError
from teachers.anatomy.encoder import model_inputs
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.signals.hooks import NOTHING, Signals, SignalSpec
from teachers.signals.live_reader import LiveReader
from teachers.signals.model_teacher import ModelTeacher, Reader


@dataclass(frozen=True)
class LiveTeacher(ModelTeacher):
    """A network as teacher that reads the token ids which the student reads, batch by batch."""

    @property
    def takes(self) -> tuple[str, ...]:
        """Names of the inputs that it needs."""
        return model_inputs(self.model.model.config)

    def read(self, rows: EncodedDataset, wanted: SignalSpec = NOTHING) -> Reader:
        """Return a reader that runs the network on what the student reads; of ``rows`` it reads nothing.

        Raises:
            UserError: If heads are wanted that the network has not.
        """
        del rows
        self.refuse_lost_heads(wanted)
        reader = LiveReader(self.model, wanted)

        def signals(batch: Batch) -> Signals:
            if missing := [name for name in self.takes if name not in batch.inputs]:
                types = "tokenize with return_token_type_ids=True"
                raise UserError(
                    f"teacher {self.model.name}: reads {' and '.join(missing)}, which the batches do not have; "
                    f"{types if missing == ['token_type_ids'] else 'only its own encoder makes them'}"
                )
            return reader(replace(batch, inputs={name: batch.inputs[name] for name in self.takes}))

        return signals
