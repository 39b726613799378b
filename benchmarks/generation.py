"""How fast a decoder writes, in torch and as an export with a cache, and what 8 bits cost it in perplexity.

    COMPRESS_DATA=… python -m benchmarks.generation MODEL EXPORT… [--tokens 128] [--threads 1] [--fill]

Each continues by the likeliest token the beginnings of texts that the model goes on with for as many tokens, one text
at a time: the model by ``generate`` of transformers in eager mode with its cache, exports for ``generator`` by
``Runtime.generate``. They take turns in a random order; a speedup is the median of the rounds' ratios with its 95%
interval. Perplexity is that of a token of the validation split.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.archive import keep
from benchmarks.markdown_table import markdown_table
from benchmarks.results import DOCS, fill
from compress.artifact.artifact import Artifact
from compress.export.runtime.answering import Runtime
from eval.cost.machine import in_one_line
from eval.cost.timing import interleave, paired_ratio
from eval.data.loading import load_task
from eval.errors import quantity
from eval.inference import Predictor
from eval.measurement import measure
from teachers.taskmodel import TaskModel

NAME = "generation"
"""Name of the record, and of the part of the page that is made here."""
EAGER = "torch, eager"
WORDS, PROMPTS = 8, 8
"""Words of a beginning, and how many beginnings are continued."""
Write = Callable[[str, int], str]


def in_torch(model: TaskModel) -> Write:
    """Return what writes with the cache of transformers; as in exports, an end of text begins each."""
    end = model.tokenizer.eos_token_id

    def write(prompt: str, tokens: int) -> str:
        ids = torch.tensor([[end, *model.tokenizer(prompt, add_special_tokens=False).input_ids]])
        how = {"do_sample": False, "max_new_tokens": tokens, "pad_token_id": end, "eos_token_id": end}
        with torch.inference_mode():
            found = model.model.generate(ids, attention_mask=torch.ones_like(ids), **how)[0, ids.shape[1] :]
        return str(model.tokenizer.decode([token for token in found.tolist() if token != end]))

    return write


def beginnings(model: TaskModel, texts: Iterable[str], tokens: int) -> list[str]:
    """Return the first words of texts that the model goes on with for as many tokens, ``PROMPTS`` of them."""
    write, found = in_torch(model), list[str]()
    for text in texts:
        prompt = " ".join(text.split()[:WORDS])
        if len(model.tokenizer(write(prompt, tokens), add_special_tokens=False).input_ids) >= tokens:
            found.append(prompt)
        if len(found) == PROMPTS:
            break
    if not found:
        raise SystemExit(f"no text goes on for {tokens} tokens; ask for fewer (--tokens)")
    return found


def rows(model: TaskModel, exports: Mapping[str, Runtime], data: str, tokens: int, seconds: float) -> list[Any]:
    """Return the figures of the model and of each export: megabytes, perplexity, seconds of each round.

    Args:
        model: A causal language model.
        exports: Its exports for ``generator``.
        data: Folder of texts; its validation split is scored, and the beginnings of its texts are continued.
        tokens: New tokens of each text.
        seconds: For each.
    """
    task = load_task(model.task.kind, data=data, max_length=model.task.max_length)
    prompts = beginnings(model, (str(example["text"]) for example in task.validation), tokens)
    models: dict[str, Predictor] = {EAGER: model, **exports}
    results = {name: measure(one, task) for name, one in models.items()}
    writers: dict[str, Write] = {EAGER: in_torch(model), **{name: one.generate for name, one in exports.items()}}
    times = interleave({name: partial(_write, write, prompts, tokens) for name, write in writers.items()}, seconds)
    same = {name: [write(prompt, tokens) for prompt in prompts] for name, write in writers.items()}
    return [
        {
            "name": name,
            "megabytes": (result.bytes or 0) / 1e6,
            "perplexity": result.scores["perplexity"],
            "seconds": np.median(times[name], axis=1).tolist(),
            "same": sum(a == b for a, b in zip(same[name], same[EAGER], strict=True)) / len(prompts),
        }
        for name, result in results.items()
    ]


def _write(write: Write, prompts: list[str], tokens: int, number: int) -> None:
    write(prompts[number % len(prompts)], tokens)


def table(found: Iterable[Mapping[str, Any]], tokens: int) -> str:
    """Return the figures as Markdown; the first row is what all others are compared with."""
    first, *others = found
    timed = f"{tokens} tokens, ms"
    rows = [["engine", "MB", "perplexity", "of the model's", timed, "speedup [95%]", "same texts"]]
    for one in (first, *others):
        ratio = paired_ratio(first["seconds"], one["seconds"])
        cells = [
            one["name"],
            f"{one['megabytes']:.1f}",
            f"{one['perplexity']:.2f}",
            f"{one['perplexity'] / first['perplexity'] - 1:+.2%}",
            f"{1000 * float(np.median(one['seconds'])):.0f}",
            "" if one is first else f"{ratio.value:.1f} [{ratio.low:.1f}, {ratio.high:.1f}]",
            f"{one['same']:.0%}",
        ]
        rows.append(cells)
    return markdown_table(rows)


def report(found: Mapping[str, Any]) -> str:
    """Return the table of what was kept, and what it was measured on."""
    told = f"{quantity(found['threads'], 'thread')}; {in_one_line(found['machine'])}"
    return f"{table(found['rows'], found['tokens'])}\n\n{told}; commit {found['commit']}."


def main() -> None:
    """Measure, print, and write the page if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="a causal language model")
    parser.add_argument("exports", type=Path, nargs="+", help="exports of it for generator")
    parser.add_argument("--data", default="wiki_en", help="folder below COMPRESS_DATA")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each")
    parser.add_argument("--fill", action="store_true", help="keep the figures and write docs/results/distillation.md")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    exports = {folder.name: Runtime(folder, given.threads) for folder in given.exports}
    data = str(Path(os.environ["COMPRESS_DATA"]) / given.data)
    found = rows(Artifact.from_pretrained(given.model), exports, data, given.tokens, given.seconds)
    print(table(found, given.tokens))
    if given.fill:
        kept = keep(NAME, {"threads": given.threads, "tokens": given.tokens, "rows": found})
        fill(DOCS / "distillation.md", NAME, report(kept))


if __name__ == "__main__":
    main()
