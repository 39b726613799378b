"""A small WordPiece vocabulary, trained on texts; the same texts always give the same pieces with the same ids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer
from tokenizers.trainers import WordPieceTrainer

COVERAGE = 0.9999
"""Part of all characters that the letters among the pieces cover; a word with a rarer one is unknown."""


def has_word_pieces(tokenizer: Any) -> bool:
    """Whether a fast tokenizer splits texts into words and cuts these into the longest pieces of a list, as BERT's."""
    backend = tokenizer.backend_tokenizer
    return type(backend.model).__name__ == "WordPiece" and backend.pre_tokenizer is not None


def bert_word_pieces(texts: Iterable[str], size: int, max_length: int, lowercase: bool = True) -> Any:
    """Return a tokenizer of BERT's kind with pieces trained on texts; see ``train_word_pieces``.

    Chinese characters are words of their own.
    """
    import transformers

    special = {token: number for number, token in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))}
    like = transformers.BertTokenizer(vocab=special, model_max_length=max_length, do_lower_case=lowercase)
    return train_word_pieces(like, texts, size)


def train_word_pieces(like: Any, texts: Iterable[str], size: int) -> Any:
    """Return a tokenizer with pieces of its own: words, normalisation and special tokens are those of ``like``.

    The library's trainer numbers letters inside of words in an order left to chance, and these numbers decide between
    pairs of equal count. So letters are counted here, and it gets them as pieces that are there from the beginning.

    Args:
        like: A fast WordPiece tokenizer of transformers.
        texts: What the pieces are counted in; gone through twice.
        size: Most pieces, special tokens among them; few texts give fewer.
    """
    state = json.loads(like.backend_tokenizer.to_str())
    prefix = state["model"]["continuing_subword_prefix"]
    state["added_tokens"] = [token for token in state["added_tokens"] if token["special"]]
    first = [token["content"] for token in state["added_tokens"]]
    letters, inner = _letters(like.backend_tokenizer, texts, size - len(first))
    trainer = WordPieceTrainer(
        vocab_size=size,
        special_tokens=first + [prefix + letter for letter in inner],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        continuing_subword_prefix=prefix,
        show_progress=False,
    )
    empty = {**state, "model": {**state["model"], "vocab": {}}, "added_tokens": [], "post_processor": None}
    scratch = Tokenizer.from_str(json.dumps(empty))
    scratch.train_from_iterator(texts, trainer)
    return _with_vocabulary(like, state, scratch.get_vocab())


def _letters(backend: Tokenizer, texts: Iterable[str], room: int) -> tuple[list[str], list[str]]:
    """Return the letters that become pieces, and those of them that also stand inside of words, in order."""
    words: Counter[str] = Counter()
    for text in texts:
        normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal))
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    for word, count in words.items():
        inside.update(word[1:])
        for letter in word:
            counts[letter] += count
    letters, missing = [], counts.total()
    for letter, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        room -= 2 if letter in inside else 1
        if room < 0 or missing <= (1 - COVERAGE) * counts.total():
            break
        letters.append(letter)
        missing -= count
    return sorted(letters), sorted(inside.intersection(letters))


def _with_vocabulary(like: Any, state: dict[str, Any], vocabulary: dict[str, int]) -> Any:
    """Return a tokenizer of the class of ``like`` in the given state, with other pieces."""
    state["model"]["vocab"] = vocabulary
    for token in state["added_tokens"]:
        token["id"] = vocabulary[token["content"]]
    ends = state["post_processor"] or {}
    for template in ends.get("special_tokens", {}).values():
        template["ids"] = [vocabulary[token] for token in template["tokens"]]
    for name in {"cls", "sep"} & ends.keys():
        ends[name] = [ends[name][0], vocabulary[ends[name][0]]]
    special = {name: str(token) for name, token in like.special_tokens_map.items() if isinstance(token, str)}
    return type(like)(**{**like.init_kwargs, **special, "tokenizer_object": Tokenizer.from_str(json.dumps(state))})
