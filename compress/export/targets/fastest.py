"""The word for whichever target and number format are fastest on this machine, among those that agree well enough."""

from __future__ import annotations

from typing import Literal

from compress.export.targets.target import Target
from compress.export.targets.target_options import TargetBlock


class FastestBlock(TargetBlock):
    """What may be asked of the fastest.

    Attributes:
        goal: ``latency``: the time of one text; ``throughput``: texts a second in a stream.
    """

    goal: Literal["latency", "throughput"] = "latency"


class FastestTarget(Target):
    """A choice by ``compress.export.tune``; the folder is one of the target that was chosen."""

    name = "fastest"
    summary = "The fastest target and number format that is installed here, measured on examples."
    needs = ("onnx", "onnxruntime")
    writes = True

    def options(self) -> type[FastestBlock]:
        """Return the options of every target, and the goal."""
        return FastestBlock
