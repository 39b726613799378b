"""Facts of a knowledge graph from a file: subject, relation and object, with tabs between them, a fact a line."""

from __future__ import annotations

from pathlib import Path

from eval.errors import UserError, few, quantity
from eval.files.paths import near_path
from eval.files.rows import NOT_UTF8, text_lines

MOST = 500_000
"""Facts that are read at most: a model carries them in its config, an export in ``encoder.json``."""
SHOWN = 10
CELLS = ("subject", "relation", "object")


def read_triples(path: str | Path) -> tuple[str, ...]:
    """Return the facts of a file, each once, in the order of the file, with tabs between their three cells.

    Blank lines are left out, and so is white space around a cell. Files may be compressed (``.gz``).

    Raises:
        UserError: With every line that is no fact, or if there are no facts, or too many.
    """
    path = Path(path)
    facts: dict[str, None] = {}
    problems: list[str] = []
    try:
        for where, line in text_lines(path):
            if line is None:
                problems.append(f"{where}: {NOT_UTF8}")
            elif line.strip():
                cells = [" ".join(cell.split()) for cell in line.split("\t")]
                problems += [f"{where}: {why}"] if (why := _wrong(cells)) else []
                facts["\t".join(cells)] = None
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read: {reason}{'' if path.exists() else near_path(path)}") from error
    if problems:
        raise UserError(*few(problems, SHOWN, "bad line"))
    if not facts:
        raise UserError(f"{path}: holds no facts; write subject, relation and object a line, with tabs between them")
    if len(facts) > MOST:
        raise UserError(
            f"{path}: holds {len(facts):,} facts, at most {MOST:,} are read; keep those your texts are about"
        )
    return tuple(facts)


def _wrong(cells: list[str]) -> str:
    if len(cells) != len(CELLS):
        wanted = f"a fact has {len(CELLS)}: {', '.join(CELLS)}, with tabs between them"
        return f"has {quantity(len(cells), 'cell')}, and {wanted}"
    missing = [name for name, cell in zip(CELLS, cells, strict=True) if not cell]
    return f"has no {' and no '.join(missing)}" if missing else ""
