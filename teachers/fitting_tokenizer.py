"""Whether a tokenizer fits a network; that of a decoder's base is made ready for batches and pairs first."""

from __future__ import annotations

from typing import Any

from tokenizers.processors import TemplateProcessing

from eval.errors import UserError
from teachers.anatomy.encoder import is_causal


def make_ready(tokenizer: Any, config: Any) -> None:
    """Let the tokenizer of a decoder pad, begin texts and keep two of them apart, in place, if it has no padding yet.

    Padding is the end-of-text token, which attention never sees. Every text begins with the token that begins texts, so
    that none is empty, and the other stands between the texts of a pair: the start and the delimiter of GPT (Radford et
    al. 2018). Most decoders have one token for both. A tokenizer with padding belongs to a model that was trained
    with it and stays.

    Args:
        tokenizer: A fast tokenizer; one without an end-of-text token stays as it is.
        config: The network's config, which learns the id of the padding.
    """
    if not is_causal(config):
        return
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        end, start = tokenizer.eos_token, tokenizer.bos_token or tokenizer.eos_token
        known = {token: tokenizer.convert_tokens_to_ids(token) for token in dict.fromkeys((start, end))}
        tokenizer.pad_token = end
        tokenizer.padding_side = "right"
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A {end} $B", special_tokens=[*known.items()]
        )
    config.pad_token_id = tokenizer.pad_token_id


def check_tokenizer(tokenizer: Any, config: Any, where: str) -> None:
    """Refuse a tokenizer whose ids a network does not know, or that cannot pad.

    Args:
        tokenizer: A fast tokenizer.
        config: The network's.
        where: What messages call it.

    Raises:
        UserError: If it is one.
    """
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if highest >= config.vocab_size:
        raise UserError(
            f"{where}: the tokenizer gives ids up to {highest}, the model knows {config.vocab_size} tokens; "
            "they do not belong together"
        )
    if tokenizer.pad_token_id is None:
        raise UserError(f"{where}: the tokenizer has no padding token; set pad_token in tokenizer_config.json")
