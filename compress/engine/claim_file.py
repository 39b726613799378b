"""The claim of a run, written down before the split that reports is opened: ``claim.json`` in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from eval.certificate.canonical import canonical
from eval.certificate.contents import Claim, Fixed, files_digest
from eval.certificate.model_files import model_files
from eval.certificate.typed_values import WrongTypeError
from eval.certificate.typed_values import read as read_as
from eval.errors import UserError
from eval.files.typed_json import read_values
from eval.files.writing import atomic_write
from eval.measurement import CONFIDENCE
from eval.proof.paired_predictions import method_for

if TYPE_CHECKING:
    from eval.task import Examples, TaskSpec

CLAIM_FILE = "claim.json"
Dated = TypeVar("Dated", bound=Any)
"""A claim or a look, which has a ``time``."""


def claim_of(spec: TaskSpec, examples: Examples, split: str, margin: float, seed: int) -> Claim:
    """Return what an evaluation claims.

    Args:
        spec: What is asked.
        examples: Those that report.
        split: Their name.
        margin: Loss that is allowed.
        seed: Which examples are put together where there are too many to leave out each.
    """
    grouped = examples.groups is not None
    return Claim(
        metric=spec.metric,
        margin=float(margin),
        confidence=CONFIDENCE,
        method=method_for(grouped),
        correction="none",
        groups=grouped,
        seed=seed,
        split=split,
        digest=examples.digest,
    )


def fix_claim(out: Path, claim: Claim, reference: Any, models: Sequence[Any]) -> Fixed:
    """Write a claim down, with the digests of the files of its models; one that stands there already is left alone.

    Args:
        out: Folder of the run.
        claim: The claim.
        reference: What the models are held against.
        models: Those that will be looked at; one that lies in no folder cannot be certified, and is left out.

    Returns:
        The claim as it was first fixed.
    """
    known = read_claims(out)
    digests = {model.name: digest_of_files(model) for model in (*models, reference) if folders_of(model)}
    now = Fixed(datetime.now(UTC).isoformat(timespec="seconds"), claim, str(reference.name), digests)
    for earlier in known:
        if replace(earlier, time=now.time) == now:
            return earlier
    _write([*known, now], out)
    return now


def carry_claims(run: Path, out: Path) -> None:
    """Count the claims of another run as those of a run that takes over its steps: they were made of the same data.

    Args:
        run: Folder of the other run.
        out: Folder of the run that takes over.

    Raises:
        UserError: If a file is damaged.
    """
    if merged := taken_over(read_claims(run), read_claims(out)):
        _write(merged, out)


def taken_over(earlier: Sequence[Dated], own: Sequence[Dated]) -> list[Dated]:
    """Return what a run has by itself and takes over from another one, by time; nothing if it has all of it already."""
    carried = [one for one in earlier if one not in own]
    return sorted([*carried, *own], key=lambda one: one.time) if carried else []


def read_claims(out: Path) -> list[Fixed]:
    """Return all claims of a run, oldest first; none if it fixed none.

    Raises:
        UserError: The file is damaged.
    """
    file = out / CLAIM_FILE
    if not file.is_file():
        return []
    cure = "it says what was claimed before the test split was opened; restore it"
    values = read_values(file, cure)
    try:
        return [read_as(row, Fixed) for row in (values if isinstance(values, list) else [values])]
    except WrongTypeError as error:
        raise UserError(f"{file}: {error}; {cure}") from error


def _write(claims: Sequence[Fixed], out: Path) -> None:
    atomic_write(out / CLAIM_FILE, canonical([asdict(fixed) for fixed in claims]) + b"\n")


def folders_of(model: Any) -> list[Path]:
    """Return the folder that a model lies in, or those of the members of an ensemble; none if it lies in memory."""
    members = [teacher.model for teacher in getattr(model, "teachers", ())] or [model]
    folders = [getattr(member, "folder", None) for member in members]
    return [Path(folder) for folder in folders if folder is not None] if all(folders) else []


def digest_of_files(model: Any) -> str:
    """Return the digest of all files of a model that lies in folders."""
    return files_digest(model_files(folders_of(model)))
