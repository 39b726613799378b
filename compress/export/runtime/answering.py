"""Answers from an export folder with numpy, tokenizers and the runtime's own library; no torch, no transformers.

It imports parts of ``predict.py`` alone, and the list of targets, so that every export can carry all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from compress.export.runtime.batch_threads import BATCH_TOKENS, CALL_TOKENS, engines_for_threads, on_threads, worth_it
from compress.export.runtime.given_example import check_role, example, most_told, text_of
from compress.export.runtime.manifest import library_for, read_manifest
from compress.export.runtime.windows import WINDOW, Window, check_several, in_order, windows
from compress.export.targets.library import Engine, ExportError
from eval.encoding import TASK_IDS, Array, Feature, Inputs, TextEncoder
from eval.inference import Answer, Predictions, answered, cheapest_batches, joined
from eval.one_line import first_line

MOST_THREADS = 1024


class Runtime:
    """An exported model, ready to answer; a ``Predictor``.

    Args:
        folder: What ``compress export`` wrote, for whatever target.
        threads: Threads of one product; by default ``OMP_NUM_THREADS``, else what ``--tune`` found, else the physical
            cores that this process may use.
        name: What reports call it; by default the name in the folder.
        spinning: Let idle threads wait actively and stay on their core: fastest for one model alone, slower beside
            other busy sessions.
        speed: For a model with early exits, the uncertainty up to which an input leaves, 0 to 1; 0 runs every layer.
            By default that of the export.
        prompt_name: For an embedder, what all texts are: ``query`` or ``document``. By default an export of retrieval
            takes a text for a document, and one of embedding for neither.
        engine: What runs the network in the place of the library that the export was made for.

    Attributes:
        name: What reports call it.
        folder: Where it lies.
        manifest: Content of ``export.json``.
        task: The task specification as plain JSON.
        encoder: How examples become inputs.
        weight_files: Names of the network's files.
        threads: Threads of one product; None if the library chooses.
        max_tokens: Most tokens that fit into one input of the network; None in exports from before it was recorded.
        answered_tokens: Tokens that it was given so far.

    Raises:
        ExportError: If a file is missing, damaged or of a later version, the runtime's library is missing or cannot
            load the model, or it has no such ``speed`` or ``prompt_name``.
    """

    def __init__(
        self,
        folder: str | Path,
        threads: int | None = None,
        *,
        name: str | None = None,
        spinning: bool = True,
        speed: float | None = None,
        prompt_name: str | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.name: str = name or self.manifest["name"]
        self.task: dict[str, Any] = self.manifest["task"]
        library = library_for(self.folder, self.manifest)
        try:
            self.encoder = TextEncoder.from_folder(self.folder, library.tokenizer)
        except Exception as error:  # tokenizers raises bare Exceptions
            raise ExportError(f"{self.folder}: the tokenizer cannot be read ({first_line(error)})") from error
        if prompt_name is not None:
            check_role(prompt_name, self.encoder.settings.kind)
            self.encoder.settings = self.encoder.settings.prompted(prompt_name)
        if speed is not None and self.manifest.get("speed") is None:
            raise ExportError(f"{self.folder}: has no early exits whose speed can be set")
        if threads is not None and not 0 <= threads <= MOST_THREADS:
            raise ExportError(
                f"threads: got {threads}, allowed are 1 to {MOST_THREADS:,}, or 0 for the library's choice"
            )
        if speed is not None and not 0 <= speed <= 1:
            raise ExportError(f"speed: got {speed}, allowed are 0 (every layer) to 1 (the first exit)")
        self.settings: Inputs = {} if speed is None else {"speed": np.array(speed, dtype=np.float32)}
        self.weight_files = library.files_of(self.manifest["files"])
        self.max_tokens: int | None = self.manifest.get("max_tokens")
        asked = threads or self._threads()
        self.threads: int | None = asked or None
        self.engine = engine or library.open(self.folder, asked, spinning)
        self.session = self.engine.session
        self.answered_tokens = 0

    @property
    def chosen_on(self) -> dict[str, str]:
        """What was chosen, or learned -> digest of the examples it was chosen on; earlier versions recorded none."""
        return self.manifest.get("chosen_on") or {}

    def _threads(self) -> int:
        cores, tuned = default_threads(), self.manifest.get("tuned")
        found = (tuned or {}).get("threads") if "OMP_NUM_THREADS" not in os.environ else None
        return min(found, cores or found) if isinstance(found, int) and 0 < found <= MOST_THREADS else cores

    def forward(self, inputs: Inputs) -> Array:
        """Return float32 logits ``[rows, C]``, or ``[rows, length, C]`` for tagging, qa (C = start, end), masked-lm.

        For embedding they are the vectors of the texts, ``[rows, d]``.
        """
        return self.forward_counted(inputs)[0]

    def forward_counted(self, inputs: Inputs) -> tuple[Array, Array | None]:
        """Return the logits, and for a model with early exits how many layers each row ran through, ``[rows]``."""
        return self._run(self.engine, inputs)

    def forward_many(self, batches: Iterable[Inputs]) -> Iterator[tuple[Array, Array | None]]:
        """Yield for each batch what ``forward_counted`` returns; each runs on one thread, several at a time.

        Of most libraries that is faster than all threads on one batch after the other. The first call loads the network
        once more, for threads of its own.
        """
        if not self.batch_engines:
            return map(self.forward_counted, batches)
        return on_threads(self.batch_engines, self._run, batches)

    @cached_property
    def batch_engines(self) -> list[Engine]:
        """One for each thread, if there are several and the library can; of a model that writes none."""
        if self.encoder.kind.writes:
            return []
        try:
            return engines_for_threads(self.engine, self.threads or 1)
        except Exception as error:  # each library has a dozen unrelated error types
            raise ExportError(f"{self.folder}: its runtime cannot load it again ({first_line(error)})") from error

    def _run(self, engine: Engine, inputs: Inputs) -> tuple[Array, Array | None]:
        one_of = self.manifest.get("one_of")
        asked = {TASK_IDS: np.full_like(inputs["input_ids"], one_of["number"])} if one_of else {}
        try:
            found = engine.run({**inputs, **asked, **self.settings})
        except Exception as error:  # each library has a dozen unrelated error types
            raise ExportError(f"{self.folder}: its runtime cannot run it ({first_line(error)})") from error
        found = {one_of["output"]: found[one_of["output"]]} if one_of else found
        layers = found.pop("layers", None)
        # By their names: a model server has an order of its own, and an embedding has states for other tools beside.
        found = {name: found[name] for name in self.encoder.kind.graph_outputs if name in found} or found
        logits = np.stack(list(found.values()), axis=-1) if len(found) > 1 else next(iter(found.values()))
        return np.asarray(logits, dtype=np.float32), layers

    def predict(self, examples: Iterable[str | Mapping[str, Any]], batch_size: int | None = None) -> Predictions:
        """Answer examples, or lines as ``example`` reads them; answers come in the same order.

        Args:
            examples: Any number of them, in any order: batches are made of texts of similar length.
            batch_size: Most inputs of a batch; by default as many as are fastest.

        Raises:
            ExportError: If an example lacks a field or is no text; all such examples at once.
        """
        parts = list(windows(self.examples(examples, 1), WINDOW))
        return joined(self.by_window(parts, batch_size, beside=len(parts) > 1 and self._cores_are_free))

    def stream(
        self, examples: Iterable[str | Mapping[str, Any]], chunk: int | None = None, batch_size: int | None = None
    ) -> Iterator[Answer]:
        """Answer any number of examples or lines in bounded memory, in the same order.

        Args:
            examples: Read a window at a time.
            chunk: Examples that are read before the first of them is answered. By default as many as is fastest; and
                where cores are free the next ones are read and tokenized beside.
            batch_size: Most inputs of a batch; by default as many as are fastest.

        Raises:
            ExportError: If an example lacks a field or is no text; its number is counted from 1.
        """
        beside = chunk is None and self._cores_are_free
        for part in self.by_window(windows(examples, chunk or WINDOW), batch_size, beside):
            yield from part.answers

    def by_window(
        self, parts: Iterable[Window], batch_size: int | None = None, beside: bool = False
    ) -> Iterator[Predictions]:
        """Answer windows, each in those batches that are fastest.

        Args:
            parts: The windows.
            batch_size: Most inputs of a batch.
            beside: Whether the next window is tokenized, and its batches are chosen, in another thread meanwhile.
        """

        def ready(window: Window) -> tuple[list[dict[str, Any]], list[Feature], list[list[int]], bool]:
            held = self.examples(window.items, window.first)
            features = self.encoder.encode(held)
            return held, features, *self.batches([len(feature.ids) for feature in features], batch_size)

        with ThreadPoolExecutor(max_workers=1) as thread:
            for held, features, batches, many in in_order(thread, ready, parts, 1) if beside else map(ready, parts):
                yield answered(self, held, features, batches, self.forward_many if many else None)

    def batches(self, lengths: Sequence[int], batch_size: int | None = None) -> tuple[list[list[int]], bool]:
        """Return the batches of inputs that cost least together, and whether several of them run at a time.

        Args:
            lengths: Of the inputs, in tokens.
            batch_size: Most inputs of a batch.
        """
        threads, tokens = self.threads or 1, sum(lengths)
        several = worth_it(tokens, self.answered_tokens, threads) and bool(self.batch_engines)
        self.answered_tokens += tokens
        at_once = 1 if several else threads
        return list(cheapest_batches(lengths, BATCH_TOKENS * at_once, CALL_TOKENS * at_once, batch_size)), several

    @property
    def _cores_are_free(self) -> bool:
        return 0 < (self.threads or 0) < usable_cores()

    def write(self, inputs: Inputs) -> list[list[int]]:
        """Return the tokens that are written for each row of sources, without the one that ends it; of ``seq2seq``.

        Raises:
            ExportError: If the model writes no text, or its runtime cannot run it.
        """
        kind: Any = self.encoder.kind
        if not kind.writes:
            raise ExportError(f"a {kind.name} export writes no text")
        try:
            found: list[list[int]] = kind.written(self.encoder.settings, ExportDecoding(self.engine, inputs))
            return found
        except Exception as error:  # each library has a dozen unrelated error types
            raise ExportError(f"{self.folder}: its runtime cannot run it ({first_line(error)})") from error

    def generate(self, prompt: str, new_tokens: int = 40, **how: Any) -> str:
        """Return the text that follows a prompt; of a model whose kind of task is to predict the next token.

        An export for ``generator`` keeps what it has read, so that a new token costs one token; others read all anew.

        Args:
            prompt: A text, which may be empty.
            new_tokens: Most tokens that are added; an end of text ends it before.
            how: ``seed`` draws tokens, by default the likeliest is taken each time; ``top_k``, ``top_p`` and
                ``temperature`` say from which (see ``continued``).

        Raises:
            ExportError: If the model writes no text, or a value is not allowed.
        """
        kind: Any = self.encoder.kind
        if not kind.causal:
            raise ExportError(f"a {kind.name} export writes no text after a prompt")
        tokenizer, settings = self.encoder.tokenizer, self.encoder.settings
        ends = (settings.beginning, settings.end_id)
        text = text_of(prompt, "prompt")
        try:
            return str(kind.generate(tokenizer, *ends, self._next, text, new_tokens, self.max_tokens, **how))
        except ValueError as error:
            raise ExportError(str(error)) from error

    def _next(self, ids: list[int], past: Any) -> tuple[Array, Any]:
        """Return the scores of the token after ``ids`` and all before them, and what the next call needs of them."""
        step = getattr(self.engine, "step", None)
        every = ids if step is not None else [*(past or ()), *ids]
        inputs = self.encoder.collate([Feature(0, every, [0] * len(every))])
        if step is None:
            return self.forward(inputs)[0, -1], every
        logits, now = step(inputs, past or {})
        return np.asarray(logits[0, -1], dtype=np.float32), now

    def examples(self, items: Iterable[str | Mapping[str, Any]], first: int) -> list[dict[str, Any]]:
        """Return lines or examples as examples with the fields that this model reads.

        Args:
            items: As ``predict`` takes them.
            first: The number of the first, for messages.

        Raises:
            ExportError: If an example lacks a field or is no text; all such examples at once.
        """
        check_several(items)
        settings = self.encoder.settings
        if self.encoder.kind.masks:
            raise ExportError(f"a {settings.kind} export gives logits (Runtime.forward), not answers")
        found: list[dict[str, Any]] = []
        problems: list[str] = []
        for number, item in enumerate(items, start=first):
            try:
                found.append(example(item, settings.kind, settings.pair))
            except ExportError as error:
                problems.append(f"example {number}: {error}")
        if problems:
            raise ExportError("\n".join(most_told(problems)))
        return found


class ExportDecoding:
    """Texts that an export writes; see ``eval.generation.beam_search.Decoding``.

    Args:
        engine: One whose ``read`` gives the past of a source, whose ``step`` goes on from a past, and whose ``widths``
            name what of it grows with the text.
        inputs: The sources.
    """

    def __init__(self, engine: Any, inputs: Inputs) -> None:
        self.engine = engine
        self.past: Inputs = engine.read(inputs)
        self.sources = np.arange(self.rows)

    @property
    def rows(self) -> int:
        """How many texts are being written."""
        return len(self.past["attention_mask"])

    def step(self, ids: Array) -> Array:
        """Return the scores ``[rows, V]`` of the token after the newest of each row."""
        logits, self.past = self.engine.step({"input_ids": ids[:, None]}, self.past)
        return np.asarray(logits[:, -1], dtype=np.float32)

    def keep(self, rows: Array) -> None:
        """Go on with these rows; what was read of the sources stays where each row keeps its source."""
        before, self.sources = self.sources, self.sources[rows]
        moved = self.engine.widths if np.array_equal(before, self.sources) else self.past
        self.past |= {name: self.past[name].take(rows, axis=0) for name in moved}


def default_threads() -> int:
    """Return ``OMP_NUM_THREADS`` if it is a number of threads, else the physical cores (0: ask ONNX Runtime)."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isascii() and given.isdecimal() and len(given) < 6 and 0 < int(given) <= MOST_THREADS:
        return int(given)
    return usable_cores()


def usable_cores() -> int:
    """Return how many physical cores this process may use; 0 where the system does not tell."""
    try:
        cores = set()
        for cpu in os.sched_getaffinity(0):
            topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
            cores.add(tuple((topology / part).read_text() for part in ("physical_package_id", "core_id")))
        return len(cores)
    except (AttributeError, OSError):
        return 0
