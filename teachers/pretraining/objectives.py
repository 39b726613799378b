"""The objectives of pretraining that ask about tokens; any of them stand together in one training, with weights.

An objective *asks*: it changes a sequence and writes down what belongs to which of its places. Its *head* answers from
the hidden states. To add one: a class and a field here, its maths in a file beside this one, and a parity test. What
asks about whole sequences stands in ``teachers.pretraining.sequences``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from eval.encoding import IGNORED
from teachers.named import NamedBlock
from teachers.pretraining import masking, words
from teachers.pretraining.corpus import CAPITAL, Array, Corpus
from teachers.pretraining.drawn import Drawn, Frame
from teachers.pretraining.phrases import Phrases

if TYPE_CHECKING:
    from teachers.pretraining.heads import Head

Ask = Callable[[Drawn, np.random.Generator], None]
"""Changes a sequence, in place, and adds its targets."""


@dataclass(frozen=True)
class Text:
    """What objectives read beside a sequence.

    Attributes:
        corpus: Where sequences come from.
        frame: Special and ordinary tokens.
        tokenizer: A fast tokenizer of transformers.
    """

    corpus: Corpus
    frame: Frame
    tokenizer: Any

    @cached_property
    def document_tokens(self) -> Callable[[int], Array]:
        """Return the tokens of a document, ``[T]``, by its number."""
        starts, sentences = self.corpus.document_starts, self.corpus.sentence_starts
        return lambda number: self.corpus.tokens[sentences[starts[number]] : sentences[starts[number + 1]]]


class PretextObjective(BaseModel):
    """Base of the objectives.

    Attributes:
        weight: What its loss is multiplied by.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    changes: ClassVar[bool] = False
    """Whether it changes what the model sees; such objectives ask first, and the others see what they have taken."""
    predicts_words: ClassVar[bool] = False
    """Whether its answers are words, so that the network needs a masked-language head."""

    weight: float = Field(default=1.0, gt=0)

    def ask(self, text: Text) -> Ask:
        """Return what asks, prepared for a corpus.

        Raises:
            UserError: If there is nothing to ask about in it.
        """
        raise NotImplementedError

    def head(self, network: Any) -> Head:
        """Return what answers, for this network."""
        raise NotImplementedError


class MaskedWords(PretextObjective):
    """Hide tokens and ask for them.

    BERT hides single tokens, BERT-wwm whole words, SpanBERT spans of words, ERNIE 1.0 first words, then phrases, then
    named entities. The share of tokens is the same for all.

    Attributes:
        units: What is hidden together. ``phrase`` needs ``lists``, and hides other words whole.
        rate: Share of the tokens that is hidden.
        mask: Share of the hidden ones that become the mask token.
        random: Share that becomes a random token; the rest stays.
        p: Parameter of the geometric distribution of the lengths of spans.
        longest: Most words of a span.
        lists: Files with a phrase, a named entity, or a word of a script without spaces a line.

    Source: Devlin et al. 2019 (1810.04805), Cui et al. 2019 (1906.08101), Joshi et al. 2020 (1907.10529), Sun et al.
    2019 (1904.09223).
    """

    changes: ClassVar[bool] = True
    predicts_words: ClassVar[bool] = True

    units: Literal["token", "word", "span", "phrase"] = "token"
    rate: float = Field(default=0.15, gt=0, lt=1)
    mask: float = Field(default=0.8, ge=0, le=1)
    random: float = Field(default=0.1, ge=0, le=1)
    p: float = Field(default=0.2, gt=0, lt=1)
    longest: int = Field(default=10, ge=1)
    lists: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _whole(self) -> MaskedWords:
        if self.mask + self.random > 1:
            raise ValueError(
                f"mask {self.mask:g} and random {self.random:g} are shares of one whole; at most 1 together"
            )
        if (self.units == "phrase") != bool(self.lists):
            raise ValueError("lists go with 'units: phrase', and it with lists: files with one phrase a line")
        return self

    def ask(self, text: Text) -> Ask:
        """Hide ``rate`` of each sequence."""
        phrases = Phrases.read([Path(name) for name in self.lists], text.tokenizer, text.corpus) if self.lists else None
        how = masking.Replacement(self.mask, self.random, by_unit=self.units == "span")
        frame = text.frame

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            numbers = np.where(drawn.taken, -1, drawn.words)
            units = self._units(drawn, numbers.tolist(), phrases)
            budget = masking.budget_of(units, self.rate)
            if self.units == "span":
                chosen = masking.choose_spans(units, budget, chance, self.p, self.longest)
                _mark_spans(drawn, chosen)
            else:
                chosen = masking.choose(units, budget, chance)
            drawn.ids, labels = masking.hide(
                drawn.ids, chosen, frame.mask, lambda count: frame.random(count, chance), chance, how
            )
            drawn.targets["masked_words"] = labels
            drawn.taken = drawn.taken | (labels != IGNORED)

        return ask

    def head(self, network: Any) -> Head:
        """Return the network's own masked-language head."""
        from teachers.pretraining.heads import WordHead

        return WordHead(network, "masked_words")

    def _units(self, drawn: Drawn, numbers: list[int], phrases: Phrases | None) -> masking.Units:
        if phrases is not None:
            return masking.phrases(numbers, phrases.found(drawn.ids, numbers))
        return masking.tokens(numbers) if self.units == "token" else masking.whole_words(numbers)


