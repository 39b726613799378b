"""From the states of tokens to one vector a text, and how a model folder says which vector it means.

What a network does is written into its config, as labels are; beside it, a saved folder has the files in which the
sentence-transformers library looks for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

from eval.errors import UserError
from eval.files.json_text import read_json
from eval.task import TaskSpec
from teachers.anatomy.encoder import classifier_place, max_tokens, shape_of

FIELD = "sentence_vector"
"""The field of a transformers config that says how states become a vector."""
MODES = {"mean": "mean", "cls": "first"}
"""Name of a pooling in sentence-transformers -> our name."""
FLAGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
"""The same as flags, which older versions write and all read."""
MODULES = "sentence_transformers.models"


def set_pooling(config: Any, task: TaskSpec) -> None:
    """Write into a transformers config how a text's vector is made."""
    setattr(config, FIELD, {"pooling": task.pooling, "normalize": task.normalize})


def pooled(states: Tensor, mask: Tensor, config: Any) -> Tensor:
    """Return the vectors of texts, ``[B, d]``.

    Args:
        states: Last hidden states, ``[B, L, d]``.
        mask: 1 for real tokens, ``[B, L]``.
        config: A config that ``set_pooling`` has seen.
    """
    told = getattr(config, FIELD)
    if told["pooling"] == "first":
        vectors = states[:, classifier_place(config)]
    else:
        weights = mask.unsqueeze(-1).to(states.dtype)
        vectors = (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
    return F.normalize(vectors, dim=-1) if told["normalize"] else vectors


def said_by(folder: Path) -> dict[str, Any] | None:
    """Return ``pooling`` and ``normalize`` as a sentence-transformers folder says it; None if it is no such folder.

    Raises:
        UserError: If the folder pools in a way that the toolkit does not.
    """
    if not (folder / "modules.json").is_file():
        return None
    try:
        modules = read_json(folder / "modules.json")
        kinds = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in modules}
        file = folder / kinds.get("Pooling", "1_Pooling") / "config.json"
        chosen = _chosen(read_json(file))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}: modules.json and the pooling it names cannot be read ({error})") from error
    extra = sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"})
    if len(chosen) != 1 or chosen[0] not in MODES or extra:
        found = ", ".join([*chosen, *extra]) or "no pooling"
        raise UserError(f"{folder}: makes its vectors by {found}; supported are the mean and the first token alone")
    return {"pooling": MODES[chosen[0]], "normalize": "Normalize" in kinds}


def _chosen(values: dict[str, Any]) -> list[str]:
    """Return the poolings that a file names, in the words of newer versions where they are known."""
    if "pooling_mode" in values:
        told = values["pooling_mode"]
        return [told] if isinstance(told, str) else [str(mode) for mode in told]
    names = {flag: name for name, flag in FLAGS.items()}
    return [names.get(key, key) for key, value in values.items() if key.startswith("pooling_mode_") and value is True]


def check_pooling(folder: Path, task: TaskSpec) -> None:
    """Refuse a task that asks for other vectors than those that the folder was made for.

    Raises:
        UserError: If it does.
    """
    said = said_by(folder)
    wrong = {name: value for name, value in (said or {}).items() if getattr(task, name) != value}
    if wrong:
        asked = ", ".join(f"{name}: {_shown(value)}" for name, value in wrong.items())
        raise UserError(f"{folder}: its vectors are made otherwise than the task says; write {asked} into the task")


def save_pooling(folder: Path, config: Any, task: TaskSpec) -> None:
    """Write the files from which sentence-transformers makes the same vectors."""
    parts = ["Transformer", "Pooling", *(["Normalize"] if task.normalize else [])]
    paths = [f"{place}_{part}" if place else "" for place, part in enumerate(parts)]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"{MODULES}.{part}"}
        for place, (part, path) in enumerate(zip(parts, paths, strict=True))
    ]
    for path in filter(None, paths):
        (folder / path).mkdir(exist_ok=True)
    flags = {flag: task.pooling == MODES[name] for name, flag in FLAGS.items()}
    pooling = {"word_embedding_dimension": shape_of(config).hidden_size, **flags}
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", pooling)
    length = min(task.max_length, max_tokens(config))
    _write(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})


def _write(file: Path, values: Any) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _shown(value: Any) -> str:
    return str(value).lower()
