"""The ``augment`` block of a recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from compress.augment.tagger import CURES
from compress.reading.base_block import Block

OWN = {
    "tinybert": ("model", "vectors", "beside", "replace", "candidates"),
    "bilstm": ("mask", "pos", "ngram", "mask_word", "tagger"),
}
"""Fields of ``augment`` that belong to one rule."""


class AugmentBlock(Block):
    """What a student learns from beside the task's own examples: changed copies of them, and unlabelled text.

    Attributes:
        rule: ``tinybert`` (words replaced by a masked-language model's and by neighbours; copies keep their label) or
            ``bilstm`` (words masked or replaced within their part of speech, random parts; copies have no label).
        copies: Draws for each example, repeats left out; by default 20, for pairs under ``bilstm`` 10.
        seed: Seeds the draws of copies and of ``limit``; by default the recipe's seed.
        unlabelled: A file of texts of the same domain, which only the teacher answers; labels in it are not read, and
            texts that stand in a split of the task are left out.
        limit: Most texts of ``unlabelled``; a sample is drawn.
        model: tinybert: folder or hub name of a masked-language model.
        vectors: tinybert: a text file of word vectors, such as GloVe's, for words of several pieces; by default the
            embedding table of ``model``.
        beside: tinybert: whether ``model`` sees the whole text beside the one with a masked word.
        replace: tinybert: probability that a word is replaced.
        candidates: tinybert: words among which the replacement is drawn.
        mask: bilstm: probability that a word is masked.
        pos: bilstm: probability that a word is replaced by one with the same tag.
        ngram: bilstm: probability that a text is truncated to 1 to 5 neighbouring words.
        mask_word: bilstm: what a masked word becomes; by default the mask token of the teacher's tokenizer.
        tagger: bilstm: a spaCy pipeline, or ``data`` for the tags of a tagging task; needed unless ``pos`` is 0.
    """

    rule: Literal["tinybert", "bilstm"] | None = None
    copies: int | None = Field(default=None, ge=0)
    seed: int | None = Field(default=None, ge=0, lt=2**32)
    unlabelled: str | None = None
    limit: int | None = Field(default=None, ge=1)
    model: str | None = None
    vectors: str | None = None
    beside: bool = True
    replace: float = Field(default=0.4, ge=0, le=1)
    candidates: int = Field(default=15, ge=1)
    mask: float = Field(default=0.1, ge=0, le=1)
    pos: float = Field(default=0.1, ge=0, le=1)
    ngram: float = Field(default=0.25, ge=0, le=1)
    mask_word: str | None = Field(default=None, min_length=1)
    tagger: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> AugmentBlock:
        if self.rule is None and self.unlabelled is None:
            raise ValueError("say what is added: rule (tinybert or bilstm), unlabelled (a file of texts), or both")
        texts = ("unlabelled", "limit")
        own = (*texts, "seed") if self.rule is None else ("rule", "copies", "seed", *texts, *OWN[self.rule])
        foreign = [name for name in type(self).model_fields if name in self.model_fields_set and name not in own]
        if foreign:
            rule = "unlabelled text without a rule" if self.rule is None else f"the rule {self.rule}"
            raise ValueError(f"{', '.join(foreign)}: does not belong here; {rule} takes {', '.join(own)}")
        if self.limit is not None and self.unlabelled is None:
            raise ValueError("limit: says how many unlabelled texts are read; give unlabelled, or leave it out")
        if self.rule == "tinybert" and self.model is None:
            raise ValueError(
                "model: tinybert needs a masked-language model; name a folder or hub name, such as the base that the "
                "teacher was fine-tuned from"
            )
        if self.rule == "bilstm" and self.mask + self.pos > 1:
            raise ValueError(f"mask + pos: got {self.mask + self.pos:g}, must be at most 1")
        if self.rule == "bilstm" and self.pos and self.tagger is None:
            raise ValueError(f"pos: words of the same tag need a tagger; {CURES}")
        return self

    @property
    def keeps_labels(self) -> bool:
        """Whether everything that is added has a label."""
        return self.rule != "bilstm" and self.unlabelled is None

    def copies_of(self, pair: bool) -> int:
        """Return the draws for each example."""
        usual = 10 if pair and self.rule == "bilstm" else 20
        return usual if self.copies is None else self.copies
