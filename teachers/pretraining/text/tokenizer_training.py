"""Tokenizers trained on text, saved as standard ones: subword tokens, byte-level pairs, and unigrams."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from eval.data.sources import Source
from eval.errors import UserError
from eval.files.writing import atomic_folder, exclusive
from teachers.pretraining.text.corpus import digest_of
from teachers.pretraining.text.documents import Counts, documents
from teachers.pretraining.text.wordpiece_trainer import bert_word_pieces

Kind = Literal["wordpiece", "bytes", "unigram", "xlnet", "gpt2", "bpe", "t5"]
VERSION = 2
"""Raised when the same text and settings give other pieces."""
LONGEST = 512
"""What a tokenizer tells standard code of the longest input; the network's own limit counts."""
MOST_READ = 1_000_000
"""Characters from which a tokenizer is learned that only stands for one."""
SMALLEST = {"wordpiece": 100, "bytes": 300, "unigram": 100, "xlnet": 100, "gpt2": 300, "bpe": 300, "t5": 400}
"""Fewest pieces: special tokens and letters, or all bytes, have to fit."""
SENTINELS = 100
"""Tokens that stand for spans in T5's objective, of a tokenizer that has them."""


class Text(Protocol):
    """What a tokenizer is learned from."""

    def __iter__(self) -> Iterator[str]:
        """Yield sentences, as often as it is asked for."""
        ...

    @property
    def digest(self) -> bytes:
        """Recognises the text."""
        ...


class Sentences:
    """The sentences of some sources, as often as they are asked for.

    Args:
        sources: The text.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources

    def __iter__(self) -> Iterator[str]:
        for document in documents(self.sources, Counts()):
            yield from document

    @property
    def digest(self) -> bytes:
        """Recognises the text."""
        return b"".join(digest_of(source) for source in self.sources)


def trained_tokenizer(text: Text, kind: Kind, size: int, lowercase: bool, home: Path) -> Any:
    """Return a tokenizer trained on text, or the one that an earlier call made of the same text.

    Args:
        text: The text.
        kind: ``wordpiece`` as BERT's, which splits Chinese into characters; ``bytes`` as RoBERTa's, which knows any
            text; ``unigram`` as ALBERT's; ``xlnet`` the same with the special tokens at the end; ``gpt2`` as GPT-2's,
            bytes with an end of text as the only special token; ``bpe`` for an encoder with a decoder: bytes,
            each of whose texts ends with ``</s>``; ``t5`` the same with sentinels that stand for spans.
        size: Pieces, special tokens among them.
        lowercase: Whether everything is written small; those of bytes never do.
        home: It is kept in a folder below this.

    Raises:
        UserError: If so few pieces cannot hold the letters, or the text is unusable.
    """
    from teachers.taskmodel import load_tokenizer

    _refuse_few(kind, size)
    words = json.dumps([VERSION, kind, size, lowercase]).encode() + text.digest
    folder = home / f"{kind}-{hashlib.sha256(words).hexdigest()[:16]}"
    with exclusive(folder):
        if not folder.is_dir():
            tokenizer = _learned(text, kind, size, lowercase)
            with atomic_folder(folder, "the tokenizer") as beside:
                tokenizer.save_pretrained(beside)
    return load_tokenizer(str(folder))


def tokenizer_of_beginning(text: Iterable[str], kind: Kind, size: int, lowercase: bool) -> tuple[Any, int]:
    """Return a tokenizer of the first ``MOST_READ`` characters of a text, and how many pieces one of all of it has.

    It is kept nowhere. Of a text that ends before, it is the tokenizer that ``trained_tokenizer`` makes, and the number
    is exact; else it needs a few more tokens for a text, and the number is the most there can be, ``size``.

    Args:
        text: The text.
        kind: As for ``trained_tokenizer``.
        size: Likewise.
        lowercase: Likewise.

    Raises:
        UserError: If so few pieces cannot hold the letters.
    """
    _refuse_few(kind, size)
    read, room = [], MOST_READ
    for sentence in text:
        if room <= 0:
            break
        read.append(sentence)
        room -= len(sentence)
    if not read:  # unigrams need some; that there is no text is found by whoever reads it
        return bert_word_pieces((), size, LONGEST, lowercase), size
    tokenizer = _learned(read, kind, size, lowercase)
    return tokenizer, len(tokenizer) if room > 0 else max(len(tokenizer), size)


def _refuse_few(kind: Kind, size: int) -> None:
    if size < SMALLEST[kind]:
        raise UserError(f"tokenizer.size: {size} pieces are too few for {kind}; give {SMALLEST[kind]} or more")


def _learned(text: Iterable[str], kind: Kind, size: int, lowercase: bool) -> Any:
    if kind == "wordpiece":
        return bert_word_pieces(text, size, LONGEST, lowercase)
    return _unigrams(text, size, lowercase, kind) if kind in ("unigram", "xlnet") else _byte_pairs(text, size, kind)


SPECIAL = {
    "gpt2": ["<|endoftext|>"],
    "bytes": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "bpe": ["<pad>", "</s>", "<unk>", "<mask>"],
    "t5": ["<pad>", "</s>", "<unk>", "<mask>", *(f"<extra_id_{number}>" for number in range(SENTINELS))],
}
"""The special tokens of byte-level tokenizers, in the order of their ids."""


def _byte_pairs(sentences: Iterable[str], size: int, kind: Kind) -> Any:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL[kind],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator((f" {sentence}" for sentence in sentences), trainer)
    if kind in ("bpe", "t5"):
        return ended(learner)
    model = json.loads(learner.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    made = transformers.GPT2Tokenizer if kind == "gpt2" else transformers.RobertaTokenizer
    return made(vocab=model["vocab"], merges=merges, model_max_length=LONGEST)


def ended(learner: Any) -> Any:
    """Return a byte-level tokenizer whose texts each end with ``</s>``, as those of T5."""
    import transformers
    from tokenizers import decoders, processors

    learner.decoder = decoders.ByteLevel()
    end = ("</s>", learner.token_to_id("</s>"))
    learner.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [end])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=learner,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=LONGEST,
        clean_up_tokenization_spaces=False,
    )


def _unigrams(sentences: Iterable[str], size: int, lowercase: bool, kind: Kind) -> Any:
    """Return unigrams; in another process their scores differ a little, since the library adds up in any order."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    special = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    if kind == "xlnet":
        special = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    learner = Tokenizer(models.Unigram())
    forms: list[Any] = [normalizers.NFKD(), normalizers.StripAccents(), *([normalizers.Lowercase()] * lowercase)]
    learner.normalizer = normalizers.Sequence(forms)
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False, shrinking_factor=0.75
    )
    learner.train_from_iterator(iter(sentences), trainer)
    pieces = [(piece, score) for piece, score in json.loads(learner.to_str())["model"]["vocab"]]
    if kind == "xlnet":
        return transformers.XLNetTokenizer(vocab=pieces, unk_id=0, do_lower_case=lowercase, model_max_length=LONGEST)
    return transformers.AlbertTokenizer(vocab=pieces, do_lower_case=lowercase, model_max_length=LONGEST)
