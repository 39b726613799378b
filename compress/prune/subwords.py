"""The tokens of a tokenizer: which of them others rest on, and a tokenizer with some of them only."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

KINDS = ("WordPiece", "BPE", "Unigram")
"""The models of the tokenizers library whose pieces can be dropped: they cut a word that they do not know."""


def kind_of(tokenizer: Any) -> str:
    """Return the kind of model inside of a fast tokenizer, such as ``WordPiece``."""
    return type(tokenizer.backend_tokenizer.model).__name__


def supported(tokenizer: Any, used: set[int]) -> set[int]:
    """Return ``used`` and all pieces without which texts would be cut otherwise, or not at all.

    They are the special and added tokens; every letter, which is a piece of one character (or byte), at the beginning
    or inside of a word; every piece with a character that is no such letter. BPE needs the two parts of every merge
    that leads to a kept piece as well, and a unigram model its least likely piece, for unknown characters are as
    likely as that one less a constant.

    Args:
        tokenizer: A fast tokenizer of transformers of one of ``KINDS``.
        used: Ids of pieces that stay.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    model, ids = state["model"], tokenizer.get_vocab()
    kept = used | {token["id"] for token in state["added_tokens"]} | set(tokenizer.all_special_ids)
    if (unknown := model.get("unk_token")) in ids:
        kept.add(ids[unknown])
    if model["type"] == "BPE":
        prefix, suffix = model["continuing_subword_prefix"] or "", model["end_of_word_suffix"] or ""
        kept |= {i for piece, i in ids.items() if _is_letter(piece.removeprefix(prefix).removesuffix(suffix))}
        return _with_parts(model, kept)
    prefix = model.get("continuing_subword_prefix", "")
    kept |= {i for piece, i in ids.items() if _is_letter(piece.removeprefix(prefix)) or _is_letter(piece)}
    kept |= {i for piece, i in ids.items() if not all(letter in ids for letter in _letters(piece, prefix))}
    if model["type"] == "Unigram":
        kept.add(min(range(len(model["vocab"])), key=lambda i: model["vocab"][i][1]))
        if model["unk_id"] is not None:
            kept.add(model["unk_id"])
    return kept


def _is_letter(piece: str) -> bool:
    return len(piece) == 1 or (len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"))


def _letters(piece: str, prefix: str) -> Iterator[str]:
    """Return the pieces of one character that a piece is spelt with."""
    inside = bool(prefix) and piece.startswith(prefix)
    for place, character in enumerate(piece.removeprefix(prefix) if inside else piece):
        yield prefix + character if place or inside else character


def _merged(model: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Return the two parts and the result of every merge, in the order of their ranks."""
    prefix = model["continuing_subword_prefix"] or ""
    for merge in model["merges"]:
        first, second = merge.split(" ") if isinstance(merge, str) else merge
        yield first, second, first + second.removeprefix(prefix)


def _with_parts(model: dict[str, Any], kept: set[int]) -> set[int]:
    """Return ``kept`` with the parts of all merges that lead to one of them."""
    ids, parts = model["vocab"], dict[int, set[int]]()
    for first, second, whole in _merged(model):
        parts.setdefault(ids[whole], set()).update((ids[first], ids[second]))
    found, new = set(kept), set(kept)
    while new:
        new = {part for piece in new for part in parts.get(piece, ())} - found
        found |= new
    return found


def with_pieces(tokenizer: Any, kept: Sequence[int]) -> Any:
    """Return a copy of a tokenizer that has only these pieces, numbered anew in their order; all else stays.

    Args:
        tokenizer: A fast tokenizer of transformers of one of ``KINDS``; it is not changed.
        kept: Ids of pieces, ascending, with all that ``supported`` adds to them.

    Raises:
        ValueError: If the library numbers the pieces otherwise.
    """
    number = {old: new for new, old in enumerate(kept)}
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    model = state["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [entry for i, entry in enumerate(model["vocab"]) if i in number]
        model["unk_id"] = None if model["unk_id"] is None else number[model["unk_id"]]
    else:
        model["vocab"] = {piece: number[i] for piece, i in model["vocab"].items() if i in number}
    if model["type"] == "BPE":
        pieces, merges = model["vocab"], zip(model["merges"], _merged(model), strict=True)
        model["merges"] = [merge for merge, three in merges if all(piece in pieces for piece in three)]
    for token in state["added_tokens"]:
        token["id"] = number[token["id"]]
    if state["padding"] is not None:
        state["padding"]["pad_id"] = number[state["padding"]["pad_id"]]
    _renumber_ends(state["post_processor"] or {}, number)
    made = copy.deepcopy(tokenizer)
    made._tokenizer = Tokenizer.from_str(json.dumps(state))
    wanted = {piece: number[i] for piece, i in tokenizer.get_vocab().items() if i in number}
    if made.get_vocab() != wanted:
        raise ValueError("the tokenizers library numbers the pieces that are left in another order")
    for name in ("_vocab", "_vocab_scores", "_merges"):  # what its class was made from
        if hasattr(made, name):
            setattr(made, name, model["merges" if name == "_merges" else "vocab"])
    if isinstance(unknown := made.init_kwargs.get("unk_id"), int):
        made.init_kwargs["unk_id"] = number[unknown]
    return made


def _renumber_ends(ends: dict[str, Any], number: dict[int, int]) -> None:
    """Give the special tokens that a post-processor puts around texts their new ids, in place."""
    for part in ends.get("processors", ()):
        _renumber_ends(part, number)
    special = ends.get("special_tokens", {})
    for template in special.values():
        template["ids"] = [number[i] for i in template["ids"]]
    for name in {"cls", "sep"} & ends.keys():
        ends[name] = [ends[name][0], number[ends[name][1]]]
