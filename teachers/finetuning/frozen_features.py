"""Feature-based use of an encoder: it stays as it is, runs once over all texts, and a head learns from what it gave.

The network that is trained is the whole standard network with its encoder frozen and without dropout in it. Only where
the encoder would run, its last hidden states are looked up instead, so the result is that of ``freeze: [embeddings,
encoder]`` for the price of the head.

Source: Devlin et al. 2019, arXiv 1810.04805, section 5.3; Peters et al. 2018, arXiv 1802.05365 (ELMo).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from eval.errors import UserError
from eval.task import Examples
from teachers.anatomy.encoder import base_encoder, layer_count
from teachers.anatomy.pooler import pooler_output
from teachers.data.encoded_dataset import Batch, EncodedDataset
from teachers.signals.hooks import SignalSpec
from teachers.signals.model_teacher import ModelTeacher, Reader
from teachers.taskmodel import TaskModel, evaluating
from teachers.training.scoring import rows_of


@contextlib.contextmanager
def kept_features(model: TaskModel, examples: Examples) -> Iterator[None]:
    """For a while, let the encoder of ``model`` look up what it gave for these examples instead of running again.

    Features are kept on disk like a teacher's outputs and found again by the content of encoder (its pooler included)
    and data, whatever the head. A pooler runs anew on them each time, so that it can be trained. If they would take
    more than the budget of ``ModelTeacher``, the encoder runs each time, without dropout. Other texts, and whoever asks
    for hidden states of all layers, get them from the encoder as ever.

    Raises:
        UserError: If the network has no layers.
    """
    depth = layer_count(model.model)
    if not depth:
        raise UserError(f"features: {model.name} has no transformer layers whose features could be kept")
    encoder = base_encoder(model.model)
    bare = TaskModel(encoder, model.tokenizer, model.task, name=model.name)
    rows = rows_of(model, examples, seed=0)
    reader = ModelTeacher(bare, precision="fp32").read(rows, SignalSpec(hidden_states=(depth,), logits=False))
    encoder.forward = _Lookup(encoder, rows, reader, depth)  # before the class's own
    try:
        yield
    finally:
        del encoder.forward


class _Lookup:
    """Stands in the place of an encoder's forward pass."""

    def __init__(self, encoder: Any, rows: EncodedDataset, reader: Reader, place: int) -> None:
        self.encoder, self.forward, self.reader, self.place = encoder, encoder.forward, reader, place
        self.typed = "token_type_ids" in rows.encoder.settings.inputs
        self.rows = {
            _key(feature.ids, feature.type_ids if self.typed else ()): row for row, feature in enumerate(rows.features)
        }
        with evaluating(encoder):
            one = rows.batch([0]).to(next(encoder.parameters()).device)
            self.output = type(self.forward(**one.inputs))

    def __call__(self, input_ids: Any = None, *args: Any, **given: Any) -> Any:
        rows = None if args or given.get("output_hidden_states") else self._known(input_ids, given)
        if rows is None:
            return self.forward(input_ids, *args, **given)
        inputs = {"input_ids": input_ids, "attention_mask": given["attention_mask"]}
        if self.typed:
            inputs["token_type_ids"] = given["token_type_ids"]
        batch = Batch(inputs, {}, torch.tensor(rows, device=input_ids.device))
        states = self.reader(batch).hidden_states[self.place]
        pooled = pooler_output(self.encoder, states)
        return self.output(last_hidden_state=states, **({} if pooled is None else {"pooler_output": pooled}))

    def _known(self, input_ids: Any, given: dict[str, Any]) -> list[int] | None:
        """Return the numbers of the rows of a batch, or None if one of them was not seen before."""
        mask = given.get("attention_mask")
        types = given.get("token_type_ids")
        if input_ids is None or mask is None or (self.typed and types is None):
            return None
        real = mask.cpu().numpy().astype(bool)
        ids = input_ids.cpu().numpy()
        kinds = types.cpu().numpy() if self.typed and types is not None else np.empty((len(ids), 0))
        keys = [
            _key(row[place], kind[place] if self.typed else ())
            for row, kind, place in zip(ids, kinds, real, strict=True)
        ]
        found = [self.rows.get(key) for key in keys]
        return None if None in found else [row for row in found if row is not None]


def _key(ids: Sequence[int] | np.ndarray, types: Sequence[int] | np.ndarray) -> bytes:
    return np.asarray([*ids, *types], dtype=np.int64).tobytes()
