"""What a fast tokenizer runs, without the padding and truncation that its file may say."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer


def plain_backend(tokenizer: Any) -> Tokenizer:
    """Return a copy that gives the tokens of a text and no others.

    Files of some models, such as those of MiniLM-L6 for sentences, pad every text to 128 tokens and cut it there.

    Args:
        tokenizer: A fast tokenizer of transformers; it is not changed.
    """
    found = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    found.no_padding()
    found.no_truncation()
    return found
