"""Folders of the sentence-transformers library: how they say that a text's vector is made, read and written.

Beside a standard Hugging Face model such a folder has ``modules.json`` (Transformer, Pooling, Normalize), a file for
the pooling, the most tokens, and prompts. What is read goes into the task and into the network's config, so that every
folder that is saved from it later says the same again. A cross-encoder has no such files: what the library needs to
know of it stands in ``config.json`` and in the tokenizer's settings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eval.errors import UserError
from eval.files.json_text import read_json
from eval.kinds.kind_registry import kind_of
from eval.task import TaskSpec
from teachers.anatomy.encoder import classifier_place, family_of, max_tokens, model_inputs, shape_of
from teachers.anatomy.pooling import FIELD

MODES = {"mean": "mean", "cls": "first", "max": "max", "weightedmean": "weighted_mean", "lasttoken": "last"}
"""Name of a pooling in sentence-transformers -> our name."""
FLAGS = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""The same as flags, which older versions write and all read."""
QUERY, DOCUMENTS = "query", ("document", "passage", "corpus")
"""Names of the prompts of queries and of documents, of which the first that says something counts."""
PARTS = ("Transformer", "Pooling", "Normalize")
"""The modules that a vector may be made by, in this order; the last may be missing."""
STATIC = "StaticEmbedding"
"""The module that is a table of token vectors and their mean."""
KEPT = ("prompts", "default_prompt_name")
"""What ``config_sentence_transformers.json`` says that a saved folder says again."""
COVERED = ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json")
"""The files that decide what a vector is."""
TOKENIZER = "tokenizer_config.json"
"""Where newer versions keep the most tokens."""
NO_LIMIT = 10**9
"""From here on the most tokens of a tokenizer say that there is no limit."""
MODULES = "sentence_transformers.models"
ACTIVATIONS = ("sentence_transformers", "sbert_ce_default_activation_function")
"""Fields of a config in which versions before 6 keep the activation of a ``CrossEncoder``."""
IDENTITY = "torch.nn.modules.linear.Identity"


def said_by(folder: Path, config: Any) -> dict[str, Any] | None:
    """Return the fields of a task that a folder of sentence-transformers says; None if it is no such folder.

    They are ``pooling``, ``normalize`` and ``prompt``, ``query_prompt`` and ``document_prompt`` where they are others,
    and ``max_length`` where the folder limits it. Its prompts are kept in the config.

    Args:
        folder: A model folder.
        config: The network's.

    Raises:
        UserError: If the folder is damaged, or makes vectors in a way that the toolkit does not; with every reason.
    """
    if not (folder / "modules.json").is_file():
        return None
    try:
        modules = read_json(folder / "modules.json")
        paths = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in modules}
        static = STATIC in paths
        pooling = read_json(folder / paths["Pooling"] / "config.json") if "Pooling" in paths else {}
        modes = ["mean"] if static else _modes(pooling)
        limits, more = (_values(folder / name) for name in COVERED[2:])
        prompts = {str(name): str(text or "") for name, text in (more.get("prompts") or {}).items()}
        default, similarity = more.get("default_prompt_name"), more.get("similarity_fn_name") or "cosine"
        length, lower = _most_tokens(folder, limits), limits.get("do_lower_case")
        whole = (pooling.get("include_prompt", True), length is None or length > 0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder}: modules.json and the pooling it names cannot be read ({error})") from error
    own = (STATIC, "Normalize") if static else PARTS
    problems = []
    extra = [name for name in paths if name not in own]
    if len(modes) != 1 or modes[0] not in MODES or extra or list(paths) != [name for name in own if name in paths]:
        found = ", ".join([*modes, *extra]) or "no pooling"
        problems.append(
            f"makes its vectors by {found}; supported are {', '.join(MODES)}, one of them alone, and then Normalize"
        )
    if lower:
        problems.append("do_lower_case in sentence_bert_config.json is not supported; set it in the tokenizer")
    if default is not None and default not in prompts:
        problems.append(f"its default prompt {default!r} is none of its prompts ({', '.join(prompts) or 'none'})")
    if any(prompts.values()) and not whole[0]:
        problems.append("leaves its prompt out of the pooling (include_prompt: false), which is not supported")
    if similarity != "cosine" and not (similarity == "dot" and "Normalize" in paths):
        problems.append(f"compares its vectors by {similarity}; supported is cosine, or dot after Normalize")
    if not whole[1]:
        problems.append(f"max_seq_length is {length}; it must be above 0")
    if problems:
        raise UserError(*(f"{folder}: {problem}" for problem in problems))
    kept = {"prompts": prompts, "default_prompt_name": default}
    if any(prompts.values()):
        setattr(config, FIELD, {**(getattr(config, FIELD, None) or {}), **kept})
    said = {"pooling": MODES[modes[0]], "normalize": "Normalize" in paths, **_prompts_of(prompts, default or "")}
    if said["pooling"] == "last" and classifier_place(config) == -1:
        said["pooling"] = "first"  # the classifier token of XLNet
    return said if length is None else {**said, "max_length": max(4, min(int(length), max_tokens(config)))}


