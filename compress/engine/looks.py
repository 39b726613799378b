"""How often a run has opened the split that reports, and for which models: ``looks.json`` in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from compress.engine.claim_file import read_claims, taken_over
from eval.errors import quantity
from eval.files.typed_json import read_values, typed
from eval.files.writing import atomic_write
from eval.ranking.indexed import indexed_name

if TYPE_CHECKING:
    from eval.inference import Predictor
    from eval.task import Examples

LOOKS_FILE = "looks.json"
NO_CLAIM = "none"
"""What a look that was taken over from a run that claimed nothing has for a claim."""


class Look(BaseModel):
    """One opening of the split that reports.

    Attributes:
        time: When, UTC.
        split: Its name.
        digest: SHA-256 of its examples.
        candidates: Digest of each model that was scored on it, by its name.
        claim: Digest of the claim that was fixed before (``eval.certificate.contents.Fixed``), or ``NO_CLAIM``.
    """

    time: str
    split: str
    digest: str
    candidates: dict[str, str]
    claim: str = ""


def read_looks(folder: Path) -> list[Look]:
    """Return the openings so far, oldest first.

    Raises:
        UserError: If the file is damaged.
    """
    file = folder / LOOKS_FILE
    if not file.is_file():
        return []
    restore = "it counts how often the test split was opened; restore it"
    found: list[Look] = typed(read_values(file, restore), list[Look], str(file), restore)
    return found


def look(folder: Path, split: str, examples: Examples, models: Sequence[Predictor], claim: str = "") -> list[Look]:
    """Write down that a split is opened to score these models, of which the reference is none; return all openings."""
    candidates = {model.name: _digest(model) for model in models}
    time = datetime.now(UTC).isoformat(timespec="seconds")
    now = Look(time=time, split=split, digest=examples.digest, candidates=candidates, claim=claim)
    looks = [*read_looks(folder), now]
    _write(looks, folder)
    return looks


def look_again(place: Path, split: str, examples: Examples, models: Sequence[Predictor]) -> str:
    """Count that the examples by which a run reports are opened once more, outside of the run.

    Args:
        place: Folder of a model or an export; it is counted if it stands in the folder of a run.
        split: Name of the split that is opened.
        examples: Those of it that are scored.
        models: What is scored.

    Returns:
        How often they have been opened by now; empty where none of a run's are.

    Raises:
        UserError: If the run's file is damaged.
    """
    folder = place.resolve().parent
    if all(one.digest != examples.digest for one in read_looks(folder)):
        return ""
    claim = next((fixed.digest for fixed in reversed(read_claims(folder))), "")
    try:
        return told(look(folder, split, examples, models, claim))
    except OSError as error:
        return f"This look at the split {split} could not be counted in {folder / LOOKS_FILE} ({error})."


def carry_looks(run: Path, out: Path) -> None:
    """Count the openings of another run as those of a run that takes over its steps: what they showed chose its recipe.

    Args:
        run: Folder of the other run.
        out: Folder of the run that takes over.

    Raises:
        UserError: If a file is damaged.
    """
    earlier = [one.model_copy(update={"claim": one.claim or NO_CLAIM}) for one in read_looks(run)]
    if merged := taken_over(earlier, read_looks(out)):
        _write(merged, out)


def told(looks: Sequence[Look]) -> str:
    """Return how often the split that was opened last has been opened, and for how many models; equal ones count once.

    Examples:
        >>> first = Look(time="", split="test", digest="3f", candidates={"small": "a0"})
        >>> again = Look(time="", split="test", digest="3f", candidates={"small": "a0", "smaller": "77"})
        >>> told([first, again])
        'The split test was opened 2 times, for 2 candidates.'
    """
    if not looks:
        return ""
    same = [one for one in looks if one.digest == looks[-1].digest]
    models = {digest for one in same for digest in one.candidates.values()}
    often = "once" if len(same) == 1 else f"{len(same):,} times"
    many = quantity(len(models), "candidate")
    return f"The split {looks[-1].split} was opened {often}, for {many}."


def _write(looks: Sequence[Look], folder: Path) -> None:
    rows = [one.model_dump() for one in looks]
    atomic_write(folder / LOOKS_FILE, (json.dumps(rows, indent=1) + "\n").encode())


def _digest(model: Predictor) -> str:
    """Return what tells a model from others: the digest of its weights, or of an export's manifest, and its index."""
    manifest, index = getattr(model, "manifest", None), getattr(model, "index", None)
    digest = str(getattr(model, "digest", "") if manifest is None else manifest.get("digest", ""))
    return digest if index is None else indexed_name(digest, index)
