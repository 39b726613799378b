"""Film reviews from a seeded grammar, made so that counting words is not enough.

Every polar word is used in both classes: negation reverses it, contrast makes the later or the main clause decide,
other people's opinions and other films distract, and expectations are met or not.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

LABELS = ("negative", "positive")
UNLABELLED = "unlabelled.txt"
SENTENCES = {"test": 2_000, "validation": 200, "train": 300, UNLABELLED: 1_700}
"""How many sentences there are of each kind: few labels, as most have them; a margin needs thousands to be shown."""


def _words(text: str) -> list[str]:
    return text.split()


ADJECTIVES = {
    1: _words("good great lovely gripping funny warm clever honest moving fresh sharp elegant delightful brilliant"),
    0: _words("bad dull awful boring silly cold clumsy fake tired stale flat messy dreadful forgettable"),
}
NOUNS = {
    1: _words("charm wit heart grace energy suspense craft beauty"),
    0: _words("clichés noise padding gloom filler errors gaps nonsense"),
}
VERBS = {1: _words("enjoyed liked loved admired recommend"), 0: _words("hated disliked regretted endured resent")}
ASPECTS = _words("film movie story plot cast script music ending acting dialogue camera pacing")
OTHERS = _words("trailer poster book sequel remake series queue popcorn weather cinema")
PEOPLE = ["my brother", "the critic", "everyone", "my neighbour", "the reviewer", "a friend"]
STRONG = _words("very really truly utterly deeply quite surprisingly")
NEGATIONS = ["not", "never", "hardly", "not at all", "far from", "anything but"]
NEUTRAL = [
    "we saw it on a tuesday",
    "it runs for two hours",
    "it was shot in a small town",
    "the tickets were ten euros",
    "it is based on a true story",
    "i watched it with my sister",
    "there is a short scene after the credits",
]


class Grammar:
    """Draws sentences whose label is known by construction.

    Args:
        seed: Equal seeds give equal sentences.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def review(self) -> tuple[str, int]:
        """Return a review and its label, 1 for positive."""
        label = self.random.randrange(2)
        pattern = self.random.choice(
            [self.plain, self.contrast, self.concession, self.expectation, self.hearsay, self.comparison, self.pair]
        )
        text = pattern(label)
        if self.random.random() < 0.15:
            text = self._beside(text, self.random.choice(NEUTRAL))
        if self.random.random() < 0.15:
            distractor = f"the {self.pick(OTHERS)} was {self.adjective(self.random.randrange(2))}"
            text = self._beside(text, distractor)
        return text + " .", label

    def pick(self, words: list[str]) -> str:
        """Return one of the words."""
        return self.random.choice(words)

    def adjective(self, polarity: int) -> str:
        """Return an adjective of this polarity, sometimes strengthened."""
        word = self.pick(ADJECTIVES[polarity])
        return f"{self.pick(STRONG)} {word}" if self.random.random() < 0.4 else word

    def clause(self, polarity: int, subject: str | None = None) -> str:
        """Return a statement about the film; many say it by denying the opposite."""
        denied = self.random.random() < 0.4
        word = 1 - polarity if denied else polarity
        subject = subject or f"the {self.pick(ASPECTS)}"
        form = self.random.randrange(3)
        if form == 0:
            negation = f"{self.pick(NEGATIONS)} " if denied else ""
            return f"{subject} was {negation}{self.adjective(word)}"
        if form == 1:
            return f"{subject} {'lacks' if denied else 'is full of'} {self.pick(NOUNS[word])}"
        return f"i {'never ' if denied else ''}{self.pick(VERBS[word])} {subject}"

    def plain(self, label: int) -> str:
        """One statement."""
        return self.clause(label)

    def contrast(self, label: int) -> str:
        """What comes after "but" decides."""
        return f"{self.clause(1 - label)} , {self.pick(['but', 'yet', 'still', 'however'])} {self.clause(label)}"

    def concession(self, label: int) -> str:
        """The main clause decides, wherever it stands."""
        side, main = self.clause(1 - label), self.clause(label)
        word = self.pick(["although", "even though", "while"])
        return f"{word} {side} , {main}" if self.random.random() < 0.5 else f"{main} , {word} {side}"

    def expectation(self, label: int) -> str:
        """An expectation that is met or not."""
        hoped = self.random.randrange(2)
        outcome = "it was" if hoped == label else "it was not"
        joint = "and" if hoped == label else "but"
        return f"i expected something {self.adjective(hoped)} , {joint} {outcome}"

    def hearsay(self, label: int) -> str:
        """Somebody else's opinion, and whether the writer shares it."""
        said = self.random.randrange(2)
        answer = self.pick(
            ["and i agree", "and that is true"] if said == label else ["but i disagree", "which is wrong"]
        )
        return f"{self.pick(PEOPLE)} called it {self.adjective(said)} , {answer}"

    def comparison(self, label: int) -> str:
        """The other film is praised or blamed; this one is the opposite."""
        other = "worse" if label else "better"
        adjective = self.adjective(1 - label)
        return f"the {self.pick(OTHERS[2:6])} was {adjective} and this one is its opposite , the other is {other}"

    def pair(self, label: int) -> str:
        """Two statements that agree."""
        return f"{self.clause(label)} and {self.clause(label)}"

    def _beside(self, text: str, other: str) -> str:
        return f"{text} ; {other}" if self.random.random() < 0.5 else f"{other} ; {text}"


def write(folder: Path, seed: int = 13) -> None:
    """Write ``data`` with its splits, and ``unlabelled.txt``; no sentence stands in two of them.

    Args:
        folder: Where the files go.
        seed: Equal seeds give equal files.
    """
    (folder / "data").mkdir(parents=True, exist_ok=True)
    grammar = Grammar(seed)
    seen: set[str] = set()
    for name, count in SENTENCES.items():
        drawn: list[tuple[str, int]] = []
        while len(drawn) < count:
            text, label = grammar.review()
            if text not in seen:
                seen.add(text)
                drawn.append((text, label))
        if name == UNLABELLED:
            (folder / UNLABELLED).write_text("".join(f"{text}\n" for text, _ in drawn), encoding="utf-8")
            continue
        lines = [json.dumps({"text": text, "label": LABELS[label]}, ensure_ascii=False) for text, label in drawn]
        (folder / "data" / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
