"""The errors of the toolkit, and how a message names what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CompressError(Exception):
    """Something went wrong that is not the user's mistake: a full disk, a diverged training, a bug of ours.

    The command line prints the message and exits with ``exit_code``.
    """

    exit_code = 1


class UserError(CompressError):
    """One or more mistakes in a recipe, in data, in a model folder or in arguments; all of them at once.

    Args:
        problems: One sentence each: where, what was given, what is allowed, what to do.

    Attributes:
        problems: The same sentences, in order, without repeats.
    """

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(dict.fromkeys(problems))
        super().__init__("\n".join(self.problems))


class DivergedError(CompressError):
    """Training produced a loss that is not a number, or a model that collapsed."""


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest allowed name, or the list of names when none is near.

    Args:
        given: What the user wrote.
        allowed: The names that would have been accepted.
    """
    names = [str(name) for name in allowed]
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; allowed: {', '.join(sorted(names))}" if names else ""