def _prompts_of(prompts: dict[str, str], default: str) -> dict[str, str]:
    """Return the prompts of a task, as ``encode``, ``encode_query`` and ``encode_document`` of the library take them.

    A folder with a prompt for one of queries and documents has none for the other. The library writes empty ones by
    itself, so with no text in either the default stands before both.
    """
    usual, query = prompts.get(default, ""), prompts.get(QUERY, "")
    document = next(filter(None, (prompts.get(name) for name in DOCUMENTS)), "")
    if query == document and query in ("", usual):
        return {"prompt": usual}
    return {"prompt": usual, "query_prompt": query, "document_prompt": document}


def as_said(source: str, config: Any, task: TaskSpec) -> TaskSpec:
    """Return a task that makes vectors as the folder says; what the task itself says may not contradict it.

    The task's own ``max_length`` counts: it may be shorter, or longer, than the folder's.

    Args:
        source: A model folder, of sentence-transformers or not, or a hub name.
        config: The network's.
        task: What is asked.

    Raises:
        UserError: If it asks for other vectors.
    """
    said = said_by(small_files(source), config) if kind_of(task.kind).vectors else None
    if said is None:
        return task
    open_ = {name: value for name, value in said.items() if name not in task.model_fields_set}
    if problem := _contradiction(said, task, open_):
        raise UserError(
            f"{source}: its vectors are made otherwise than the task says, which a student takes from its teacher; "
            f"write {problem} into the task, or start from a model that agrees with it"
        )
    return task.model_copy(update=open_)


def _contradiction(said: dict[str, Any], task: TaskSpec, left_open: dict[str, Any]) -> str:
    fixed = {name: value for name, value in said.items() if name not in left_open and name != "max_length"}
    wrong = {name: value for name, value in fixed.items() if getattr(task, name) != value}
    return ", ".join(f"{name}: {_shown(value)}" for name, value in wrong.items())


def said_by_cross_encoder(folder: Path, config: Any) -> dict[str, Any] | None:
    """Return the fields of a task that the folder of a ``CrossEncoder`` says; None if it is no such folder.

    They are ``pair`` and ``max_length``, all the tokens that the library reads.

    Args:
        folder: A model folder.
        config: The network's.

    Raises:
        UserError: If the folder is damaged.
    """
    try:
        limits, more = (_values(folder / name) for name in COVERED[2:])
        length = _most_tokens(folder, limits)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder}: what it says of its CrossEncoder cannot be read ({error})") from error
    if more.get("model_type") != "CrossEncoder" and not any(hasattr(config, name) for name in ACTIVATIONS):
        return None
    most = max_tokens(config)
    return {"pair": True, "max_length": most if length is None else max(4, min(length, most))}


def save_for_other_libraries(network: Any, folder: Path, task: TaskSpec, *, standard: bool) -> None:
    """Write what sentence-transformers needs beside a network and its tokenizer, which were saved before.

    Args:
        network: An embedder, or a network with a head.
        folder: Where it was saved.
        task: What it answers.
        standard: Whether its weights were saved as usual; else no other library reads the table of a custom
            architecture, which has a form of its own.
    """
    kind, own = kind_of(task.kind), getattr(network, "save_sentence_folder", None)
    if kind.vectors:
        if own is None:
            save_sentence_folder(folder, network.config, task)
        elif standard:
            own(folder, network.config, task)
    elif kind.auto_class == "AutoModelForSequenceClassification" and task.pair:
        save_cross_encoder(folder, network.config, task)


