"""Teacher outputs computed when they are asked for, on the device of the batch that is given."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from eval.cost.size import device_of
from teachers.data.encoded_dataset import Batch
from teachers.signals.hooks import Signals, SignalSpec, observe
from teachers.taskmodel import TaskModel


@dataclass(frozen=True)
class LiveReader:
    """Runs the teacher on the student's own inputs.

    Attributes:
        model: The teacher.
        wanted: What is read of it.
        copies: Device -> its network there, where the teacher's own stands elsewhere.
    """

    model: TaskModel
    wanted: SignalSpec
    copies: dict[torch.device, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def network(self, device: torch.device) -> Any:
        """Return the network on a device: itself if there, else a copy, so that the teacher stays where it is."""
        own = self.model.model
        if device_of(own) == device:
            return own
        if device not in self.copies:
            self.copies[device] = copy.deepcopy(own).to(device)
        return self.copies[device]

    def __call__(self, batch: Batch) -> Signals:
        """Return the teacher's outputs on this batch."""
        network = self.network(batch.rows.device)
        network.eval()
        with torch.no_grad():
            return observe(network, batch.inputs, self.wanted)
