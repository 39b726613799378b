"""Masked language: hidden tokens are asked for; single ones, whole words, spans, or phrases and names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from eval.encoding import IGNORED
from teachers.pretraining.objectives import masking
from teachers.pretraining.objectives.phrases import Phrases
from teachers.pretraining.objectives.pretext_objective import Ask, PretextObjective, Text
from teachers.pretraining.text.corpus import Array
from teachers.pretraining.text.sequence import Drawn

if TYPE_CHECKING:
    from teachers.pretraining.prediction_heads import Head


class MaskedLM(PretextObjective):
    """Hide tokens and ask for them.

    BERT hides single tokens, BERT-wwm whole words, SpanBERT spans of words, ALBERT n-grams of words, ERNIE 1.0 first
    words, then phrases, then named entities. The share of tokens is the same for all.

    Attributes:
        units: What is hidden together. ``span``: words whose number is geometrically distributed; all tokens of a span
            become masks, or all random, or all stay. ``ngram``: n words with a chance in proportion to 1/n; as with all
            other units, each token has a draw of its own. ``phrase`` needs ``lists``, and hides other words whole.
        rate: Share of the tokens that is hidden.
        mask: Share of the hidden ones that become the mask token.
        random: Share that becomes a random token; the rest stays.
        p: Parameter of the geometric distribution of the lengths of spans.
        longest: Most words of a span, 10 by default, or of an n-gram, 3 by default; both as in the papers.
        lists: Files with a phrase, a named entity, or a word of a script without spaces a line.

    Source: Devlin et al. 2019 (1810.04805), Cui et al. 2019 (1906.08101), Joshi et al. 2020 (1907.10529), Lan et al.
    2020 (1909.11942), Sun et al. 2019 (1904.09223).
    """

    changes: ClassVar[bool] = True
    predicts_words: ClassVar[bool] = True

    units: Literal["token", "word", "span", "ngram", "phrase"] = "token"
    rate: float = Field(default=0.15, gt=0, lt=1)
    mask: float = Field(default=0.8, ge=0, le=1)
    random: float = Field(default=0.1, ge=0, le=1)
    p: float = Field(default=0.2, gt=0, lt=1)
    longest: int | None = Field(default=None, ge=1)
    lists: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> MaskedLM:
        masking.check_shares(self.mask, self.random)
        if (self.units == "phrase") != bool(self.lists):
            raise ValueError("lists go with 'units: phrase', and it with lists: files with one phrase a line")
        return self

    def ask(self, text: Text) -> Ask:
        """Hide ``rate`` of each sequence."""
        phrases = Phrases.read([Path(name) for name in self.lists], text.tokenizer, text.corpus) if self.lists else None
        how = masking.Replacement(self.mask, self.random, by_unit=self.units == "span")
        frame, shares = text.frame, self._shares()

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            numbers = np.where(drawn.taken, -1, drawn.words)
            units = self._units(drawn, numbers.tolist(), phrases)
            budget = masking.budget_of(units, self.rate)
            if shares is None:
                chosen = masking.choose(units, budget, chance)
            else:
                chosen = masking.choose_spans(units, budget, chance, shares)
            if self.units == "span":
                mark_spans(drawn, chosen)
            drawn.ids, labels = masking.hide(
                drawn.ids, chosen, frame.mask, lambda count: frame.random(count, chance), chance, how
            )
            drawn.targets["mlm"] = labels
            drawn.taken = drawn.taken | (labels != IGNORED)

        return ask

    def head(self, network: Any) -> Head:
        """Return the network's own masked-language head."""
        from teachers.pretraining.prediction_heads import WordHead

        return WordHead(network, "mlm")

    def _shares(self) -> Array | None:
        """Return the probabilities of 1, 2, 3 ... words that are hidden together, where chance decides how many."""
        if self.units == "span":
            return masking.span_lengths(self.p, self.longest or 10)
        return masking.ngram_lengths(self.longest or 3) if self.units == "ngram" else None

    def _units(self, drawn: Drawn, numbers: list[int], phrases: Phrases | None) -> masking.Units:
        if phrases is not None:
            return masking.phrases(numbers, phrases.found(drawn.ids, numbers))
        return masking.tokens(numbers) if self.units == "token" else masking.whole_words(numbers)


def mark_spans(drawn: Drawn, spans: masking.Units) -> None:
    """Write down, for each hidden token, the places before and after its span and its number in the span."""
    for name in ("span_before", "span_after", "span_number"):
        drawn.targets[name] = np.full_like(drawn.ids, IGNORED)
    for span in spans:
        drawn.targets["span_before"][span] = span[0] - 1
        drawn.targets["span_after"][span] = span[-1] + 1
        drawn.targets["span_number"][span] = np.arange(len(span))