def save_sentence_folder(folder: Path, config: Any, task: TaskSpec) -> None:
    """Write the files from which sentence-transformers makes the same vectors of a standard encoder."""
    parts = PARTS if task.normalize else PARTS[:-1]
    _write_modules(folder, [(part, f"{place}_{part}" if place else "") for place, part in enumerate(parts)])
    pooling = "last" if task.pooling == "first" and classifier_place(config) == -1 else task.pooling
    flags = {flag: pooling == MODES[name] for name, flag in FLAGS.items()}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": shape_of(config).hidden_size, **flags})
    length = min(task.max_length, max_tokens(config))
    _write(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    _write_prompts(folder, config, task)
    _set_token_types(folder, config)


def save_static_folder(folder: Path, config: Any, task: TaskSpec) -> None:
    """Write the files from which sentence-transformers makes the same vectors of a table of token vectors.

    Both it and model2vec read ``tokenizer.json`` without special tokens, so texts are truncated there; what model2vec
    has to know beside it stands in ``config.json``.
    """
    most_tokens = config.text_tokens
    file = folder / "config.json"
    _write(file, {**_values(file), "normalize": task.normalize, "max_length": most_tokens})
    _write_modules(folder, [(STATIC, ""), *([("Normalize", "1_Normalize")] if task.normalize else [])])
    values = read_json(folder / "tokenizer.json")
    direction = "Left" if task.truncation_side == "left" else "Right"
    most = {"max_length": most_tokens, "stride": 0, "strategy": "LongestFirst", "direction": direction}
    text = json.dumps({**values, "truncation": most, "padding": None}, ensure_ascii=False)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    _write_prompts(folder, config, task)


def set_cross_encoder(config: Any, task: TaskSpec) -> None:
    """Write into a config that a ``CrossEncoder`` returns the number of a pair as the network gives it."""
    if kind_of(task.kind).number and task.pair:
        config.sentence_transformers = {"activation_fn": IDENTITY}


def save_cross_encoder(folder: Path, config: Any, task: TaskSpec) -> None:
    """Write into the tokenizer's settings how many tokens a ``CrossEncoder`` reads of a pair."""
    _set_tokenizer(folder, model_max_length=min(task.max_length, max_tokens(config)))
    _set_token_types(folder, config)


def _set_tokenizer(folder: Path, **settings: Any) -> None:
    file = folder / TOKENIZER
    _write(file, {**_values(file), **settings})


def _set_token_types(folder: Path, config: Any) -> None:
    """Let the tokenizer give token types to a family that always reads them; that of XLNet gives none unasked."""
    if family_of(config).token_types == "always":
        _set_tokenizer(folder, model_input_names=list(model_inputs(config)))


def small_files(source: str) -> Path:
    """Return a folder with what sentence-transformers says of a model: the model's own, or from the hub, by name.

    Raises:
        UserError: If the hub does not answer.
    """
    if Path(source).exists():
        return Path(source)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, allow_patterns=[*COVERED, "*_Pooling/config.json", TOKENIZER]))
    except Exception as error:  # the library, and what it calls, raise a dozen kinds
        raise UserError(f"model {source!r}: its modules.json could not be looked for ({error})") from error


def _write_modules(folder: Path, parts: list[tuple[str, str]]) -> None:
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"{MODULES}.{part}"}
        for place, (part, path) in enumerate(parts)
    ]
    for path in filter(None, (path for _, path in parts)):
        (folder / path).mkdir(exist_ok=True)
    _write(folder / "modules.json", modules)


def _write_prompts(folder: Path, config: Any, task: TaskSpec) -> None:
    """Write prompts, of which the task's own is the one that is used by default, and that cosines compare.

    Those of queries and documents stand under the names that every version of the library looks for first.
    """
    kept = {name: (getattr(config, FIELD, None) or {}).get(name) for name in KEPT}
    own = {QUERY: task.query_prompt, DOCUMENTS[0]: task.document_prompt}
    prompts = {**(kept["prompts"] or {}), **{name: task.prompt if own[name] is None else own[name] for name in own}}
    default = kept["default_prompt_name"]
    if task.prompt != prompts.get(default or "", ""):
        default = (
            next((name for name in kept["prompts"] or () if prompts[name] == task.prompt), "text")
            if task.prompt
            else None
        )
        prompts |= {default: task.prompt} if default else {}
    values = {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": "cosine"}
    _write(folder / COVERED[3], {"model_type": "SentenceTransformer", **values})


def _most_tokens(folder: Path, limits: dict[str, Any]) -> int | None:
    """Return the most tokens of a text; newer versions keep them with the tokenizer. None if nothing limits them."""
    told = limits.get("max_seq_length")
    if told is None:
        told = _values(folder / TOKENIZER).get("model_max_length")
    return None if told is None or told >= NO_LIMIT else int(told)


def _modes(values: dict[str, Any]) -> list[str]:
    """Return the poolings that a file names, in the words of newer versions where they are known."""
    if "pooling_mode" in values:
        told = values["pooling_mode"]
        return [told] if isinstance(told, str) else [str(mode) for mode in told]
    names = {flag: name for name, flag in FLAGS.items()}
    return [names.get(key, key) for key, value in values.items() if key.startswith("pooling_mode_") and value is True]


def _values(file: Path) -> dict[str, Any]:
    """Return the object that a file holds; nothing if there is no such file."""
    values = read_json(file) if file.is_file() else {}
    if not isinstance(values, dict):
        raise TypeError(f"{file.name} must be a JSON object")
    return values


def _write(file: Path, values: Any) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) or not str(value).isidentifier() else str(value)
