"""Results that a run measured before: they are kept while nothing that they depend on has changed.

Timings differ from one measurement to the next, so a finished one is never repeated unasked. One that was interrupted
goes on with the models that had not answered, and the reference of many runs, such as their teacher, is asked once.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.engine.claim_file import digest_of_files, folders_of
from compress.engine.preflight import result_name
from compress.engine.run_folder import RESULTS
from eval.cost.machine import cpu_name
from eval.errors import UserError
from eval.files.home import home
from eval.files.typed_json import json_digest
from eval.files.writing import exclusive
from eval.result import RESULT_FILE, Result
from teachers.signals.model_teacher import ModelTeacher
from teachers.taskmodel import TaskModel

if TYPE_CHECKING:
    from eval.inference import Predictor
    from eval.measurement import Once

logger = logging.getLogger("compress.engine.kept_results")

SO_FAR = "results-so-far"
"""Folder of a run with what the models of a measurement under way have answered."""
ANSWERS = "answers"
"""Folder below ``COMPRESS_HOME`` with what references answered, by all that their answers depend on."""


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
    found = tuple(one for name in names if (one := _kept(out / RESULTS, name, made_from)) is not None)
    if len(found) < len(names):
        return None
    shutil.rmtree(out / SO_FAR, ignore_errors=True)  # a run that was killed may have left it
    logger.info(
        "measured on %s, and nothing has changed since; remove %s to measure again", found[0].created, out / RESULTS
    )
    return found


def answered_once(out: Path, made_from: str | None, answers_from: Mapping[str, str | None]) -> Once:
    """Return what finds the answers that a model gave to the same examples before, or asks for them.

    Args:
        out: Folder of the run.
        made_from: What ``measured_from`` returned.
        answers_from: Name of a model that other runs measure too -> what ``measured_from`` returned for it alone.
    """

    def once(name: str, asked: Callable[[], Result]) -> Result:
        if found := _kept(out / SO_FAR, name, made_from):
            logger.info("%s: answered before the measurement was interrupted", name)
            return found
        found = _of_any_run(name, answers_from.get(name), asked)
        return found if made_from is None else _keep(out / SO_FAR, found, made_from)

    return once


def _of_any_run(name: str, made_from: str | None, asked: Callable[[], Result]) -> Result:
    if made_from is None:
        return asked()
    place = home() / ANSWERS / made_from[:16]
    with exclusive(place):
        if found := _kept(place, name, made_from):
            logger.info("%s: answered these examples in another run; remove %s to ask again", name, place)
            return found
        return _keep(place, asked(), made_from)


def keep_results(out: Path, results: Sequence[Result], made_from: str | None) -> tuple[Result, ...]:
    """Write results into the folder of a run, remove those of other models, and return them as they stand there."""
    named = {result_name(result.name): result for result in results}
    for result in results:
        _keep(out / RESULTS, result, made_from)
    shutil.rmtree(out / SO_FAR, ignore_errors=True)
    for left in (out / RESULTS).iterdir():
        if left.name not in named and (left / RESULT_FILE).is_file():
            shutil.rmtree(left)
    return tuple(Result.load(out / RESULTS / name) for name in named)


def _keep(folder: Path, result: Result, made_from: str | None) -> Result:
    result = result.model_copy(update={"made_from": made_from})
    result.save(folder / result_name(result.name))
    return result


def _kept(folder: Path, name: str, made_from: str | None) -> Result | None:
    try:
        found = Result.load(folder / result_name(name))
    except UserError:
        return None
    return found if made_from is not None and (found.made_from, found.name) == (made_from, name) else None


def _identity(model: Any) -> str:
    """Return the digest of the files of a model; of one that lies in no folder, that of its content, if it has one."""
    if folders_of(model):
        return digest_of_files(model)
    if isinstance(model, TaskModel):  # its weights are not all: thresholds, say, were chosen on other examples
        return ModelTeacher(model).digest
    return str(getattr(model, "digest", ""))
