"""Several batches at a time, each on a thread of its own: nothing waits for the slowest thread of every product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

from compress.export.runtime.windows import in_order
from compress.export.targets.library import Engine
from eval.encoding import Inputs

Found = TypeVar("Found")

BATCH_TOKENS = 512
"""Most tokens of a batch for each thread: with more, what a layer passes on no longer fits into a core's cache."""
CALL_TOKENS = 24
"""What a call costs beside its tokens, in tokens of a thread: 8 bits in ONNX Runtime have 16, in OpenVINO 32."""
BATCHES_BEFORE = 16
"""Batches for each thread before which the network is not loaded once more: a short run would not earn it."""
BATCHES_TOGETHER = 1
"""Batches for each thread that texts given together must make."""


def worth_it(tokens: int, before: int, threads: int) -> bool:
    """Return whether threads with batches of their own pay for these texts.

    Args:
        tokens: Of the texts given together.
        before: Tokens that the same model answered before.
        threads: How many there are.

    Examples:
        >>> worth_it(3_000, 0, 2), worth_it(3_000, 14_000, 2), worth_it(1_000, 14_000, 2), worth_it(17_000, 0, 2)
        (False, True, False, True)
    """
    batch = BATCH_TOKENS * threads
    return tokens >= BATCHES_TOGETHER * batch and before + tokens >= BATCHES_BEFORE * batch


def engines_for_threads(engine: Engine, threads: int) -> list[Engine]:
    """Return an engine for each thread, of the same network; none if there is one thread or the library cannot."""
    several: Callable[[int], Sequence[Engine]] | None = getattr(engine, "for_threads", None)
    return list(several(threads)) if several is not None and threads > 1 else []


def on_threads(
    engines: Sequence[Engine], run: Callable[[Engine, Inputs], Found], batches: Iterable[Inputs]
) -> Iterator[Found]:
    """Yield what comes of each batch, in order, while other threads work on the next ones.

    Args:
        engines: One for each thread.
        run: Runs a batch on one of them.
        batches: Are read, or made, in the caller's thread.
    """
    free: SimpleQueue[Engine] = SimpleQueue()
    for engine in engines:
        free.put(engine)

    def answer(inputs: Any) -> Found:
        engine = free.get()
        try:
            return run(engine, inputs)
        finally:
            free.put(engine)

    with ThreadPoolExecutor(len(engines)) as pool:
        yield from in_order(pool, answer, batches, 2 * len(engines))
