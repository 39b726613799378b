"""How examples of a kind become inputs, and outputs predictions: all that answering needs, with numpy alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from eval.examples import TEXT, TEXTS, Answer, Array, Example, Feature, Reads


class Reading:
    """What reading and answering ask of a kind; the defaults are those of one prediction for a text or a pair of texts.

    Attributes:
        name: What recipes call the kind.
        pairs: Whether examples may be pairs of texts that are read together, with one prediction.
        others: Fields of the other form of an example, if a prediction takes both.
        lists: Fields that hold a list of texts, with the least that a prediction needs.
        several: Whether an example gives several inputs, each for itself: its texts, or its choices.
        joined: Whether these are one row of training data, since a loss compares them.
        per_token: Whether the network predicts at every token. Long inputs are then cut into windows, others truncated.
        words: Whether texts are given as lists of words.
        half: Whether the first of two texts is cut to half of the room of an input, and the second into windows.
        masks: Whether it predicts masked words of unlabelled text; masks are drawn anew in every epoch.
        causal: Whether each token of a text is predicted from those before it. A text is then read whole, from an
            end-of-text token on, in windows that begin with the end of the one before.
        writes: Whether a text is answered with another one, token by token (``eval.generation.beam_search``).
    """

    name: str = ""
    pairs: bool = True
    others: tuple[str, ...] = ()
    lists: Mapping[str, int] = MappingProxyType({})
    several: bool = False
    joined: bool = False
    per_token: bool = False
    words: bool = False
    half: bool = False
    masks: bool = False
    causal: bool = False
    writes: bool = False

    def given(self, pair: bool) -> tuple[str, ...]:
        """Return the fields that a prediction needs.

        Args:
            pair: Whether the example is a pair of texts.
        """
        return TEXTS if pair and self.pairs else TEXT

    def read_line(self, line: str, fields: Sequence[str]) -> dict[str, Any]:
        """Return the example that a line of text is, to be predicted.

        Raises:
            ValueError: It has too few tabs or too many.
        """
        parts = line.split("\t") if len(fields) > 1 else [line]
        if len(parts) != len(fields):
            raise ValueError(f"expected {fields[0]}, one tab, {fields[1]}, or a JSON object with both")
        return dict(zip(fields, parts, strict=True))

    def reads_pairs(self, pair: bool) -> bool:
        """Return whether an input is two texts, for a task of pairs or not."""
        return pair

    def parts(self, example: Example, pair: bool) -> list[Any]:
        """Return what the tokenizer reads of an example: a text, two, or words; one for each input."""
        return [(example["text_a"], example["text_b"]) if pair else example["text"]]

    def role(self, example: Example, place: int) -> str:
        """Return what the text at a place of an example is: ``query`` or ``document``; empty where nothing tells."""
        del example, place
        return ""

    def truncates(self, settings: Reads, room: Callable[[int], int]) -> tuple[int, str]:
        """Return how many tokens windows share, and which of two texts is cut.

        Args:
            settings: Those of the encoder.
            room: Returns how many tokens fit beside the special ones of one text, or of two.

        Raises:
            ValueError: There is no room.
        """
        del room
        return 0, settings.truncation if settings.pair else "longest_first"

    def mark(self, feature: Feature, example: Example, encoding: Any, first: bool) -> None:
        """Write into a window what decoding will need.

        Args:
            feature: The window.
            example: The example it is a window of.
            encoding: That of the tokenizers library.
            first: Whether it is the first window.
        """

    def expected_text(self, example: Example) -> str | None:
        """Return the text that shall be written; None where the example does not say it, or nothing is written."""
        del example
        return None

    def written_several(self, settings: Reads, decoding: Any) -> list[list[list[int]]]:
        """Return the tokens of the texts that are written for each row; see ``eval.generation.beam_search.Writing``."""
        raise NotImplementedError(f"{type(self).__name__} writes no text")

    def kept(self, feature: Feature, output: Array) -> Array:
        """Return what of an output predictions are made of: by default all of it, in float32.

        Args:
            feature: The input.
            output: Unpadded, ``[C]`` or ``[tokens, C]``.
        """
        del feature
        return np.array(output, dtype=np.float32)

    def decode(
        self, settings: Reads, examples: Sequence[Example], features: Sequence[Feature], outputs: Sequence[Array]
    ) -> tuple[list[Answer], list[Array]]:
        """Turn outputs into predictions; see ``eval.inference.decode``."""
        del examples, features
        return [self.one_answer(settings, output) for output in outputs], list(outputs)

    def completed(
        self,
        examples: Sequence[Example],
        answers: Sequence[Answer],
        outputs: Sequence[Array],
        read: Callable[[Sequence[Example]], Sequence[Array]],
    ) -> list[Answer]:
        """Return predictions with what the outputs of the examples alone do not say; by default they say everything.

        Args:
            examples: The examples.
            answers: What ``decode`` made of each.
            outputs: Their raw outputs, as ``decode`` returned them.
            read: Returns the model's outputs for further examples.
        """
        del examples, outputs, read
        return list(answers)

    def one_answer(self, settings: Reads, logits: Array) -> Answer:
        """Return the prediction of one output ``[C]``: by default the likeliest label."""
        probabilities = softmax(logits)
        best = int(probabilities.argmax())
        return {"label": settings.labels[best], "probability": float(probabilities[best])}

    def regret(self, settings: Reads, feature: Feature, expected: Array, found: Array) -> Array:
        """Return, for each prediction, how much the reference prefers its own to another's; 0 for the same one.

        Args:
            settings: Those of the encoder.
            feature: The input.
            expected: Unpadded output of the reference; of a joined kind the scores of all inputs of an example.
            found: That of the other.
        """
        del settings, feature
        expected, found = np.atleast_2d(expected), np.atleast_2d(found)
        if not expected.size:
            return np.zeros(0)
        rows = np.arange(len(expected))
        return np.asarray(expected.max(axis=-1) - expected[rows, found.argmax(axis=-1)])

    def tie(self, scale: float) -> float:
        """Return the regret that still counts as equal, where the largest logit is ``scale``."""
        del scale
        return 0.0


def softmax(logits: Array) -> Array:
    """Return probabilities along the last axis, in float64."""
    shifted = np.asarray(logits, dtype=np.float64)
    exponents = np.exp(shifted - shifted.max(axis=-1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=-1, keepdims=True))
