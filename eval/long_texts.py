"""The beginning of a text of which only the first tokens are kept: a text of megabytes is not tokenized whole."""

from __future__ import annotations

import re
from typing import Any

from eval.files.json_text import parse_json

PER_TOKEN = 16
"""Characters for each token that is kept; where they give fewer tokens, the whole text is tokenized."""
_BETWEEN_WORDS = re.compile(r"[0-9A-Za-z] (?=[0-9A-Za-z])")
_LOCAL_NORMALIZERS = {
    *("BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend", "Strip"),
    "StripAccents",
}
_LOCAL_PATTERNS = {" {2,}", r"\s{2,}|[\n\r\t]"}
"""Those of white space, as ALBERT, XLNet and DeBERTa have them."""


def splits_at_spaces(tokenizer: str) -> bool:
    """Whether the tokens before a space between two ASCII letters or digits depend on nothing after it.

    They do where the tokenizer splits texts at such a space before it looks for tokens, and no step before that sees
    further than to the next word.

    Args:
        tokenizer: As ``tokenizer.json`` holds it.
    """
    values = parse_json(tokenizer)
    added = any(" " in token["content"] for token in values.get("added_tokens") or ())
    stages = _stages(values.get("pre_tokenizer"), "pretokenizers")
    splits = bool(stages) and all(map(_splits, stages))
    return splits and not added and all(map(_is_local, _stages(values.get("normalizer"), "normalizers")))


def is_long(text: Any, tokens: int) -> bool:
    """Whether a text is so much longer than what is kept of it that its beginning is worth a look."""
    return isinstance(text, str) and len(text) > 2 * PER_TOKEN * tokens


def beginning(text: str, tokens: int) -> str:
    """Return a text up to a space between two words, long enough for so many tokens as a rule, or all of it."""
    found = _BETWEEN_WORDS.search(text, PER_TOKEN * tokens)
    return text if found is None else text[: found.start() + 1]


def _stages(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return [stage for own in part[name] for stage in _stages(own, name)] if part["type"] == "Sequence" else [part]


def _splits(stage: dict[str, Any]) -> bool:
    kind = stage["type"]
    if kind == "Metaspace":
        return bool(stage.get("split", True))
    return kind in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit") or (
        kind == "ByteLevel" and bool(stage.get("use_regex", True))
    )


def _is_local(stage: dict[str, Any]) -> bool:
    if stage["type"] == "Replace":
        pattern = stage["pattern"]
        return pattern.get("Regex") in _LOCAL_PATTERNS or " " not in pattern.get("String", " ")
    return stage["type"] in _LOCAL_NORMALIZERS
