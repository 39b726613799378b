"""Checks of single values of an item of data, and of its label."""

from __future__ import annotations

import ast
import hashlib
import io
import math
import tokenize
from collections.abc import Mapping, Sequence
from typing import Any

from eval.errors import did_you_mean

SHOWN_LABELS = 10
"""Allowed labels that a message names."""
MOST_HINTS = 100
"""Unknown labels for which the nearest allowed one is looked for."""


class BadItemError(Exception):
    """An item that cannot be used; the message says why, without its place."""


class LabelReader:
    """Reads the labels of one data set.

    Args:
        label_map: New name of each label in the files, or its number where a number is asked for; others stay.
    """

    def __init__(self, label_map: Mapping[str, str]) -> None:
        self.label_map = label_map
        self._allowed: Sequence[str] | None = None
        self._known: frozenset[str] = frozenset()
        self._hints = 0

    @property
    def allowed(self) -> Sequence[str] | None:
        """Labels that are allowed; None allows all."""
        return self._allowed

    @allowed.setter
    def allowed(self, labels: Sequence[str] | None) -> None:
        self._allowed, self._known = labels, frozenset(labels or ())

    def score(self, value: Any) -> float:
        """Return a finite number, or the one that a label's name stands for.

        Raises:
            BadItemError: It is none.
        """
        return finite_number(self._numbered(value))

    def _numbered(self, value: Any) -> Any:
        """Return the number that a label's name stands for; the value itself if ``label_map`` does not name it."""
        given = self.label_map.get(value) if isinstance(value, str) else None
        if given is None:
            return value
        try:
            return float(given)
        except ValueError:
            raise BadItemError(f"label_map gives {value!r} the name {given!r}, which must be a number") from None

    def label(self, value: Any) -> str:
        """Return the name of a label, renamed; a truth value is named ``True`` or ``False``, as in a table of text.

        Raises:
            BadItemError: It is no name or number, or is not allowed.
        """
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, (str, int)):
            raise BadItemError(f"a label must be a string or a whole number, not {shown(value)}")
        name = plain_text("label", str(value))
        name = self.label_map.get(name, name)
        if not name.strip():
            raise BadItemError("a label must not be empty")
        if self.allowed is not None and name not in self._known:
            self._hints += 1
            hint = _nearest(name, self.allowed) if self._hints <= MOST_HINTS else ""
            raise BadItemError(f"unknown label {shown(name)}{hint}")
        return name


def _nearest(name: str, labels: Sequence[str]) -> str:
    near = did_you_mean(name, labels)
    if near.startswith("; did") or len(labels) <= SHOWN_LABELS:
        return near
    return f"; allowed: {', '.join(labels[:SHOWN_LABELS])} and {len(labels) - SHOWN_LABELS} more"


def plain_text(name: str, value: Any) -> str:
    """Return a text that UTF-8 can hold.

    Args:
        name: Of its field.
        value: As it was read.

    Raises:
        BadItemError: It is none.
    """
    if not isinstance(value, str):
        raise BadItemError(f"{name!r} must hold text, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadItemError(f"{name!r} holds half of a surrogate pair, which no UTF-8 text can hold") from None
    return value


def group_name(text: str) -> str:
    """Return the name of the group of examples that are about one text: the beginning of its SHA-256."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def finite_number(value: Any) -> float:
    """Return a finite number.

    Raises:
        BadItemError: It is none.
    """
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, (int, float)) else float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise BadItemError(f"'label' must be a finite number, not {shown(value)}")
    return number


def written_number(cell: str) -> Any:
    """Return the number that a cell of a text table is; the cell itself if it is none."""
    if "_" in cell:  # which float() would take
        return cell
    try:
        return float(cell)
    except ValueError:
        return cell


def written_list(cell: str) -> list[Any] | None:
    """Return the strings and numbers of a list as Python, JSON or NumPy writes it; None if a cell is none.

    Examples:
        >>> written_list("['EU', 'rejects']"), written_list("['EU' 'rejects']"), written_list('[1 -0.5]')
        (['EU', 'rejects'], ['EU', 'rejects'], [1, -0.5])
        >>> written_list("EU rejects"), written_list("[EU] rejects [it]")
        (None, None)
    """
    text = cell.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return None
    found: list[Any] = []
    sign = ""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text[1:-1].replace("\n", " ")).readline):
            if token.type in (tokenize.STRING, tokenize.NUMBER):
                found.append(ast.literal_eval(sign + token.string))
                sign = ""
            elif token.string == "-" and not sign:
                sign = "-"
            elif sign or token.string.strip() not in ("", ","):
                return None
    except (tokenize.TokenError, SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    return found if not sign and all(isinstance(one, str | int | float) for one in found) else None


def shown(value: Any) -> str:
    """Return a value as a message shows it, on 60 characters at most."""
    try:
        text = repr(value)
    except RecursionError:
        return "a value that is nested too deeply"
    return text if len(text) <= 60 else text[:57] + "..."
