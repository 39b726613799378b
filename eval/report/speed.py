"""Speedups in words, each with the name and the engine of its reference."""

from __future__ import annotations

from eval.cost.timing import Median
from eval.result_values import ResultValues


def speed_sentence(result: ResultValues, batch: int = 1) -> str:
    """Return the speedup over each reference, or why there is none; empty if nothing was timed beside the model.

    The references are the own export, for the same engine and number format, of what the model was compared with, and
    that model itself. The first shows what compression brings apart from the engine.
    """
    known = [(name, found) for name in references(result) if (found := result.speed_over(name, batch))]
    if known:
        said = " and ".join(f"{found.value:.1f} over {engine_of(result, name)}" for name, found in known)
        return f"speedup {said} at batch size {batch}"
    for name in references(result):
        threads = [row.threads for row in result.latency if row.batch == batch and row.name in (result.name, name)]
        if len(set(threads)) > 1 and None not in threads:
            return f"no speedup over {name}, which ran with another number of threads"
    return ""


def engine_of(result: ResultValues, name: str) -> str:
    """Return a model's name with what ran it, such as ``teacher (eager torch)``."""
    engine = next((row.engine for row in result.latency if row.name == name and row.engine), None)
    return f"{name} ({engine})" if engine else name


def speed_interval(found: Median) -> str:
    """Return the interval of a speedup with its coverage, such as ``2.0 to 2.3 (96%)``; empty where there is none."""
    return f"{found.low:.2f} to {found.high:.2f} ({100 * found.coverage:.0f}%)" if found.coverage else ""


def references(result: ResultValues) -> list[str]:
    """Return what the model is held against, the reference in the same engine first."""
    compared = None if result.comparison is None else result.comparison.reference
    return [name for name in (result.same_engine, compared) if name]