def _mark_spans(drawn: Drawn, spans: masking.Units) -> None:
    """Write down, for each hidden token, the places before and after its span and its number in the span."""
    for name in ("span_before", "span_after", "span_number"):
        drawn.targets[name] = np.full_like(drawn.ids, IGNORED)
    for span in spans:
        drawn.targets["span_before"][span] = span[0] - 1
        drawn.targets["span_after"][span] = span[-1] + 1
        drawn.targets["span_number"][span] = np.arange(len(span))


class SpanBoundary(PretextObjective):
    """Ask for each token of a hidden span by the tokens around the span; needs masked_words with units span.

    Source: Joshi et al. 2020 (1907.10529).
    """

    predicts_words: ClassVar[bool] = True

    def ask(self, text: Text) -> Ask:
        """Ask for nothing more: what masked_words hides is asked for a second time."""
        del text

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            del chance
            drawn.targets["span_boundary"] = drawn.targets["masked_words"]

        return ask

    def head(self, network: Any) -> Head:
        """Return two dense layers over both ends of a span, and the decoder of the network's own words."""
        from teachers.pretraining.span_boundary import SpanBoundaryHead

        return SpanBoundaryHead(network)


class WordOrder(PretextObjective):
    """Shuffle runs of three tokens and ask which stood where.

    Attributes:
        rate: Share of the tokens in shuffled runs.
        size: Tokens of a run.

    Source: Wang et al. 2019 (StructBERT, 1908.04577).
    """

    changes: ClassVar[bool] = True
    predicts_words: ClassVar[bool] = True

    rate: float = Field(default=0.05, gt=0, lt=1)
    size: int = Field(default=3, ge=2)

    def ask(self, text: Text) -> Ask:
        """Shuffle among the tokens that no other objective has taken."""
        del text

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            able = np.flatnonzero(~drawn.taken).tolist()
            drawn.ids, labels = words.shuffle_trigrams(drawn.ids, able, self.rate, chance, self.size)
            drawn.targets["word_order"] = labels
            drawn.taken = drawn.taken | (labels != IGNORED)

        return ask

    def head(self, network: Any) -> Head:
        """Return the network's own masked-language head."""
        from teachers.pretraining.heads import WordHead

        return WordHead(network, "word_order")


