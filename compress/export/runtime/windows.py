"""Any number of examples in bounded memory: a window at a time, in order, with work on later windows beside."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, TypeVar

from compress.export.targets.library import ExportError

Made = TypeVar("Made")
Part = TypeVar("Part")

WINDOW = 4096
"""Examples of a window: with so many of them, batches of similar length have hardly any padding."""
WINDOW_CHARACTERS = 4_000_000
"""Characters of a window; the example that reaches them is its last."""


@dataclass(frozen=True)
class Window:
    """Neighbouring examples.

    Attributes:
        first: Number of the first among all examples, from 1.
        items: Lines, or examples as mappings.
    """

    first: int
    items: list[str | Mapping[str, Any]]


def windows(items: Iterable[str | Mapping[str, Any]], most: int) -> Iterator[Window]:
    """Cut examples into windows of at most ``most``, less where they are long; each is read when it is asked for.

    Raises:
        ExportError: If it is a single example, or a table.
    """
    check_several(items)
    first, held, characters = 1, [], 0
    for item in items:
        held.append(item)
        characters += _characters(item)
        if len(held) == most or characters >= WINDOW_CHARACTERS:
            yield Window(first, held)
            first, held, characters = first + len(held), [], 0
    if held:
        yield Window(first, held)


def check_several(items: Any) -> None:
    """Refuse what gives characters, field names or column names one after another.

    Raises:
        ExportError: If it is a single example, or a table.
    """
    if isinstance(items, (str, bytes, Mapping)) or hasattr(items, "columns"):
        raise ExportError(
            f"expected several texts or examples, got {type(items).__name__}; give a list, such as ['a text'], or of a "
            "table the column with the texts"
        )


def _characters(item: Any) -> int:
    parts = item.values() if isinstance(item, Mapping) else [item]
    return sum(len(part) for part in parts if isinstance(part, (str, list)))


def in_order(pool: Executor, make: Callable[[Part], Made], source: Iterable[Part], ahead: int) -> Iterator[Made]:
    """Yield what is made of each part, in order, while the pool works on later ones.

    Parts are read in the caller's thread. An error comes in its turn, after what was made before.

    Args:
        pool: Threads or processes.
        make: What they do with a part.
        source: The parts.
        ahead: How many parts are read beyond the one that is waited for.
    """
    unread, waiting, more = iter(source), deque[Future[Made]](), True
    while more or waiting:
        while more and len(waiting) <= ahead:
            try:
                waiting.append(pool.submit(make, next(unread)))
            except StopIteration:
                more = False
            except Exception as error:
                waiting.append(Future())
                waiting[-1].set_exception(error)
                more = False
        if waiting:
            yield waiting.popleft().result()
