"""What an engine is: a small class that prepares its files from a model, and loads them as a function.

To add one, write a subclass of ``Engine`` and add it to ``catalogue.py``. Its packages need no place in pyproject: name
an ``Environment`` with pinned requirements. At module level import no more than numpy and the standard library, and
what the engine needs inside of its methods, so that its process holds its own memory alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines.environment import PROJECT, Environment

Array = NDArray[Any]
Inputs = Mapping[str, Array]
"""``input_ids``, ``attention_mask`` and ``token_type_ids``: int64 ``[rows, length]`` each."""
Run = Callable[[Inputs], Array]
"""From inputs to float32 logits ``[rows, classes]``."""
NETWORKS = {".onnx", ".bin", ".xml", ".safetensors"}
"""Endings of the files whose size the table shows."""


@dataclass(frozen=True)
class Files:
    """The folder that every engine starts from.

    Attributes:
        folder: Its place.
    """

    folder: Path

    @property
    def model(self) -> Path:
        """The model in torch: a folder that ``transformers`` loads."""
        return self.folder / "model"

    @property
    def graph(self) -> Path:
        """The model in float32 ONNX, as torch's own exporter writes it."""
        return self.folder / "plain.onnx"

    def texts(self, use: str) -> list[dict[str, Any]]:
        """Return training examples for ``calibration``, or for the ``gate`` of an export."""
        found: list[dict[str, Any]] = json.loads((self.folder / f"texts {use}.json").read_text(encoding="utf-8"))
        return found

    def batches(self, case: str) -> list[dict[str, Array]]:
        """Return the inputs of a case; ``calibration`` is one too."""
        found = json.loads((self.folder / f"batches {case}.json").read_text(encoding="utf-8"))
        return [{name: np.array(rows, dtype=np.int64) for name, rows in batch.items()} for batch in found]

    def write_texts(self, use: str, examples: Sequence[Mapping[str, Any]]) -> None:
        """Write what ``texts`` reads."""
        text = json.dumps([dict(example) for example in examples])
        (self.folder / f"texts {use}.json").write_text(text, encoding="utf-8")

    def write_batches(self, case: str, batches: Sequence[Inputs]) -> None:
        """Write what ``batches`` reads."""
        found = [{name: array.tolist() for name, array in batch.items()} for batch in batches]
        (self.folder / f"batches {case}.json").write_text(json.dumps(found), encoding="utf-8")


class Engine:
    """One way to run a model.

    Attributes:
        name: Its name in the table: the tool, a comma, the variant. The tool ``ours`` is this project.
        environment: Where its packages are.
        packages: Those whose versions the record keeps.
        saturates: Whether its u8 x s8 sums saturate on a processor with AVX2 and without VNNI.
    """

    name = ""
    environment: Environment = PROJECT
    packages: tuple[str, ...] = ()
    saturates = False

    def absent(self) -> str:
        """Return why there is no sense in measuring it on this processor; empty if there is."""
        return ""

    def prepare(self, files: Files, place: Path) -> None:
        """Write what ``load`` reads into the new folder ``place``."""

    def load(self, files: Files, place: Path, threads: int) -> Run:
        """Return the function that runs the model with so many threads."""
        raise NotImplementedError

    def answer(self, run: Run, batches: Sequence[Inputs]) -> list[Array]:
        """Return the logits of a whole case: of one batch, or of a stream of them."""
        return [run(batches[0])] if len(batches) == 1 else self.stream(run, batches)

    def stream(self, run: Run, batches: Sequence[Inputs]) -> list[Array]:
        """Return the logits of several batches; one after the other unless the engine has another way."""
        return [run(batch) for batch in batches]

    def network(self, files: Files, place: Path) -> Path | None:
        """Return the file or folder whose size the table shows, None if it exists in memory alone."""
        return place


def tool_of(name: str) -> str:
    """Return the tool that an engine's name begins with.

    Example:
        >>> tool_of("ours, OpenVINO, int8")
        'ours'
    """
    return name.split(",")[0]


def size_of(network: Path | None) -> int:
    """Return the bytes of a network's files."""
    if network is None:
        return 0
    files = [network] if network.is_file() else sorted(network.rglob("*"))
    return sum(file.stat().st_size for file in files if file.suffix in NETWORKS)


def without_bf16() -> str:
    """Return the reason not to measure bfloat16 on this processor; empty if it has instructions for it."""
    from eval.cost.machine import bf16_is_fast, cpu_features

    return "" if bf16_is_fast(cpu_features()) else "this processor has no bfloat16 instructions"
