"""A model goes in, a smaller model comes out, and how it came to be is recorded and can be measured again."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from compress.shadowing import require_own_packages

require_own_packages(Path(__file__).parents[1])
__version__ = "0.1.0"

_PUBLIC = {
    "Artifact": "compress.artifact.artifact",
    "CompressError": "eval.errors",
    "DistillationTrainer": "compress.distill_trainer",
    "Inputs": "compress.technique",
    "Outcome": "compress.technique",
    "Recipe": "compress.recipe",
    "Student": "compress.student.student",
    "Technique": "compress.technique",
    "UserError": "eval.errors",
    "certify": "compress.certification.certifying",
    "load": "compress.artifact.artifact",
    "optimize": "compress.shortcuts.optimizing",
    "push_to_hub": "compress.publishing",
    "read_recipe": "compress.recipe",
    "recheck": "compress.certification.replaying",
    "recipe_to_yaml": "compress.recipe",
    "run": "compress.engine.steps",
    "run_recipe": "compress.engine.pipeline",
    "shrink": "compress.shortcuts.distilling",
}

__all__ = sorted([*_PUBLIC, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'compress' has no attribute {name!r}")
