"""``compress predict``: texts to JSON lines through an export; neither torch nor transformers is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from eval.errors import UserError

CHUNK = 256
"""Examples that are read before the first is answered, so that batches hold similar lengths."""


def predict(
    export: Annotated[Path, typer.Argument(metavar="EXPORT", help="A folder that 'compress export' wrote.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts; without any, --file.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="One text or JSON object a line; - or nothing reads standard input.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs of a batch.")] = 32,
) -> None:
    """Answer texts with an export, as one JSON object a line, in the order of the texts."""
    from compress.export.runtime import Runtime
    from eval.inference import predict as answer

    if not (export / "export.json").is_file():
        raise UserError(f"{export}: no export.json here; 'compress export MODEL --to onnx --out DIR' writes an export")
    runtime = Runtime(export)
    del answer, runtime, texts, file, batch_size
    raise NotImplementedError
