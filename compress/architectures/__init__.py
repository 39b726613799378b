"""Custom architectures that transformers does not have; each registers itself with transformers when imported.

A module here defines a ``PretrainedConfig``, its ``PreTrainedModel`` classes and a
``teachers.anatomy.families.Family``, and registers all three, so that the Auto classes, saving, loading and
``TaskModel`` treat it like any other family.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.files.json_text import read_json
from teachers.anatomy.pooling import FIELD as POOLING

if TYPE_CHECKING:
    from eval.report.card import Form

ARCHITECTURES: dict[str, str] = {
    "compress-adapted": "compress.architectures.adaptor",
    "compress-adaptive-depth": "compress.architectures.adaptive_depth_network",
    "compress-answer-network": "compress.architectures.answer_network",
    "compress-bilstm": "compress.architectures.bilstm_network",
    "compress-early-exit": "compress.architectures.early_exit_network",
    "compress-k-bert": "compress.architectures.k_bert_network",
    "compress-states-head": "compress.architectures.states_head",
    "compress-static": "compress.architectures.static_network",
    "compress-token-pruning": "compress.architectures.token_pruning_network",
}
"""Model type in ``config.json`` -> the module that defines it."""


def prepare(folder: str | Path) -> None:
    """Import what defines the model in ``folder``, if it is one of ours; anything else is left to transformers."""
    file = Path(folder) / "config.json"
    try:
        model_type = read_json(file).get("model_type")
    except (OSError, ValueError, AttributeError):
        return  # the loader says what is wrong with it
    define(model_type)


def define(model_type: Any) -> None:
    """Import what defines a model type, if it is one of ours."""
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        import_module(ARCHITECTURES[model_type])


def form_of(config: Any) -> Form:
    """Return what loads a model with this config, as its card says it."""
    if config.model_type == "compress-adapted":
        return "module"
    if config.model_type == "compress-static" and hasattr(config, POOLING):
        return "static"
    return "compress" if config.model_type in ARCHITECTURES else "transformers"
