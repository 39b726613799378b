"""The exports that a recipe asks for, in the folder of its run; one that is there and was made from the same stays."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from compress.engine.provenance import content_of, export_made_from
from compress.engine.run_folder import MODEL
from compress.export.runtime.manifest import MANIFEST, target_of
from eval.cost.machine import cpu_name
from eval.files.json_text import read_json
from eval.files.typed_json import json_digest
from eval.progress.stages import stage

if TYPE_CHECKING:
    from compress.artifact.artifact import Artifact
    from compress.engine.preparation import Prepared
    from compress.recipe import Recipe
    from eval.data.loading import Task
    from eval.inference import Predictor

logger = logging.getLogger("compress.engine.run_exports")


def runs_here(export: Path) -> bool:
    """Whether an export answers on this machine; what is made for the browser does so there."""
    from compress.export.targets.target_registry import library_of

    return library_of(target_in(export)) is not None


def loaded_exports(exports: Mapping[str, Path], prefix: str = "") -> dict[str, Predictor]:
    """Load the exports that answer on this machine, each with the threads of torch.

    Args:
        exports: Folders by name.
        prefix: What the name of each begins with.

    Returns:
        The loaded exports, by their names in ``exports``.
    """
    from compress.export.runtime.answering import Runtime

    threads = torch.get_num_threads()
    return {
        name: Runtime(at, threads, name=f"{prefix}{name}", spinning=False)
        for name, at in exports.items()
        if runs_here(at)
    }


def target_in(export: Path) -> str:
    """Return the target of an export, such as ``onnx``."""
    return target_of(read_json(export / MANIFEST))


def form_in(export: Path) -> str:
    """Return target and number format of an export, such as ``onnx-int8``."""
    manifest = read_json(export / MANIFEST)
    return f"{target_of(manifest)}{'-int8' if manifest['scheme'] == 'int8' else ''}"


def write_exports(recipe: Recipe, artifact: Artifact, prepared: Prepared, out: Path) -> dict[str, Path]:
    """Write every export that the recipe asks for, unless it is there and was made from the same model, data, settings.

    An export has to agree with its model on the examples that choose. The model lies in ``out`` too. int8 stands beside
    fp32, so that the two can be compared.
    """
    from compress.export.folder import export, in_8_bits
    from compress.export.targets.target_registry import FASTEST
    from compress.onnx_graph.float_graph import traced_once

    exports: dict[str, Path] = {}
    task, calibration = prepared.task, prepared.inputs.calibration
    examples = task.select if task is not None and len(task.select) else None
    content = content_of(out / MODEL)
    with traced_once():
        for block in recipe.export:
            target, settings = block.target, block.settings
            if target == FASTEST and task is not None:
                exports[target] = _fastest(recipe, artifact, task, settings, out / target)
                continue
            quantized = in_8_bits(target, artifact, settings.int8)
            wanted = {target: False} | ({f"{target}-int8": True} if quantized else {})
            for name, int8 in wanted.items():
                if name in exports:
                    continue
                exports[name] = folder = out / name
                how: dict[str, Any] = {"int8": int8, "name": f"{recipe.name} {name}", "agreement": settings.agreement}
                own: dict[str, Any] = {"options": settings.own()} if settings.own() else {}
                seen = None if examples is None else examples.digest
                ranges = {} if calibration is None or not int8 else {"calibration": calibration.digest}
                said = {"model": content, "examples": seen, "says": "chosen_on", **ranges, **how, **own}
                made_from = json_digest(said)
                if export_made_from(folder) != made_from:
                    given: dict[str, Any] = {"examples": examples or (), "calibration": calibration or ()}
                    with stage(name):
                        report = export(artifact, folder, target, made_from=made_from, **given, **how, **own)
                    for note in report.notes:
                        logger.info("%s: %s", name, note)
    return exports


def _fastest(recipe: Recipe, artifact: Artifact, task: Task, settings: Any, folder: Path) -> Path:
    """Write the fastest export for this machine, unless it is there and was chosen by the same data and settings."""
    from compress.export.tune import tune

    how = {"goal": settings.goal, "name": f"{recipe.name} {folder.name}"}
    how |= {} if settings.agreement is None else {"agreement": settings.agreement}
    data = {"select": task.select.digest, "train": task.train.digest}
    made_from = json_digest({"model": content_of(folder.parent / MODEL), "machine": cpu_name(), **data, **how})
    if export_made_from(folder) != made_from:
        with stage(folder.name):
            chosen = tune(artifact, folder, task, made_from=made_from, **how).chosen
        logger.info("%s: %s", folder.name, chosen.place)
    return folder
