"""The errors of the toolkit, and how a message names what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

LONGEST = 2_000
"""Characters of one sentence of a message."""
MOST_COMPARED = 1000
"""Allowed names among which the nearest is looked for; each costs time."""
SHOWN = 10
"""Allowed names that a message lists where there are more than that."""
LONGEST_NAME = 200
"""Characters of a name that are compared."""
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory", "bad_alloc")


def shortened(text: str) -> str:
    """Return a sentence without its middle if it is longer than anyone would read: its end says what to do."""
    if len(text) <= LONGEST:
        return text
    kept = LONGEST // 3
    return f"{text[:kept]} … ({len(text) - 2 * kept:,} characters left out) … {text[-kept:]}"


class CompressError(Exception):
    """Something went wrong that is not the user's error: a full disk, a diverged training, a bug of ours.

    The command line prints the message and exits with ``exit_code``.
    """

    exit_code = 1


class UserError(CompressError):
    """One or more errors in a recipe, in data, in a model folder or in arguments; all of them at once.

    Args:
        problems: One sentence each: where, what was given, what is allowed, what to do.

    Attributes:
        problems: The same sentences, in order, without repeats, each short enough to be read.
    """

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(dict.fromkeys(map(shortened, problems)))
        super().__init__("\n".join(self.problems))


class MissingLibraryError(UserError):
    """A library that is not installed; the message says how to install it."""


class DivergedError(CompressError):
    """Training produced a loss that is not a number, or a model that collapsed."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that there was not enough memory, whatever library found it out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest allowed name, or the list of names when none is near.

    Args:
        given: What the user wrote.
        allowed: The names that would have been accepted.
    """
    names = [str(name) for name in allowed]
    if len(names) > MOST_COMPARED:
        return f"; allowed: {', '.join(sorted(names)[:SHOWN])} and {len(names) - SHOWN:,} more"
    if near := nearest(given, names):
        return f"; did you mean {near!r}?"
    return f"; allowed: {', '.join(sorted(names))}" if names else ""


def nearest(given: str, names: Sequence[str], likeness: float = 0.6) -> str | None:
    """Return the name that is nearest to what was given; None if none is near, or if there are too many to compare.

    Args:
        given: What the user wrote.
        names: Those that there are.
        likeness: The least ratio of ``difflib`` that is near, 0 to 1.
    """
    if len(names) > MOST_COMPARED:
        return None
    return next(iter(difflib.get_close_matches(str(given)[:LONGEST_NAME], names, n=1, cutoff=likeness)), None)


def quantity(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun, which stands in the singular after 1.

    Args:
        number: How many.
        one: The noun in the singular.
        several: The noun in the plural; by default with an s.

    Examples:
        >>> quantity(1, "cell"), quantity(2000, "cell"), quantity(0, "query", "queries")
        ('1 cell', '2,000 cells', '0 queries')
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def few(sentences: Sequence[str], most: int, what: str, cure: str = "") -> list[str]:
    """Return the first sentences, and one that says how many more there are.

    Args:
        sentences: All of them.
        most: How many are returned.
        what: What each is about, in the singular.
        cure: What is added where there are more.

    Examples:
        >>> few(["line 1: is empty", "line 2: is empty", "line 3: is empty"], most=1, what="bad line")
        ['line 1: is empty', '... and 2 more bad lines']
    """
    more = len(sentences) - most
    return [*sentences[:most], *([f"... and {quantity(more, f'more {what}')}{cure}"] if more > 0 else [])]
