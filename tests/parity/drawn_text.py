"""A sequence, and what objectives of pretraining read beside it, with numbers that a test can follow."""

from types import SimpleNamespace

import numpy as np

from teachers.pretraining.text.sequence import Drawn

END, MASK = 1, 3
SENTINELS = [100, 101, 102, 103, 104, 105, 106, 107]


def drawn_of(ids, sentences=()):
    """Return a sequence with an end after it, and what objectives read beside it."""
    words = np.array([*range(len(ids)), -1])
    drawn = Drawn(np.array([*ids, END]), words, np.zeros(len(words), dtype=np.int64), words.copy())
    vocabulary = {f"<extra_id_{number}>": token for number, token in enumerate(SENTINELS)}
    tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary, eos_token_id=END)
    frame = SimpleNamespace(mask=MASK, random=lambda count, chance: np.full(count, 9))
    return drawn, SimpleNamespace(
        corpus=SimpleNamespace(sentence_starts=np.array(sentences)), frame=frame, tokenizer=tokenizer
    )
