"""Which column of somebody's table holds what: usual names are known, and what is left over is taken if it is alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eval.errors import UserError, quantity
from eval.examples import TEXT, TEXTS
from eval.kinds.kind import Kind

PAIRS = (
    *(("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("sentence_a", "sentence_b"), ("text1", "text2")),
    *(("premise", "hypothesis"), ("question1", "question2"), ("question", "sentence"), ("question", "passage")),
    *(("query", "passage"), ("query", "document"), ("anchor", "positive")),
    *(("title", "body"), ("title", "content"), ("title", "description"), ("headline", "body")),
)
"""Columns that hold the two texts of a pair, where both are there."""
USUAL: Mapping[str, Sequence[str]] = {
    "text": (
        *("sentence", "review", "comment", "content", "body", "message", "tweet", "utterance", "document"),
        *("question", "query", "headline", "title", "description", "input"),
    ),
    "label": (
        *("labels", "target", "class", "category", "sentiment", "intent", "emotion", "topic", "polarity"),
        *("score", "rating", "similarity", "similarity_score", "relatedness", "output", "answer", "y"),
    ),
    "labels": (
        *("label", "classes", "categories", "emotions", "topics", "tags", "genres", "targets"),
        *("class", "category", "emotion", "topic", "target"),
    ),
    "tokens": ("words",),
    "tags": ("ner_tags", "pos_tags", "labels", "ner", "label"),
    "context": ("passage", "paragraph"),
    "source": ("src", "input", "text", "document", "article", "body", "question"),
    "target": ("tgt", "output", "summary", "translation", "title", "headline", "subject", "answer"),
}
"""Usual names of the columns for our fields, the likeliest first."""
NUMBERS = ("", "id", "idx", "index", "uid", "guid", "group", "unnamed: 0")
"""Columns that number or group rows, and say nothing of them."""


def usual_column(field: str, names: Iterable[str]) -> str | None:
    """Return the column that holds a field under our own name or a usual one; None if there is none."""
    there = {name.strip().lower(): name for name in names}
    return next((there[name] for name in (field, *USUAL.get(field, ())) if name in there), None)


def matched_columns(
    kind: Kind, names: Iterable[str], given: Mapping[str, str], labelled: bool, alone: bool = True
) -> dict[str, str]:
    """Return the column of each field that does not stand in a table under our own name.

    Args:
        kind: Kind of task.
        names: Columns of the table.
        given: Columns that were named; they are kept.
        labelled: Whether the truth is wanted.
        alone: Whether a single column that is left over is taken for a single field that is.

    Examples:
        >>> from eval.kinds.kind_registry import kind_of
        >>> matched_columns(kind_of("classification"), ["Review", "stars"], {}, labelled=True)
        {'text': 'Review', 'label': 'stars'}
    """
    there = {name.strip().lower(): name for name in names}
    found = dict(given)
    fields = {field: found.get(field, field) for field in kind.fields}
    wanted = kind.inputs({field: column for field, column in fields.items() if column in there.values()})
    lacking = [field for field in wanted if fields[field] not in there.values() and field not in given]

    def free(name: str) -> bool:
        return name in there and there[name] not in found.values()

    if lacking == list(TEXT) and set(TEXTS) <= set(kind.fields):
        pair = next((pair for pair in PAIRS if all(map(free, pair))), None)
        if pair is not None:
            found |= {field: there[name] for field, name in zip(TEXTS, pair, strict=True)}
            lacking = []
    if labelled and kind.truth is not None and kind.truth not in given and kind.truth not in there.values():
        lacking.append(kind.truth)
    for field in list(lacking):
        name = next(filter(free, USUAL.get(field, ())), None)
        if name is not None:
            found[field] = there[name]
            lacking.remove(field)
    rest = left_over(kind, there.values(), found.values())
    if alone and len(lacking) == len(rest) == 1:
        found[lacking[0]] = rest[0]
    return found


def left_over(kind: Kind, names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Return the columns that hold no field of a kind, and may hold more than numbers of rows.

    Args:
        kind: Kind of task.
        names: Columns of the table.
        taken: Those that hold a field under another name than ours.

    Examples:
        >>> from eval.kinds.kind_registry import kind_of
        >>> left_over(kind_of("classification"), ["Review", "id", "stars", "label"], ["Review"])
        ['stars']
    """
    told = {*taken, *kind.fields, *kind.group_columns}
    return [name for name in names if name not in told and name.strip().lower() not in NUMBERS]


def named_columns(kind: Kind, text: str | Sequence[str] | None, label: str | None) -> dict[str, str]:
    """Return the columns that a user named, by our fields.

    Args:
        kind: Kind of task.
        text: The column with the text; two for a pair.
        label: The column with the label.

    Raises:
        UserError: The kind reads another number of texts, or has no labels.

    Examples:
        >>> from eval.kinds.kind_registry import kind_of
        >>> named_columns(kind_of("classification"), ("claim", "evidence"), "verdict")
        {'text_a': 'claim', 'text_b': 'evidence', 'label': 'verdict'}
    """
    texts = [text] if isinstance(text, str) else list(text or ())
    fields = kind.given(pair=len(texts) == 2)
    if texts and len(fields) != len(texts):
        raise UserError(f"text: {kind.named} task reads {' and '.join(fields)}; name {quantity(len(fields), 'column')}")
    found = dict(zip(fields, texts, strict=True)) if texts else {}
    if label is not None:
        if kind.truth is None:
            raise UserError(f"label: {kind.named} task has no labels; leave it out")
        found[kind.truth] = label
    return found


def column_options(kind: Kind) -> dict[str, str]:
    """Return the option of a command that names the column of a field, for each field that has one.

    Examples:
        >>> from eval.kinds.kind_registry import kind_of
        >>> column_options(kind_of("classification"))
        {'text': '--text', 'text_a': '--text', 'text_b': '--text', 'label': '--label'}
    """
    texts = {field: "--text" for pair in (False, True) for field in kind.given(pair)}
    return texts if kind.truth is None else {**texts, kind.truth: "--label"}


def column_words(kind: Kind, columns: Mapping[str, str]) -> list[str] | None:
    """Return the words of a command that name columns as ``named_columns`` reads them; None if no options can.

    Examples:
        >>> from eval.kinds.kind_registry import kind_of
        >>> column_words(kind_of("classification"), {"label": "team", "text": "message"})
        ['--text', 'message', '--label', 'team']
    """
    options = column_options(kind)
    if columns.keys() - options.keys():
        return None
    texts = [columns[field] for field in kind.given(pair="text_b" in columns) if field in columns]
    label = columns.get(kind.truth or "")
    try:
        read = named_columns(kind, texts, label)
    except UserError:  # one text of two
        return None
    words = [word for name in texts for word in ("--text", name)]
    words += [] if label is None else ["--label", label]
    return words if read == columns else None
