"""Results that a run measured before: they are kept while nothing that they depend on has changed.

Timings differ from one measurement to the next, so a finished one is never repeated unasked.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.engine.claim_file import digest_of_files, folders_of
from compress.engine.preflight import result_name
from compress.engine.run_folder import RESULTS
from eval.cost.machine import cpu_name
from eval.errors import UserError
from eval.files.typed_json import json_digest
from eval.result import RESULT_FILE, Result

if TYPE_CHECKING:
    from eval.inference import Predictor

logger = logging.getLogger("compress.engine.kept_results")


def measured_from(models: Sequence[Predictor], **how: Any) -> str | None:
    """Return the digest of all that a measurement depends on; None if a model cannot be recognised later.

    Models are measured together, so one that changed, came or went makes it another measurement, as does another
    processor.

    Args:
        models: All that are measured, the reference first.
        how: The examples and the settings, as plain JSON values.
    """
    known = [[model.name, _identity(model)] for model in models]
    if not all(identity for _, identity in known):
        return None
    return json_digest({"models": known, "cpu": cpu_name(), **how})


def kept_results(out: Path, names: Sequence[str], made_from: str | None) -> tuple[Result, ...] | None:
    """Return the results of the very measurement that is asked for; None unless all of them are there.

    Args:
        out: Folder of the run.
        names: Of the models, in order.
        made_from: What ``measured_from`` returned.
    """
    try:
        found = tuple(Result.load(out / RESULTS / result_name(name)) for name in names)
    except UserError:
        return None
    if made_from is None or any(
        (one.made_from, one.name) != (made_from, name) for one, name in zip(found, names, strict=True)
    ):
        return None
    logger.info(
        "measured on %s, and nothing has changed since; remove %s to measure again", found[0].created, out / RESULTS
    )
    return found


def keep_results(out: Path, results: Sequence[Result], made_from: str | None) -> tuple[Result, ...]:
    """Write results into the folder of a run, remove those of other models, and return them as they stand there."""
    named = {result_name(result.name): result for result in results}
    for name, result in named.items():
        result.model_copy(update={"made_from": made_from}).save(out / RESULTS / name)
    for left in (out / RESULTS).iterdir():
        if left.name not in named and (left / RESULT_FILE).is_file():
            shutil.rmtree(left)
    return tuple(Result.load(out / RESULTS / name) for name in named)


def _identity(model: Any) -> str:
    """Return the digest of the files of a model; of one that lies in no folder, that of its weights, if it has one."""
    return digest_of_files(model) if folders_of(model) else str(getattr(model, "digest", ""))
