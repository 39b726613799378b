"""Facts of a knowledge graph beside the words of a text that they are about: the sentence tree of K-BERT.

Source: Liu et al. 2020, arXiv 1909.07606. Of the toolkit it imports no more than what an export carries a copy of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

from eval.examples import Feature


class SentenceTrees:
    """Finds subjects of facts in encoded texts, and hangs relation and object of each fact on them as a branch.

    A subject is found where its tokens stand, from the beginning of a word to the end of one; of several at a place the
    longest. Branches stand behind all tokens of the text, not behind their mention as in the paper: the visible matrix
    and soft positions say where they belong, so attention gives the same, and the text's own tokens stay where they
    are. A branch that does not fit into ``max_length`` beside them is left out.

    Args:
        running: A tokenizer that gives words the tokens that they have in running text.
        plain: The same tokenizer, which gives those of words at the beginning of a text or behind punctuation.
        triples: Facts: subject, relation and object with tabs between them.
        most: Most branches of a mention: the first so many facts about it.
        max_length: Most tokens of an input.
        words: Whether texts are given as lists of words.

    Raises:
        ValueError: A fact is none.
    """

    def __init__(
        self, running: Tokenizer, plain: Tokenizer, triples: Sequence[str], most: int, max_length: int, words: bool
    ) -> None:
        self.max_length, self.words = max_length, words
        if bad := [triple for triple in triples if triple.count("\t") != 2]:
            raise ValueError(
                f"{len(bad):,} of {len(triples):,} triples are no subject, relation and object with tabs between them, "
                f"such as {bad[0][:60]!r}"
            )
        facts: dict[str, dict[str, None]] = {}
        for triple in triples:
            subject, relation, thing = triple.split("\t")
            known = facts.setdefault(subject, {})
            if len(known) < most:
                known[f"{relation} {thing}"] = None
        branches = iter(_tokens_of(running, [own for known in facts.values() for own in known]))
        unknown = _unknown_id(running)
        forms = zip(_tokens_of(running, list(facts)), _tokens_behind(plain, "(", list(facts)), strict=True)
        self._branches: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for known, both in zip(facts.values(), forms, strict=True):
            own = [next(branches) for _ in known]
            for form in both:
                if form and unknown not in form:
                    self._branches.setdefault(form, own)
        lengths: dict[int, set[int]] = {}
        for form in self._branches:
            lengths.setdefault(form[0], set()).add(len(form))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def hang(self, feature: Feature, encoding: Any, text: Any) -> None:
        """Put the branches of a text behind its tokens, in place; without any the feature stays as it is.

        Args:
            feature: What was made of the encoding.
            encoding: Of the tokenizers library, with offsets.
            text: What was encoded: a text, a pair, or the words of one.
        """
        room = self.max_length - len(feature.ids)
        tree, mention, branch = [(0, 0)] * len(feature.ids), 0, 0
        for start, end, branches in self._mentions(encoding, text):
            fitting: list[tuple[int, ...]] = []
            for own in branches:
                if len(own) <= room:
                    fitting.append(own)
                    room -= len(own)
            mention += bool(fitting)
            for place in range(start, end) if fitting else ():
                tree[place] = (0, mention)
            for own in fitting:
                branch += 1
                feature.ids = [*feature.ids, *own]
                feature.type_ids = [*feature.type_ids, *[feature.type_ids[start]] * len(own)]
                tree += [(branch, mention)] * len(own)
        if not mention:
            return
        feature.tree = tree
        if feature.words is not None:
            feature.words = [*feature.words, *[-1] * (len(tree) - len(feature.words))]

    def _mentions(self, encoding: Any, text: Any) -> Iterator[tuple[int, int, list[tuple[int, ...]]]]:
        """Yield the first token of each mention, the one after its last, and its branches."""
        ids = encoding.ids
        if self._lengths.keys().isdisjoint(ids):
            return
        borders = _Borders(encoding, text, self.words)
        place = 0
        while place < len(ids):
            for length in self._lengths.get(ids[place], ()):
                found = self._branches.get(tuple(ids[place : place + length]))
                if found is not None and borders.around(place, place + length - 1):
                    yield place, place + length, found
                    place += length - 1
                    break
            place += 1


class _Borders:
    """Where words begin and end in an encoding: between two letters or digits only where the tokenizer splits."""

    def __init__(self, encoding: Any, text: Any, words: bool) -> None:
        self.parts = [text] if isinstance(text, str) else list(text)
        self.words, self.offsets = encoding.word_ids, encoding.offsets
        self.part_of = self.words if words else encoding.sequence_ids

    def around(self, first: int, last: int) -> bool:
        """Whether words begin at one token and end at another, both of the same text."""
        begins, ends = self.offsets[first][0], self.offsets[last][1]
        return self._apart(first - 1, first, first, begins) and self._apart(last, last + 1, last, ends)

    def _apart(self, before: int, after: int, token: int, at: int) -> bool:
        if self.words[token] is None:  # a special token
            return False
        neighbours = [self.words[place] if 0 <= place < len(self.words) else None for place in (before, after)]
        if None not in neighbours and neighbours[0] != neighbours[1]:
            return True
        text = self.parts[self.part_of[token]]
        return not (at > 0 and text[at - 1 : at].isalnum() and text[at : at + 1].isalnum())


def _tokens_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[tuple[int, ...]]:
    words = [text.split() for text in texts]
    return [tuple(one.ids) for one in tokenizer.encode_batch(words, is_pretokenized=True, add_special_tokens=False)]


def _tokens_behind(tokenizer: Tokenizer, mark: str, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the tokens of each text right behind a mark; none where it makes others of the mark."""
    first, *found = tokenizer.encode_batch([mark, *(mark + text for text in texts)], add_special_tokens=False)
    count = len(first.ids)
    return [tuple(one.ids[count:]) if one.ids[:count] == first.ids else () for one in found]


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of the token that stands for words which the tokenizer does not know."""
    model = json.loads(tokenizer.to_str())["model"]
    named = model.get("unk_token")
    return model.get("unk_id") if named is None else tokenizer.token_to_id(named)
