"""Padding that nothing sees: where embeddings mix neighbours, as in MobileBERT, the vector of padding stays 0."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from teachers.anatomy.encoder import mixes_neighbours, word_embeddings


def silence(model: Any, tokenizer: Any) -> None:
    """Set the vector of padding to 0 where its neighbours read it, in place; outputs without padding stay the same."""
    if mixes_neighbours(model.config):
        with torch.no_grad():
            word_embeddings(model).weight[tokenizer.pad_token_id] = 0


@contextlib.contextmanager
def kept_silent(model: Any, tokenizer: Any) -> Iterator[None]:
    """Keep gradients from that vector, which an output layer with the same table would otherwise train."""
    table = word_embeddings(model).weight if mixes_neighbours(model.config) else None
    if table is None or not table.requires_grad:
        yield
        return
    row = torch.tensor([tokenizer.pad_token_id], device=table.device)
    handle = table.register_hook(lambda gradient: gradient.index_fill(0, row, 0))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        handle.remove()
