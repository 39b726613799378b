"""The layout of BEIR (Thakur et al. 2021, arXiv 2104.08663): documents, queries, and which answers which.

    corpus.jsonl      {"_id": "d1", "title": "Films", "text": "a warm film"}, one document a line
    queries.jsonl     {"_id": "q1", "text": "which film is warm?"}, one query a line
    qrels/train.tsv   query-id, corpus-id and score with tabs between them, below a line of headings; dev.tsv, test.tsv

A document with a score above 0 is relevant to its query, and one that is not judged is not.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eval.data.readers import read_jsonl
from eval.errors import UserError, few, quantity
from eval.files.paths import user_path
from eval.files.rows import NOT_UTF8, Row, text_lines
from eval.kinds.kind_registry import own_kinds
from eval.kinds.values import BadItemError, plain_text, shown
from eval.ranking.document_set import Corpus

logger = logging.getLogger(__name__)

CORPUS, QUERIES, JUDGEMENTS = "corpus.jsonl", "queries.jsonl", "qrels"
FILES: Mapping[str, tuple[str, ...]] = {"train": ("train",), "validation": ("dev", "validation"), "test": ("test",)}
"""Names of the file of judgements of each split."""
CHARACTERS = 20
"""Characters of a token that hardly any text has: one that has more for each token that is read is surely longer."""
USUAL_TOKENS = 512
"""Tokens that most embedders read, where the task leaves it to the model."""
NAMED = 3
"""Offenders that a message names."""


def is_beir(data: Any) -> bool:
    """Whether data is a folder in this layout: of documents and queries."""
    return isinstance(data, str | Path) and all((user_path(data) / name).is_file() for name in (CORPUS, QUERIES))


def searching_kind(kind: str) -> str | None:
    """Return the kind of task that searches documents with models of a kind, if one does.

    Examples:
        >>> searching_kind("embedding"), searching_kind("tagging")
        ('retrieval', None)
    """
    return next((own.name for own in own_kinds() if own.searches and kind in (own.name, *own.alike)), None)


def searched_as(data: Any, kind: str) -> str | None:
    """Return the kind as which data is read for a model of a kind if it is documents and queries, else None."""
    return searching_kind(kind) if is_beir(data) else None


def beir_rows(folder: Path) -> dict[str, list[Row]]:
    """Read a folder; everything in it is checked before anything is told.

    Queries that have no relevant document in any split, and documents and queries that stand twice under two ids, are
    counted in the log.

    Returns:
        By split, a row for each query with a relevant document: ``id``, ``text``, ``corpus`` and ``relevant``, the
        score of each judged document. ``unlabeled`` has the texts of all documents.

    Raises:
        UserError: With everything that is wrong.
    """
    problems = [f"{folder}: lacks {name}" for name in (CORPUS, QUERIES) if not (folder / name).is_file()]
    files = {
        split: folder / JUDGEMENTS / f"{name}.tsv"
        for split, names in FILES.items()
        for name in names
        if (folder / JUDGEMENTS / f"{name}.tsv").is_file()
    }
    if not files:
        problems.append(f"{folder}: lacks {JUDGEMENTS}/train.tsv, dev.tsv or test.tsv with the judgements of a split")
    if problems:
        raise UserError(
            *problems, "a retrieval task reads corpus.jsonl, queries.jsonl and qrels/*.tsv, as BEIR has them"
        )
    documents = _texts(folder / CORPUS, problems, titled=True)
    queries = _texts(folder / QUERIES, problems, titled=False)
    judged = {split: _judgements(file, queries, documents, problems) for split, file in files.items()}
    if problems:
        raise UserError(*problems)
    corpus = Corpus(list(documents), list(documents.values()))
    rows = {split: list(_queries(files[split], found, queries, corpus)) for split, found in judged.items()}
    _tell(folder, documents, queries, rows)
    return rows | {"unlabeled": [Row(f"{folder / CORPUS}: {name}", {"text": text}) for name, text in documents.items()]}


def tell_long(name: str, queries: Iterable[Mapping[str, Any]], most_tokens: int) -> None:
    """Tell how many documents are surely longer than what is read of them; their tokens are not counted for it.

    Args:
        name: What the log calls the data.
        queries: Examples, of which those with a ``corpus`` hold the documents.
        most_tokens: Tokens of a document that are read.
    """
    most = CHARACTERS * most_tokens
    for corpus in {query["corpus"] for query in queries if "corpus" in query}:
        if long := sum(len(text) > most for text in corpus.texts):
            logger.warning(
                "%s: %s of %s have more than %s characters, longer than the %s tokens that are read (max_length); "
                "the rest of each is truncated",
                name,
                f"{long:,}",
                quantity(len(corpus.texts), "document"),
                f"{most:,}",
                f"{most_tokens:,}",
            )


def qrels(queries: Iterable[Mapping[str, Any]]) -> str:
    """Return the file of judgements of queries."""
    judged = (f"{query['id']}\t{name}\t{grade}" for query in queries for name, grade in query["relevant"].items())
    return "\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n"


def _texts(file: Path, problems: list[str], *, titled: bool) -> dict[str, str]:
    """Return the text of each id, a title in front of it where such texts have one."""
    from eval.examples import with_title  # which needs numpy, and the help of the command line does without

    found: dict[str, str] = {}
    twice: list[str] = []
    bad: list[str] = []
    for row in read_jsonl(file):
        name, text = row.values.get("_id"), row.values.get("text")
        title = row.values.get("title") if titled else None
        name = str(name) if isinstance(name, int) and not isinstance(name, bool) else name
        if row.problem:
            bad.append(f"{row.where}: {row.problem}")
        elif lacking := [field for field in ("_id", "text") if field not in row.values]:
            there = ", ".join(map(repr, row.values)) or "no fields"
            bad.append(f"{row.where}: lacks {' and '.join(map(repr, lacking))}; there are {there}; rename them")
        elif not isinstance(name, str) or not name.strip():
            bad.append(f"{row.where}: '_id' must be a text, not {shown(name)}")
        elif not isinstance(text, str) or not isinstance(title, str | None):
            bad.append(f"{row.where}: 'text' and 'title' must be texts, not {shown(text)} and {shown(title)}")
        elif name in found:
            twice.append(name)
        else:
            try:
                found[name] = plain_text("text", with_title(text, title))
            except BadItemError as error:
                bad.append(f"{row.where}: {error}")
    problems += few(bad, NAMED, "bad line")
    if twice:
        problems.append(
            f"{file}: {quantity(len(twice), 'id')} given twice, {_such_as(twice)}; every id must be another one"
        )
    what = "queries" if file.name == QUERIES else "documents"
    empty = [name for name, text in found.items() if not text]
    if empty and len(empty) == len(found):
        problems.append(f"{file}: all {len(found):,} {what} have an empty 'text'; put their texts there")
    elif empty:
        logger.warning("%s: %d %s have no text, %s", file, len(empty), what, _such_as(empty))
    if not found and not bad:
        problems.append(f"{file}: is empty; put one JSON object with '_id' and 'text' a line into it")
    return found


def _judgements(
    file: Path, queries: Mapping[str, str], documents: Mapping[str, str], problems: list[str]
) -> dict[str, dict[str, float]]:
    """Return the score of each judged document of each query."""
    found: dict[str, dict[str, float]] = {}
    bad: list[str] = []
    unknown: dict[str, list[str]] = {QUERIES: [], CORPUS: []}
    for number, (where, line) in enumerate(text_lines(file)):
        if line is not None and not line.strip():
            continue
        query, document, score = _judgement(line)
        if score is None:
            if number or line is None or line.count("\t") != 2:  # else the first line has the headings
                bad.append(f"{where}: {_why(line)}")
            continue
        unknown[QUERIES] += [query] * (query not in queries)
        unknown[CORPUS] += [document] * (document not in documents)
        earlier = found.setdefault(query, {}).setdefault(document, score)
        if earlier != score:
            bad.append(f"{where}: says {score:g} of {query} and {document}, a line before it {earlier:g}")
    problems += few(bad, NAMED, "bad line")
    for beside, names in unknown.items():
        if names:
            problems.append(f"{file}: {quantity(len(names), 'line')} with an id that {beside} lacks, {_such_as(names)}")
    if not found and not bad:
        problems.append(f"{file}: has no judgements; expected query-id, corpus-id and score with tabs between them")
    elif not bad and not any(score > 0 for scores in found.values() for score in scores.values()):
        problems.append(f"{file}: names no relevant document; a document with a score above 0 is one")
    return found


def _judgement(line: str | None) -> tuple[str, str, float | None]:
    parts = [] if line is None else line.split("\t")
    try:
        score = float(parts[2]) if len(parts) == 3 else math.nan
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        return "", "", None
    return parts[0], parts[1], int(score) if score.is_integer() else score


def _why(line: str | None) -> str:
    return (
        NOT_UTF8 if line is None else f"expected query-id, corpus-id and a number with tabs between, not {shown(line)}"
    )


def _queries(
    file: Path, judged: Mapping[str, Mapping[str, float]], queries: Mapping[str, str], corpus: Corpus
) -> Iterator[Row]:
    for name, scores in judged.items():
        if any(score > 0 for score in scores.values()):
            values = {"id": name, "text": queries[name], "corpus": corpus, "relevant": dict(scores)}
            yield Row(f"{file}: {name}", values)


def _tell(
    folder: Path, documents: Mapping[str, str], queries: Mapping[str, str], rows: Mapping[str, list[Row]]
) -> None:
    """Tell how many documents and queries there are, and how many of them say nothing."""
    used = {row.values["id"] for found in rows.values() for row in found}
    logger.info("%s: %s documents, %s queries", folder, f"{len(documents):,}", f"{len(used):,}")
    if left := len(queries) - len(used):
        logger.warning("%s: queries without a relevant document, left out: %s", folder / QUERIES, f"{left:,}")
    for file, what, texts in ((CORPUS, "documents", documents), (QUERIES, "queries", queries)):
        copies = sum(count - 1 for count in Counter(texts.values()).values())
        if copies:
            logger.warning("%s: %s that are copies of another one: %s", folder / file, what, f"{copies:,}")


def _such_as(names: Iterable[str]) -> str:
    return f"such as {', '.join(map(repr, [*dict.fromkeys(names)][:NAMED]))}"
