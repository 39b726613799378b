"""CTranslate2: a runtime of its own for transformers, which computes nothing for padding."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.engines.engine import Array, Engine, Files, Inputs, Run
from benchmarks.engines.environment import Environment

HEAD = "head.npz"


class CTranslate2(Engine):
    """Its int8. The converter drops the classification head, which is one small product in numpy here."""

    name = "CTranslate2, int8, head in numpy"
    environment = Environment("ctranslate2", ("ctranslate2==4.8.5", "transformers==4.57.6"))
    packages = ("ctranslate2", "transformers")

    def prepare(self, files: Files, place: Path) -> None:
        """Convert the encoder with its pooler, and keep the head beside it."""
        from ctranslate2.converters import TransformersConverter
        from safetensors.numpy import load_file

        TransformersConverter(str(files.model)).convert(str(place / "encoder"), quantization="int8")
        weights = load_file(files.model / "model.safetensors")
        np.savez(place / HEAD, weight=weights["classifier.weight"], bias=weights["classifier.bias"])

    def load(self, files: Files, place: Path, threads: int) -> Run:
        """Load encoder and head."""
        from ctranslate2 import Encoder, StorageView

        with np.load(place / HEAD) as head:
            weight, bias = head["weight"].T, head["bias"]

        def opened(at_once: int) -> Run:
            each = {"inter_threads": at_once, "intra_threads": threads // at_once}
            encoder = Encoder(str(place / "encoder"), device="cpu", compute_type="int8", **each)

            def run(inputs: Inputs) -> Array:
                ids = StorageView.from_array(inputs["input_ids"].astype(np.int32))
                lengths = StorageView.from_array(inputs["attention_mask"].sum(1).astype(np.int32))
                found = encoder.forward_batch(ids, lengths)
                logits: Array = np.array(found.pooler_output) @ weight + bias
                return logits

            return run

        self.threads, self.several = threads, cache(lambda: opened(threads))
        return opened(1)

    def stream(self, run: Run, batches: Sequence[Inputs]) -> list[Array]:
        """Run the batches of a stream on workers with one thread each (its ``inter_threads``)."""
        with ThreadPoolExecutor(self.threads) as pool:
            return list(pool.map(self.several(), batches))
