"""All levels of a check, one after the other; what is absent is named, and nothing is believed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.certificate.archive import DamagedError, read_bytes
from eval.certificate.certified_sentence import sentence
from eval.certificate.contents import Contents
from eval.certificate.files_and_data import ChosenOn, Splits, check_files_and_data
from eval.certificate.findings import EXIT_CODES, Finding, Report, Word
from eval.certificate.own_figures import check_own_figures
from eval.certificate.replay import Replay, check_cost, check_predictions, check_stress
from eval.certificate.signature import check_signature
from eval.errors import UserError, shortened

LEVELS = (1, 2, 3, 4)


def read_certificate(path: Path) -> Contents:
    """Return what a certificate holds; nothing of it is checked but its form.

    Raises:
        UserError: There is no such file.
        DamagedError: It is no certificate.
    """
    return Contents.from_bytes(read_bytes(path))


def recheck(
    path: str | Path,
    *,
    model: str | Path | None = None,
    teacher: str | Path | Sequence[str | Path] = (),
    splits: Splits | None = None,
    chosen_on: ChosenOn | None = None,
    replay: Replay | None = None,
    key: str | Path | None = None,
    level: int = LEVELS[-1],
) -> Report:
    """Check a certificate.

    Args:
        path: The file.
        model: Folder of the candidate.
        teacher: Folder of the teacher, or of each of several.
        splits: The examples by role.
        chosen_on: Reads what the models say they were trained and chosen on; ``compress recheck`` gives it.
        replay: What runs the models again, likewise.
        key: The public key of whoever should have signed it.
        level: The last level that is asked for: 1 statistics, 2 files and data, 3 predictions, 4 cost.

    Returns:
        What each level found. A level after one that contradicts the certificate is not run.

    Raises:
        UserError: A file or folder that was named is not there.
    """
    if level not in LEVELS:
        raise UserError(f"level: got {level}, allowed are 1 to {LEVELS[-1]}")
    path = Path(path)
    folders = [teacher] if isinstance(teacher, str | Path) else list(teacher)
    try:
        contents = read_certificate(path)
    except DamagedError as error:
        return Report((Finding(1, Word.INVALID, (shortened(f"{path.name}: {error}"),)),))
    found = [check_signature(path, None if key is None else Path(key)), check_own_figures(contents)]
    if level >= 2 and _stands(found):
        where = None if model is None else Path(model)
        found.append(check_files_and_data(contents, where, [Path(folder) for folder in folders], splits, chosen_on))
    if level >= 3 and _stands(found):
        found += _replayed(contents, replay, level)
    said = sentence(contents.main) if "test" in contents.main.data.parts else ""
    return Report(tuple(found), said)


def _replayed(contents: Contents, replay: Replay | None, level: int) -> list[Finding]:
    if replay is None:
        why = ("both models and the data are needed to run it again: --model, --teacher and --data",)
        return [Finding(number, Word.PARTIAL, why) for number in range(3, level + 1)]
    candidate, teacher = replay.candidate(), replay.teacher()
    found = [check_predictions(contents, candidate, teacher)]
    if contents.main.stress is not None and _stands(found):
        found = [check_stress(contents, replay.under_stress(contents.main.stress.seed))]
    if level >= 4 and _stands(found):
        found.append(check_cost(contents, candidate, teacher, replay))
    return found


def _stands(findings: Sequence[Finding]) -> bool:
    """Whether nothing contradicts the certificate so far."""
    return all(EXIT_CODES[finding.word] <= EXIT_CODES[Word.NOT_COMPARABLE] for finding in findings)
