"""Subword tokens that a corpus never uses are dropped, from the tokenizer and the network together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from compress.technique import Inputs, Measure, Need, Outcome, Technique
from compress.traits import Trait
from eval.errors import UserError

if TYPE_CHECKING:
    import torch

    from eval.encoding import TextEncoder
    from eval.task import Examples
    from teachers.taskmodel import TaskModel

logger = logging.getLogger("compress.prune")

SHOWN = 20
"""Most pieces that ``facts`` name as lost."""


class VocabularyPruning(Technique):
    """Drop the subword tokens that a corpus uses less than ``min_count`` times, and their rows of the network.

    With ``n_v`` the times that piece v stands in the corpus, the pieces ``{v : n_v >= min_count}`` stay, and so do the
    special and added tokens, ``keep``, every piece of one character or byte, and what these rest on. Pieces are
    numbered anew in their old order; the table of word embeddings, and the weight and bias of a masked-language head,
    keep their rows. A text whose pieces are all kept is cut as before and gives exactly the same outputs; a word whose
    piece is gone is cut into shorter ones, down to letters, and never becomes unknown for that.

    WordPiece and unigram tokenizers lose single pieces. Byte-level BPE builds pieces from pieces: every merge that
    leads to a kept piece stays, with its parts, though a corpus shows only the last of them.

    Attributes:
        min_count: Times that a piece must occur to stay. Default 1: only what never occurs is dropped.
        files: Texts to count in instead of the training examples, one a line.
        keep: Pieces that stay in any case, as the tokenizer writes them (``##ing``, ``Ġthe``, ``▁the``), or the name of
            a file with one a line.

    Needs:
        Training examples, which are counted as the model reads them; nothing with ``files``.

    Reduces:
        Parameters, non-zeros and bytes, not multiply-accumulates: a table is looked up. The result is a standard model.

    Limits:
        Texts with words that the corpus has not are cut finer, into pieces that the model knows less well:
        ``facts`` say how many of the validation texts. Teachers and students that compare single tokens must cut the
        training texts alike, which they do after ``min_count: 1`` over these very texts; else put this step last. A
        causal language model learns the logits of the pieces it has left; one of masked words must be distilled before.
        A table that is packed already has no rows to choose from. Where positions are counted from the padding token,
        as in RoBERTa, the pieces before it stay.

    Source:
        Abdaoui, Pradel, Sigel 2020, arXiv 2010.05609; the rules for what must stay are our own.
    """

    name: ClassVar[str] = "prune.vocabulary"
    needs: ClassVar[frozenset[Need]] = frozenset({"train"})
    reduces: ClassVar[frozenset[Measure]] = frozenset({"parameters", "nonzero", "bytes", "export_bytes"})
    requires: ClassVar[Mapping[Trait, str]] = {
        "float_embeddings": "rows can only be chosen from a table that is not packed; put it before",
    }
    source: ClassVar[str] = "Abdaoui, Pradel, Sigel 2020, arXiv 2010.05609"
    version: ClassVar[int] = 2

    min_count: int = Field(default=1, ge=1)
    files: tuple[str, ...] = ()
    keep: tuple[str, ...] | str = ()

    def needed(self) -> frozenset[Need]:
        """Return training examples, unless files are counted."""
        return frozenset() if self.files else self.needs

    def check(self, student: TaskModel, inputs: Inputs) -> list[str]:
        """Refuse tokenizers and tables of other kinds, files that are not there, and pieces that do not exist."""
        from compress.prune.subwords import KINDS, kind_of
        from teachers.anatomy.embedding_rows import has_plain_table
        from teachers.anatomy.encoder import family_of

        del inputs
        found, family = [], family_of(student.model).model_type
        if (kind := kind_of(student.tokenizer)) not in KINDS:
            found.append(
                f"the tokenizer of this {family} is a {kind}, which does not cut words that it has not; those that "
                f"work: {', '.join(KINDS)}"
            )
        if not has_plain_table(student.model):
            found.append(f"the table of this {family} is packed already; drop pieces before it is quantized")
        found += [f"files: {name} is no file" for name in self.files if not Path(name).is_file()]
        try:
            known = student.tokenizer.get_vocab()
            unknown = [piece for piece in self.kept_anyway() if piece not in known]
        except (OSError, UnicodeDecodeError) as error:
            found.append(f"keep: {self.keep} cannot be read ({error}); give a file with one piece a line, or a list")
        else:
            if unknown:
                found.append(
                    f"keep: {', '.join(map(repr, unknown[:5]))}{' …' if unknown[5:] else ''}: no piece of this "
                    "tokenizer; write pieces as it does, such as ##ing, Ġthe or ▁the"
                )
        return [f"{self.name}: {problem}" for problem in found]

    def reads(self) -> tuple[Path, ...]:
        """Return the files of text, and of pieces to keep."""
        return tuple(map(Path, self.files + ((self.keep,) if isinstance(self.keep, str) else ())))

    def kept_anyway(self) -> tuple[str, ...]:
        """Return the pieces of ``keep``, read from its file if it is one."""
        if isinstance(self.keep, str):
            return tuple(filter(None, Path(self.keep).read_text(encoding="utf-8").splitlines()))
        return self.keep

    def apply(self, student: TaskModel, inputs: Inputs, generator: torch.Generator) -> Outcome:
        """Count and cut; nothing is learned."""
        from dataclasses import replace

        from compress.prune.subwords import supported, with_pieces
        from teachers.anatomy.embedding_rows import keep_rows, needed_rows
        from teachers.anatomy.encoder import shape_of

        del generator
        if problems := self.check(student, inputs):  # an earlier step may have changed the model
            raise UserError(*problems)
        counts = self.counts(student, inputs)
        ids = student.tokenizer.get_vocab()
        used = {i for i, count in counts.items() if count >= self.min_count} | {ids[p] for p in self.kept_anyway()}
        used |= _prompt_ids(student)
        kept = sorted(supported(student.tokenizer, used | needed_rows(student.model.config)))
        before = shape_of(student.model.config).vocab_size
        if len(kept) == before:
            logger.warning("%s: the corpus uses, or the tokenizer needs, all %d pieces", self.name, before)
        facts = {"kept": len(kept), "dropped": before - len(kept)} | coverage(student.tokenizer, counts, set(kept))
        old = student.encoder
        cut = replace(student, tokenizer=with_pieces(student.tokenizer, kept))
        keep_rows(student.model, kept)
        if inputs.validation:
            facts["validation"] = differences(old, cut.encoder, inputs.validation, cut.tokenizer.unk_token)
        return Outcome(cut, facts)

    def counts(self, student: TaskModel, inputs: Inputs) -> Counter[int]:
        """Return how often each piece, by id, stands in the corpus."""
        found: Counter[int] = Counter()
        if not self.files:
            for feature in student.encoder.encode(inputs.train or ()):
                found.update(feature.ids)
            return found
        from tokenizers import Tokenizer

        whole = Tokenizer.from_str(student.encoder.source)
        whole.no_truncation()
        whole.no_padding()
        for lines in _portions(self.files):
            for encoding in whole.encode_batch_fast(lines, add_special_tokens=False):
                found.update(encoding.ids)
        return found


def _prompt_ids(student: TaskModel) -> set[int]:
    """Return the pieces of the prompts that stand before texts."""
    task, whole = student.task, student.tokenizer.backend_tokenizer
    prompts = filter(None, (task.prompt, task.query_prompt, task.document_prompt))
    return {i for prompt in prompts for i in whole.encode(prompt, add_special_tokens=False).ids}


def _portions(files: Sequence[str], size: int = 1024) -> Iterator[list[str]]:
    """Return the lines of text files, some at a time."""
    lines: list[str] = []
    for name in files:
        with Path(name).open(encoding="utf-8") as file:
            for line in file:
                lines.append(line.rstrip("\n"))
                if len(lines) == size:
                    yield lines
                    lines = []
    yield lines


def coverage(tokenizer: Any, counts: Mapping[int, int], kept: set[int]) -> dict[str, Any]:
    """Return the tokens of a corpus, the share of them that keep their piece, and the pieces that most of them lose.

    Args:
        tokenizer: Names the pieces; its special tokens are left out.
        counts: Id of a piece -> times that it occurs.
        kept: Ids that stay.
    """
    special = set(tokenizer.all_special_ids)
    counts = {i: count for i, count in counts.items() if i not in special}
    lost = sorted((i for i in counts if i not in kept), key=lambda i: (-counts[i], i))
    total = sum(counts.values())
    share = 1.0 - sum(counts[i] for i in lost) / total if total else 1.0
    names = tokenizer.convert_ids_to_tokens(lost[:SHOWN])
    return {"tokens": total, "coverage": share, "lost": {name: counts[i] for name, i in zip(names, lost, strict=False)}}


def differences(old: TextEncoder, new: TextEncoder, examples: Examples, unknown: str | None) -> dict[str, int]:
    """Return of texts that two tokenizers read: how many there are, how many are cut into other pieces, and tokens.

    Args:
        old: Reads them as before.
        new: Reads them as now.
        examples: The texts.
        unknown: The piece that stands for what is unknown.
    """
    before, after = (_pieces(encoder, examples) for encoder in (old, new))
    return {
        "texts": len(examples),
        "cut_otherwise": sum(a != b for a, b in zip(before, after, strict=True)),
        "tokens_before": sum(map(len, before)),
        "tokens_after": sum(map(len, after)),
        "unknown_before": sum(pieces.count(unknown) for pieces in before),
        "unknown_after": sum(pieces.count(unknown) for pieces in after),
    }


def _pieces(encoder: TextEncoder, examples: Examples) -> list[list[str | None]]:
    found: list[list[str | None]] = [[] for _ in examples]
    for feature in encoder.encode(examples):
        found[feature.example] += [encoder.tokenizer.id_to_token(i) for i in feature.ids]
    return found
