"""A small Chinese base for docs/results/distillation.md, made from nothing but wiki_zh.

    COMPRESS_DATA=… python -m benchmarks.chinese

A character vocabulary, a BERT of 4 x 256 with random weights, and the masked-language objective for two epochs. The
result is kept under COMPRESS_HOME; its folder is printed as CHINESE_BASE for benchmarks/studies/distil-thucnews.yaml.
Resumable. It has seen two million characters, which is very little: it shows that everything works on Chinese, not
how good a Chinese teacher can be.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from eval.data import load_task
from teachers.config import Training
from teachers.finetune import finetune
from teachers.taskmodel import build_taskmodel
from teachers.word_pieces import bert_word_pieces

VOCABULARY = 6000
LENGTH = 64
TRAINING = Training(epochs=2, learning_rate=1.0e-3, batch_size=32, warmup=0.05)


def make_base(seed: int = 13) -> Path:
    """Train the base, or find the one that was trained before; returns its folder."""
    from transformers import BertConfig

    task = load_task("masked-lm", data=Path(os.environ["COMPRESS_DATA"]) / "wiki_zh", max_length=LENGTH)
    tokenizer = bert_word_pieces([example["text"] for example in task.train], VOCABULARY, LENGTH)
    config = BertConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=4,
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
        pad_token_id=tokenizer.pad_token_id,
    )
    network = build_taskmodel(config, tokenizer, task.spec, seed=seed, name="chinese")
    return finetune(network, task, TRAINING, seed=seed)[1]


def main() -> None:
    """Make the base and print its folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    print(f"export CHINESE_BASE={make_base()}")


if __name__ == "__main__":
    main()
