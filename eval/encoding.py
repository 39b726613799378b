"""From examples to the inputs of a model: tokens, windows, padded arrays; with numpy and tokenizers alone.

Of the toolkit it imports no more than what an export carries a copy of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from eval.encoder_settings import EncoderSettings as EncoderSettings
from eval.files.json_text import parse_json, read_json
from eval.long_texts import beginning, is_long, splits_at_spaces

Array = NDArray[Any]
Inputs = dict[str, Array]

IGNORED = -100
"""Target of a place that neither loss nor score counts."""
SEVERAL = ("embedding", "multiple-choice")
"""Kinds of which an example gives several inputs, each for itself: one a text, or one a choice."""
WINDOWED = ("qa", "tagging", "masked-lm")
"""Kinds whose long inputs are cut into windows; other texts are shortened."""


@dataclass(slots=True)
class Feature:
    """One row of model input; a long example gives several.

    Attributes:
        example: Index of the example it came from.
        ids: Token ids, special tokens included, no padding.
        type_ids: Token types, as long as ``ids``.
        words: For tagging, the word whose first piece stands at each place, else -1.
        offsets: For qa, the (start, end) characters in the context of each place, without outer white space; None for
            places outside of the context and for pieces of white space alone.
    """

    example: int
    ids: list[int]
    type_ids: list[int]
    words: list[int] | None = None
    offsets: list[tuple[int, int] | None] | None = None


class TextEncoder:
    """Turns examples into padded arrays, and the model's outputs into answers.

    Args:
        tokenizer: A tokenizer of the tokenizers library; it is copied, not changed.
        settings: How this model wants its inputs.

    Raises:
        ValueError: ``max_length`` leaves no room for text beside the special tokens (qa, tagging).
    """

    def __init__(self, tokenizer: Tokenizer, settings: EncoderSettings) -> None:
        self.settings = settings
        self.source = tokenizer.to_str()
        text = _with_prefix_space(self.source) if settings.kind == "tagging" else self.source
        self.tokenizer = Tokenizer.from_str(text)
        self.tokenizer.no_padding()
        self._truncate()

    def _truncate(self) -> None:
        settings = self.settings
        stride, strategy = 0, settings.truncation if settings.pair else "longest_first"
        if settings.kind == "qa":
            # A window of the context has the places that the longest question leaves, and must move on by one at least.
            stride, strategy = min(settings.stride, self._room(2) - self._longest_question() - 1), "only_second"
        elif settings.kind == "tagging":
            # One shared token at least: then a word cut by a window's edge began in the window before.
            stride = max(1, min(settings.stride, self._room(1) // 2))
        self.tokenizer.enable_truncation(
            settings.max_length,
            stride=stride,
            strategy=strategy,
            direction="right" if settings.kind in WINDOWED else settings.truncation_side,
        )

    def _room(self, texts: int) -> int:
        """Return how many tokens of text fit beside the special tokens."""
        special = int(self.tokenizer.num_special_tokens_to_add(texts == 2))
        if self.settings.max_length < special + 2:
            raise ValueError(
                f"max_length={self.settings.max_length} leaves no room for text; use {special + 2} or more"
            )
        return self.settings.max_length - special

    def _longest_question(self) -> int:
        return self._room(2) // 2

    @classmethod
    def from_folder(cls, folder: str | Path) -> TextEncoder:
        """Load ``tokenizer.json`` and ``encoder.json`` from an export folder."""
        folder = Path(folder)
        try:
            values = read_json(folder / "encoder.json")
            settings = EncoderSettings.from_dict(values if isinstance(values, dict) else {})
        except ValueError as error:
            raise ValueError(f"encoder.json: {error}") from error
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")), settings)

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` and ``encoder.json`` into ``folder``."""
        folder = Path(folder)
        # As it was given: what tagging adds is added again when it is loaded.
        (folder / "tokenizer.json").write_text(self.source, encoding="utf-8")
        text = json.dumps(self.settings.to_dict(), indent=2, ensure_ascii=False)
        (folder / "encoder.json").write_text(text + "\n", encoding="utf-8")

    def encode(self, examples: Sequence[Mapping[str, Any]]) -> list[Feature]:
        """Return the features of all examples, in order; windows, texts or choices of one example stand together.

        A question is cut to half of the room of an input. Where only one text of a pair may be shortened, but is too
        short for that, both are.
        """
        kind = self.settings.kind
        if kind in SEVERAL:
            parts = [texts_of(example) if kind == "embedding" else choices_of(example) for example in examples]
            owners = [index for index, own in enumerate(parts) for _ in own]
            encodings = self._shortened([part for own in parts for part in own])
            return [Feature(i, encoding.ids, encoding.type_ids) for i, encoding in zip(owners, encodings, strict=True)]
        if kind == "qa":
            questions = self._short_questions([e["question"] for e in examples])
            texts: list[Any] = list(zip(questions, (e["context"] for e in examples), strict=True))
        elif kind == "tagging":
            texts = [list(e["tokens"]) for e in examples]
        elif self.settings.pair:
            texts = [(e["text_a"], e["text_b"]) for e in examples]
        else:
            texts = [e["text"] for e in examples]
        features: list[Feature] = []
        if kind in WINDOWED:
            encodings = self.tokenizer.encode_batch(texts, is_pretokenized=kind == "tagging")
            for index, encoding in enumerate(encodings):
                windows = [encoding, *encoding.overflowing]
                example = examples[index]
                features += [self._window(index, example, part, number == 0) for number, part in enumerate(windows)]
        else:
            encodings = self._shortened(texts)
            features = [Feature(i, encoding.ids, encoding.type_ids) for i, encoding in enumerate(encodings)]
        return features

    @cached_property
    def _keeps_beginnings(self) -> bool:
        return not self.settings.pair and self.settings.truncation_side == "right" and splits_at_spaces(self.source)

    def _shortened(self, texts: list[Any]) -> list[Any]:
        most = self.settings.max_length
        long = [number for number, text in enumerate(texts) if is_long(text, most)]
        if long and self._keeps_beginnings:
            begun = list(texts)
            for number in long:
                begun[number] = beginning(texts[number], most)
            found = list(self.tokenizer.encode_batch_fast(begun))
            for number in long:
                if len(found[number].ids) < most:  # white space, or a word without end
                    found[number] = self.tokenizer.encode(texts[number])
            return found
        try:
            return list(self.tokenizer.encode_batch_fast(texts))
        except Exception:  # the library raises no narrower type
            if not self.settings.pair or self.settings.truncation == "longest_first":
                raise
        encodings = []
        for pair in texts:
            try:
                encodings.append(self.tokenizer.encode(*pair))
            except Exception:
                self.tokenizer.enable_truncation(self.settings.max_length, direction=self.settings.truncation_side)
                encodings.append(self.tokenizer.encode(*pair))
                self._truncate()
        return encodings

    def _window(self, index: int, example: Mapping[str, Any], window: Any, first: bool) -> Feature:
        feature = Feature(index, window.ids, window.type_ids)
        if self.settings.kind == "qa":
            context = example["context"]
            pairs = zip(window.sequence_ids, window.offsets, strict=True)
            feature.offsets = [_trimmed(context, *offset) if sequence == 1 else None for sequence, offset in pairs]
        elif self.settings.kind == "tagging":
            previous: int | None = None
            words: list[int] = []
            # A later window may begin inside a word: its first piece was seen in the window before.
            opened = first
            for word in window.word_ids:
                starts = word is not None and word != previous and opened
                words.append(word if starts else -1)
                opened = opened or word is not None
                previous = word
            feature.words = words
        return feature

    def _short_questions(self, questions: list[str]) -> list[str]:
        self.tokenizer.no_truncation()
        try:
            encodings = self.tokenizer.encode_batch(questions, add_special_tokens=False)
            return [self._short(text, encoding) for text, encoding in zip(questions, encodings, strict=True)]
        finally:
            self._truncate()

    def _short(self, text: str, encoding: Any) -> str:
        most = self._longest_question()
        # A cut may fall inside a word or a character, whose rest then needs other, and more, tokens.
        while len(encoding.offsets) > most:
            end = encoding.offsets[most - 1][1]
            text = text[: min(end, len(text) - 1)]
            encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return text

    def collate(self, features: Sequence[Feature], multiple_of: int = 1) -> Inputs:
        """Pad features to their own longest and stack them.

        Args:
            features: Rows of the batch.
            multiple_of: The padded length is rounded up to a multiple of this.

        Returns:
            int64 arrays ``[rows, length]`` under the names in ``settings.inputs``.
        """
        settings = self.settings
        longest = max(1, *(len(feature.ids) for feature in features)) if features else 1
        length = -(-longest // multiple_of) * multiple_of
        shape = (len(features), length)
        arrays = {
            "input_ids": np.full(shape, settings.pad_id, dtype=np.int64),
            "attention_mask": np.zeros(shape, dtype=np.int64),
            "token_type_ids": np.full(shape, settings.pad_type_id, dtype=np.int64),
        }
        for row, feature in enumerate(features):
            place = self.place(len(feature.ids), length)
            arrays["input_ids"][row, place] = feature.ids
            arrays["attention_mask"][row, place] = 1
            arrays["token_type_ids"][row, place] = feature.type_ids
        return {name: arrays[name] for name in settings.inputs}

    def place(self, tokens: int, length: int) -> slice:
        """Return where the ``tokens`` of a row stand among ``length`` padded places."""
        return slice(length - tokens, length) if self.settings.pad_side == "left" else slice(0, tokens)


def texts_of(example: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the one or two texts of an example whose texts are read alone (embedding)."""
    return (example["text_a"], example["text_b"]) if "text_a" in example else (example["text"],)


def choices_of(example: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the pairs that are read of a multiple-choice example: its text with each choice."""
    return [(example["text"], choice) for choice in example["choices"]]


def _trimmed(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Return the range without outer white space, or None if nothing is left: byte-level pieces begin with a space."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return (start, end) if start < end else None


def _with_prefix_space(text: str) -> str:
    """Make a byte-level tokenizer put a space before each given word, as running text has it."""
    values = parse_json(text)
    whole = values.get("pre_tokenizer") or {}
    stages = whole.get("pretokenizers", [whole])
    kinds = [stage.get("type") for stage in stages]
    if kinds[:1] == ["ByteLevel"]:
        stages[0]["add_prefix_space"] = True
    elif "ByteLevel" in kinds:
        # Its own space would go before every part that the stages before it split off.
        before = [values["normalizer"]] if values.get("normalizer") else []
        values["normalizer"] = {"type": "Sequence", "normalizers": [*before, {"type": "Prepend", "prepend": " "}]}
    return json.dumps(values, ensure_ascii=False)