class Capitals(PretextObjective):
    """Ask of each word whether it begins with a capital; for tokenizers that write everything small.

    Source: Sun et al. 2020 (ERNIE 2.0, 1907.12412).
    """

    def ask(self, text: Text) -> Ask:
        """Ask at the first token of every word."""
        corpus = text.corpus

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            del chance
            flags = (corpus.flags[np.maximum(drawn.places, 0)] & CAPITAL) > 0
            first = np.flatnonzero(np.diff(drawn.words, prepend=-2) != 0)
            capital = {int(drawn.words[place]): bool(flags[place]) for place in first}
            drawn.targets["capitals"] = words.capitals(drawn.words.tolist(), capital)

        return ask

    def head(self, network: Any) -> Head:
        """Return a classifier of two classes over tokens."""
        from teachers.pretraining.heads import TokenHead

        return TokenHead(network, "capitals", 2)


class InDocument(PretextObjective):
    """Ask of each token whether it stands elsewhere in its document too.

    Source: Sun et al. 2020 (ERNIE 2.0, 1907.12412), token-document relation.
    """

    def ask(self, text: Text) -> Ask:
        """Ask at every token that is neither special nor hidden."""
        tokens_of = text.document_tokens

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            del chance
            inside = drawn.places[drawn.places >= 0]
            own = np.bincount(text.corpus.tokens[inside])
            whole = np.bincount(tokens_of(drawn.document), minlength=len(own))
            others = np.flatnonzero(whole[: len(own)] > own).tolist()
            able = np.flatnonzero(~drawn.taken).tolist()
            drawn.targets["in_document"] = words.in_document(drawn.ids.tolist(), others, able)

        return ask

    def head(self, network: Any) -> Head:
        """Return a classifier of two classes over tokens."""
        from teachers.pretraining.heads import TokenHead

        return TokenHead(network, "in_document", 2)


class ReplacedTokens(PretextObjective):
    """Let a small generator fill hidden places, and ask of every token whether it was replaced; alone in its training.

    Attributes:
        rate: Share of the tokens that the generator fills.
        kept: Share of these that the generator sees as they are; none become random tokens. 0.15 is the authors' code.
        generator: Width of the generator's layers, as a part of the network's.
        discriminator_weight: What the discriminator's loss is multiplied by.

    Source: Clark et al. 2020 (ELECTRA, 2003.10555).
    """

    changes: ClassVar[bool] = True

    rate: float = Field(default=0.15, gt=0, lt=1)
    kept: float = Field(default=0.15, ge=0, lt=1)
    generator: float = Field(default=0.25, gt=0, le=1)
    discriminator_weight: float = Field(default=50.0, gt=0)

    def ask(self, text: Text) -> Ask:
        """Hide what the generator fills."""
        hide = MaskedWords(rate=self.rate, mask=1 - self.kept, random=0.0).ask(text)

        def ask(drawn: Drawn, chance: np.random.Generator) -> None:
            hide(drawn, chance)
            drawn.targets["generator"] = drawn.targets.pop("masked_words")

        return ask

    def head(self, network: Any) -> Head:
        """Return the generator and the discriminator's head."""
        from teachers.pretraining.replaced import Discriminator

        return Discriminator(network, self.generator, self.discriminator_weight)


class Objectives(NamedBlock):
    """What is asked of each sequence; see the class of each field."""

    masked_words: MaskedWords | None = None
    word_order: WordOrder | None = None
    replaced_tokens: ReplacedTokens | None = None
    span_boundary: SpanBoundary | None = None
    capitals: Capitals | None = None
    in_document: InDocument | None = None

    @model_validator(mode="after")
    def _fitting(self) -> Objectives:
        masks = self.masked_words
        if self.span_boundary is not None and (masks is None or masks.units != "span"):
            raise ValueError("span_boundary needs masked_words with 'units: span', whose spans it asks for")
        if self.replaced_tokens is not None and len(self.given) > 1:
            raise ValueError("replaced_tokens fills the sequences itself; leave the other objectives out")
        return self

    @property
    def given(self) -> dict[str, PretextObjective]:
        """The objectives by name; those that change sequences come first."""
        found = {name: own for name, own in self if own is not None}
        return dict(sorted(found.items(), key=lambda item: not item[1].changes))
