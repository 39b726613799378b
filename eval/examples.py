"""Plain data between files and metrics: examples, the inputs made of them, predictions, and what is read of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]
Answer = dict[str, Any]
Example = Mapping[str, Any]
"""One item of data, with the field names of its file:

``text`` or ``text_a`` and ``text_b`` with ``label`` (classification, regression) or with ``labels``, a sorted list
(multilabel); ``tokens`` with ``tags`` (tagging);
``id``, ``question``, ``context`` with ``answers`` = ``[{"text", "answer_start"}]`` (qa; in qa-with-null it may be
empty); ``text`` (masked-lm, causal-lm);
``text`` with a class as ``label``, or ``text_a`` and ``text_b`` with a number as ``label`` (embedding);
``text`` and ``choices``, a list of texts, with the place of the right one from 0 as ``label`` (multiple-choice);
``source`` with ``target``, and maybe further right texts as ``references`` (seq2seq).
Unlabelled examples lack the last field. Any example may have a ``group``, the name of what it is drawn with: its
document, its paragraph, its query.
"""

IGNORED = -100
"""Target of a place that neither loss nor score counts."""
TEXT, TEXTS = ("text",), ("text_a", "text_b")
"""Fields of an example of one text, and of two."""

ROLES = ("query", "document")
"""What a text can be where documents are searched; an example may say it of itself as ``prompt_name``."""


def with_title(text: str, title: str | None) -> str:
    """Return the text of a document as every model reads it: its title in front, no white space around it.

    Examples:
        >>> with_title("a warm film", "Films"), with_title(" a warm film", None)
        ('Films a warm film', 'a warm film')
    """
    return f"{title or ''} {text}".strip()


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
        context: For causal-lm, how many tokens at the start are not predicted in this window.
        target: For seq2seq, the tokens that shall be written, with the one that ends them; None where nobody knows.
        tree: For a sentence tree, the branch that each token is of (0 for the text itself) and the mention that it is
            of or hangs on (0 for none), both from 1; None without any branch. Branches stand behind the text.
    """

    example: int
    ids: list[int]
    type_ids: list[int]
    words: list[int] | None = None
    offsets: list[tuple[int, int] | None] | None = None
    context: int | None = None
    target: list[int] | None = None
    tree: list[tuple[int, int]] | None = None

    @property
    def of_text(self) -> int:
        """How many of the tokens are those of the text and around it; all without branches."""
        return len(self.ids) if self.tree is None else sum(branch == 0 for branch, _ in self.tree)


class Reads(Protocol):
    """What a kind reads of ``EncoderSettings``."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names or tags by id."""
        ...

    @property
    def pair(self) -> bool:
        """Whether an example is a pair of texts."""
        ...

    @property
    def max_length(self) -> int:
        """Most tokens of an input."""
        ...

    @property
    def beginning(self) -> int:
        """The token that begins a text of causal-lm."""
        ...

    @property
    def end_id(self) -> int:
        """The end-of-text token of causal-lm and seq2seq."""
        ...

    @property
    def start_id(self) -> int:
        """The token that a decoder begins with."""
        ...

    @property
    def target_length(self) -> int:
        """Most tokens that are written."""
        ...

    @property
    def beams(self) -> int:
        """Beginnings that are kept while a text is written."""
        ...

    @property
    def length_penalty(self) -> float:
        """The power of its length that the score of a text is divided by."""
        ...

    @property
    def stride(self) -> int:
        """Tokens shared by windows."""
        ...

    @property
    def truncation(self) -> str:
        """Which text of a pair is cut."""
        ...

    @property
    def pad_side(self) -> str:
        """Where padding stands: right, or left with the classifier token on the right."""
        ...

    @property
    def thresholds(self) -> tuple[float, ...]:
        """From where on something is answered; empty for the kind's usual ones."""
        ...


class Asks(Protocol):
    """What a kind reads of a ``TaskSpec``."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names or tags by id."""
        ...

    @property
    def metric(self) -> str:
        """The primary metric."""
        ...

    @property
    def pair(self) -> bool:
        """Whether an example is a pair of texts."""
        ...

    @property
    def class_weights(self) -> tuple[float, ...] | None:
        """Weight of each label in the loss."""
        ...

    @property
    def negatives(self) -> int:
        """Documents that are not relevant, of which each training query has so many."""
        ...
