"""Multiple choice as it is published: rows of SWAG and RACE become a text, its choices and the place of the right one.

SWAG: Zellers, Bisk, Schwartz, Choi 2018, arXiv 1808.05326. RACE: Lai, Xie, Liu, Yang, Hovy 2017, arXiv 1704.04683.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

from eval.files.rows import Row
from eval.kinds.values import group_name

NO_LABEL = (None, "", -1, "-1")
"""What stands in the place of a label that is kept secret, as in SWAG's test split."""


def choice_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows with the fields ``text``, ``choices`` and, where it is known, ``label``.

    A row of SWAG has ``sent1`` and ``sent2`` (or ``startphrase``, or ``text``), ``ending0``, ``ending1`` … and
    ``label``, a number. A row of RACE has an ``article`` with either ``question``, ``options`` and ``answer``, or
    ``questions``, ``options`` and ``answers``, one list or letter a question, and then it gives a row for each
    question. Any other row is yielded as it is.

    Args:
        rows: What a reader yielded.
    """
    for row in rows:
        if row.problem:
            yield row
        elif "article" in row.values:
            yield from _race(row)
        elif "ending0" in row.values:
            yield replace(row, values=_swag(row.values))
        else:
            yield row


def filled(question: str, option: str) -> str:
    """Return a question with an option in its blank (``_``), or behind it if it has none."""
    return re.sub("_+", lambda _: option, question) if "_" in question else f"{question} {option}".strip()


def _swag(values: Mapping[str, Any]) -> dict[str, Any]:
    names = takewhile(lambda name: values.get(name) is not None, (f"ending{number}" for number in count()))
    whole = "startphrase" if "startphrase" in values else "text"
    first, start = ("sent1", values.get("sent2") or "") if "sent1" in values else (whole, "")
    found = {"text": values.get(first), "choices": [_after(start, values[name]) for name in names]}
    return _labelled(found, values.get("label"))


def _after(start: Any, ending: Any) -> Any:
    """Return an ending behind the start of its sentence; what is no text stays, for the check to refuse it."""
    if not isinstance(start, str):
        return start
    return f"{start} {ending}".strip() if isinstance(ending, str) else ending


def _race(row: Row) -> Iterator[Row]:
    values = row.values
    if "questions" not in values:
        yield replace(row, values=_asked(values, values.get("question"), values.get("options"), values.get("answer")))
        return
    questions, options = values["questions"], values.get("options")
    answers = values.get("answers") or [None] * len(questions if isinstance(questions, list) else ())
    lists: list[Any] = [questions, options, answers]
    if not all(isinstance(each, list) and len(each) == len(questions) for each in lists):
        yield Row(row.where, problem="questions, options and answers must be lists with one item a question")
        return
    for number, (question, some, answer) in enumerate(zip(*lists, strict=True), start=1):
        yield Row(f"{row.where}: question {number}", _asked(values, question, some, answer))


def _asked(values: Mapping[str, Any], question: Any, options: Any, answer: Any) -> dict[str, Any]:
    fitting = isinstance(question, str) and isinstance(options, list) and all(isinstance(one, str) for one in options)
    choices = [filled(question, option) for option in options] if fitting else options
    article = values["article"]
    group = {"group": group_name(article)} if isinstance(article, str) else {}
    return _labelled({"text": article, "choices": choices, **group}, answer)


def _labelled(found: dict[str, Any], label: Any) -> dict[str, Any]:
    return found if label in NO_LABEL else found | {"label": label}
