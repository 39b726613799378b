"""From examples to the inputs of a model: tokens, windows, padded arrays; with numpy and tokenizers alone.

Of the toolkit it imports no more than what an export carries a copy of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from eval.encoder_settings import EncoderSettings as EncoderSettings
from eval.examples import IGNORED as IGNORED
from eval.examples import Array as Array
from eval.examples import Feature as Feature
from eval.files.json_text import parse_json, read_json
from eval.kinds.kind_registry import kind_of
from eval.knowledge.sentence_trees import SentenceTrees
from eval.long_texts import beginning, is_long, splits_at_spaces

Inputs = dict[str, Array]
TREE = ("branch_ids", "mention_ids")
"""The inputs that say where each token stands in a sentence tree."""
TASK_IDS = "task_ids"
"""The input of an export of several tasks that says which one a row asks, at each of its tokens."""


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
        self.kind = kind_of(settings.kind)
        self.source = tokenizer.to_str()
        text = _with_prefix_space(self.source) if self.kind.words else self.source
        self.tokenizer = Tokenizer.from_str(text)
        self.tokenizer.no_padding()
        self._truncate()
        self._trees = self._sentence_trees() if settings.triples else None

    def _sentence_trees(self) -> SentenceTrees:
        both = _without_cuts(_with_prefix_space(self.source)), _without_cuts(self.source)
        settings = self.settings
        return SentenceTrees(*both, settings.triples, settings.branches, settings.max_length, self.kind.words)

    @cached_property
    def _uncut(self) -> Tokenizer:
        """A tokenizer that cuts nothing; how one cuts is never changed, for other threads may be encoding with it."""
        return _without_cuts(self.source)

    @cached_property
    def _writer(self) -> Tokenizer:
        """The tokenizer of texts that are written."""
        found = _without_cuts(self.source)
        found.enable_truncation(self.settings.target_length)
        return found

    @cached_property
    def _cuts_both(self) -> Tokenizer:
        """The tokenizer that cuts the longer text of a pair."""
        found = _without_cuts(self.source)
        found.enable_truncation(self.settings.max_length, direction=self.settings.truncation_side)
        return found

    def _truncate(self) -> None:
        settings = self.settings
        if self.kind.causal:
            self.tokenizer.no_truncation()
            return
        stride, strategy = self.kind.truncates(settings, self._room)
        self.tokenizer.enable_truncation(
            settings.max_length,
            stride=stride,
            strategy=strategy,
            direction="right" if self.kind.per_token else settings.truncation_side,
        )

    def _room(self, texts: int) -> int:
        """Return how many tokens of text fit beside the special tokens."""
        special = int(self.tokenizer.num_special_tokens_to_add(texts == 2))
        if self.settings.max_length < special + 2:
            raise ValueError(
                f"max_length={self.settings.max_length} leaves no room for text; use {special + 2} or more"
            )
        return self.settings.max_length - special

    @classmethod
    def from_folder(cls, folder: str | Path, tokenizer: str = "tokenizer.json") -> TextEncoder:
        """Load the tokenizer and ``encoder.json`` from an export folder."""
        folder = Path(folder)
        try:
            values = read_json(folder / "encoder.json")
            settings = EncoderSettings.from_dict(values if isinstance(values, dict) else {})
        except ValueError as error:
            raise ValueError(f"encoder.json: {error}") from error
        return cls(Tokenizer.from_file(str(folder / tokenizer)), settings)

    def of_kind(self, kind: str) -> TextEncoder:
        """Return the same encoder for another kind of task, as an embedder's serves a search."""
        return TextEncoder(Tokenizer.from_str(self.source), replace(self.settings, kind=kind))

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` and ``encoder.json`` into ``folder``."""
        folder = Path(folder)
        # As it was given: what tagging adds is added again when it is loaded.
        (folder / "tokenizer.json").write_text(self.source, encoding="utf-8")
        text = json.dumps(self.settings.to_dict(), indent=2, ensure_ascii=False)
        (folder / "encoder.json").write_text(text + "\n", encoding="utf-8")

    def encode(self, examples: Sequence[Mapping[str, Any]]) -> list[Feature]:
        """Return the features of all examples, in order; windows, texts or choices of one example stand together.

        A question is cut to half of the room of an input. Where only one text of a pair may be truncated, but is too
        short for that, both are.
        """
        kind = self.kind
        parts = [kind.parts(example, self.settings.pair) for example in examples]
        owners = [index for index, own in enumerate(parts) for _ in own]
        texts = [part for own in parts for part in own]
        if self.settings.has_prompts:
            prompts = (
                self.settings.prompt_of(kind.role(example, place))
                for example, own in zip(examples, parts, strict=True)
                for place in range(len(own))
            )
            texts = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
        if kind.causal:
            encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            pairs = zip(owners, encodings, strict=True)
            return [window for index, encoding in pairs for window in self._windows(index, encoding.ids)]
        if not kind.per_token:
            encodings = self._shortened(texts)
            features = [Feature(i, one.ids, one.type_ids) for i, one in zip(owners, encodings, strict=True)]
            if self._trees is not None:
                for feature, encoding, text in zip(features, encodings, texts, strict=True):
                    self._trees.hang(feature, encoding, text)
            return self._with_targets(features, examples)
        if kind.half:
            questions = self._short_questions([first for first, _ in texts])
            texts = list(zip(questions, (second for _, second in texts), strict=True))
        features = []
        encodings = self.tokenizer.encode_batch(texts, is_pretokenized=kind.words)
        for index, encoding, text in zip(owners, encodings, texts, strict=True):
            for number, window in enumerate([encoding, *encoding.overflowing]):
                feature = Feature(index, window.ids, window.type_ids)
                kind.mark(feature, examples[index], window, number == 0)
                if self._trees is not None:
                    self._trees.hang(feature, window, text)
                features.append(feature)
        return features

    def _with_targets(self, features: list[Feature], examples: Sequence[Mapping[str, Any]]) -> list[Feature]:
        """Write into features, in place, the tokens that shall be written, where the examples say them."""
        texts = {
            place: text for place, one in enumerate(examples) if (text := self.kind.expected_text(one)) is not None
        }
        if not texts:
            return features
        ids = dict(zip(texts, self._writer.encode_batch_fast(list(texts.values())), strict=True))
        for feature in features:
            if feature.example in ids:
                feature.target = ids[feature.example].ids
        return features

    def text_of(self, ids: Sequence[int]) -> str:
        """Return the text that tokens are, without the special ones."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _windows(self, example: int, ids: list[int]) -> list[Feature]:
        """Return the windows of a text after the token that begins it; each of its tokens is new in one of them."""
        size, ids = self.settings.max_length, [self.settings.beginning, *ids]
        shared = max(1, min(self.settings.stride, size // 2))
        found = [Feature(example, ids[:size], [0] * len(ids[:size]), context=1)]
        for start in range(size - shared, len(ids) - shared, size - shared):
            own = ids[start : start + size]
            found.append(Feature(example, own, [0] * len(own), context=shared))
        return found

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
            found = self._batch(begun)
            for number in long:
                if len(found[number].ids) < most:  # white space, or a word without end
                    found[number] = self.tokenizer.encode(texts[number])
            return found
        try:
            return self._batch(texts)
        except Exception:  # the library raises no narrower type
            if not self.settings.pair or self.settings.truncation == "longest_first":
                raise
        return [self._encoded(*pair) for pair in texts]

    def _batch(self, texts: list[Any]) -> list[Any]:
        encode = self.tokenizer.encode_batch if self._trees else self.tokenizer.encode_batch_fast  # without offsets
        return list(encode(texts))

    def _encoded(self, *texts: Any) -> Any:
        """Return the encoding of a text or a pair, both truncated where the one that may be is too short for it."""
        try:
            return self.tokenizer.encode(*texts)
        except Exception:  # the library raises no narrower type
            return self._cuts_both.encode(*texts)

    def spans(self, example: Mapping[str, Any]) -> list[tuple[int, int, int] | None]:
        """Return where each token of an input stands: which text it is of, from 0, and its (start, end) characters.

        None stands for a special token, or one of a branch. For kinds whose example is one input (``Kind.one_score``).
        """
        (part,) = self.kind.parts(example, self.settings.pair)
        found = self._encoded(*((part,) if isinstance(part, str) else part))
        rows = zip(found.special_tokens_mask, found.sequence_ids, found.offsets, strict=True)
        spans = [None if special or text is None else (text, *offsets) for special, text, offsets in rows]
        if self._trees is None:
            return spans
        (feature,) = self.encode([example])
        return [*spans, *[None] * (len(feature.ids) - feature.of_text)]

    def _short_questions(self, questions: list[str]) -> list[str]:
        encodings = self._uncut.encode_batch(questions, add_special_tokens=False)
        return [self._short(text, encoding) for text, encoding in zip(questions, encodings, strict=True)]

    def _short(self, text: str, encoding: Any) -> str:
        most = self._room(2) // 2
        # A cut may fall inside a word or a character, whose rest then needs other, and more, tokens.
        while len(encoding.offsets) > most:
            end = encoding.offsets[most - 1][1]
            text = text[: min(end, len(text) - 1)]
            encoding = self._uncut.encode(text, add_special_tokens=False)
        return text

    def collate(self, features: Sequence[Feature], multiple_of: int = 1) -> Inputs:
        """Pad features to their own longest and stack them.

        Args:
            features: Rows of the batch.
            multiple_of: The padded length is rounded up to a multiple of this.

        Returns:
            int64 arrays ``[rows, length]`` under the names in ``settings.inputs``; where text is written also
            ``decoder_input_ids``, the first token and each that is expected but the last.
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
        if TREE[0] in settings.inputs:
            arrays |= self._in_tree(features, length)
        found = {name: arrays[name] for name in settings.inputs}
        if self.kind.writes:
            found["decoder_input_ids"] = self._begun([feature.target or [] for feature in features])
        return found

    def _in_tree(self, features: Sequence[Feature], length: int) -> Inputs:
        """Return where tokens stand in their trees, ``[rows, length]`` for each name of ``TREE``."""
        found = np.zeros((len(TREE), len(features), length), dtype=np.int64)
        for row, feature in enumerate(features):
            if feature.tree is not None:
                found[:, row, self.place(len(feature.ids), length)] = np.transpose(feature.tree)
        return dict(zip(TREE, found, strict=True))

    def _begun(self, targets: Sequence[Sequence[int]]) -> Array:
        """Return what a decoder reads to predict each of the expected tokens, ``[rows, tokens]``."""
        longest = max((len(target) for target in targets), default=0)
        ids = np.full((len(targets), max(1, longest)), self.settings.pad_id, dtype=np.int64)
        for row, target in zip(ids, targets, strict=True):
            row[0] = self.settings.start_id
            row[1 : len(target)] = target[:-1]
        return ids

    def unpadded(self, feature: Feature, output: Array) -> Array:
        """Return what of a row of outputs is not of padding: ``[C]`` as it is, else the real tokens of ``[L, C]``."""
        if output.ndim < 2:
            return output
        if self.kind.writes:
            return output[: max(1, len(feature.target or ()))]
        return output[self.place(len(feature.ids), output.shape[0])]

    def place(self, tokens: int, length: int) -> slice:
        """Return where the ``tokens`` of a row stand among ``length`` padded places."""
        return slice(length - tokens, length) if self.settings.pad_side == "left" else slice(0, tokens)


def _without_cuts(text: str) -> Tokenizer:
    """Return the tokenizer of a text as ``tokenizer.json`` holds it, which neither cuts nor pads."""
    found = Tokenizer.from_str(text)
    found.no_padding()
    found.no_truncation()
    return found


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
