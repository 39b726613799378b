"""Speed of the pretraining input pipeline, and overhead of the training loop over a bare one.

    COMPRESS_DATA=… python -m benchmarks.pretraining [--rounds 12] [--megabytes 128] [--fill]

1. Tokenization, then packing and masking, in one process: the ratio of its throughput to the tokens that a BERT of
   4 layers x 256 consumes in training on all cores.
2. The project's loop against a loop of ten lines on the same model and batches, alternately.
3. With --megabytes: a text of this size is made into a corpus and read by a process whose own memory is limited to
   less than the text (RLIMIT_DATA; the system can reclaim pages of mapped files).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.rounds import arguments, tell, timed_in_rounds
from eval.data.sources import Source
from teachers.pretraining.objectives.mlm import MaskedLM
from teachers.pretraining.objectives.pretext_objective import Text
from teachers.pretraining.pretraining_batches import PretextDataset
from teachers.pretraining.text.corpus import build
from teachers.pretraining.text.sequence import Frame
from teachers.pretraining.text.sequence_sources import Packed
from teachers.pretraining.text.tokenizer_training import Sentences, trained_tokenizer

LENGTH, BATCH, STEPS = 128, 32, 12
SPARE = 96 * 2**20
"""Bytes that the limited process may use beyond its libraries."""


def rows_of(sources: list[Source], tokenizer: Any, home: Path) -> PretextDataset:
    """Return sequences with whole-word masking over a corpus."""
    corpus, frame = build(sources, tokenizer, home), Frame(tokenizer)
    ask = MaskedLM(units="word").ask(Text(corpus, frame, tokenizer))
    source = Packed(corpus, frame, LENGTH, "full_sentences")
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    return PretextDataset(source, frame, {"mlm": ask}, inputs=inputs, digest=corpus.folder.name)


def bare(network: Any, batches: list[Any]) -> float:
    """Train in a minimal loop and return the seconds."""
    import torch
    from torch.nn import functional as F  # noqa: N812 (the field's own abbreviation)

    from teachers.anatomy.mlm_head import word_scores

    network.train()
    decayed = [p for p in network.parameters() if p.ndim >= 2]
    others = [p for p in network.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": 0.01}, {"params": others}]
    optimizer = torch.optim.AdamW(groups, lr=1e-6, fused=True)
    started = time.perf_counter()
    for batch in batches:
        hidden = network.bert(**batch.inputs).last_hidden_state
        labels = batch.targets["mlm"]
        asked = labels != -100
        loss = F.cross_entropy(word_scores(network, hidden[asked]), labels[asked])
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return time.perf_counter() - started


def ours(student: Any, rows: PretextDataset) -> float:
    """Train in the project's loop and return the seconds of its optimizer steps, batch preparation included."""
    from teachers.pretraining.prediction_heads import WordHead
    from teachers.pretraining.pretraining_task import PretextLoss, reads_last
    from teachers.training.config import Training
    from teachers.training.loop import learn
    from teachers.training.training_task import BoundTask

    class Ready:
        def bind(self, seed: int) -> BoundTask:
            del seed
            heads = {"mlm": WordHead(student.model, "mlm")}
            return BoundTask(student, rows, PretextLoss(heads, {"mlm": 1.0}, reads_last(student.model)))

    training = Training(max_steps=STEPS, batch_size=BATCH, learning_rate=1e-6, group_by_length=False, keep="last")
    return float(learn([Ready()], training)[-1]["seconds"])


def speeds(rounds: int) -> dict[str, Any]:
    """Measure input pipeline, loop and bare loop; return what ``rounds.tell`` takes."""
    from teachers.data.batches import LengthGroupedBatches
    from teachers.pretraining.network import network_for
    from teachers.pretraining.settings import NetworkBlock

    data = Path(os.environ.get("COMPRESS_DATA", "data"))
    sources = [Source.of(data / name / "train.txt.gz") for name in ("wiki_en", "reuters21578")]
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = trained_tokenizer(Sentences(sources), "wordpiece", 8000, True, Path(scratch))
        started = time.perf_counter()
        rows = rows_of(sources, tokenizer, Path(scratch))
        tokens = int(rows.lengths.sum())
        tokenized = tokens / (time.perf_counter() - started)
        order = [*LengthGroupedBatches(rows.lengths.tolist(), BATCH, 13, group=False)][:200]
        started = time.perf_counter()
        drawn = sum(int(rows.batch(batch).mask.sum()) for batch in order)
        masked = drawn / (time.perf_counter() - started)
        student = network_for(NetworkBlock(), tokenizer, "masked", 13)
        batches = [rows.batch(batch) for batch in order[:STEPS]]
        real = sum(int(batch.mask.sum()) for batch in batches)
        ways = {"the project's loop": lambda: ours(student, rows), "ten lines": lambda: bare(student.model, batches)}
        seconds = timed_in_rounds(ways, rounds)
    loop, plain = seconds.values()
    both = 1 / (1 / tokenized + 1 / masked)
    return {
        "seconds": seconds,
        "batches": STEPS,
        "ratios": {
            "the project's loop / ten lines": [one / two for one, two in zip(loop, plain, strict=True)],
            "tokens/s of the input / tokens/s of training": [both / (real / value) for value in loop],
        },
        "others": {
            "tokenizing, once for each text, tokens/s": f"{tokenized:,.0f}",
            "packing and masking, tokens/s": f"{masked:,.0f}",
        },
    }


def text(megabytes: int) -> Iterator[str]:
    """Yield the lines of wiki_en repeatedly, each time with another number before every line."""
    file, size, turn = Path(os.environ.get("COMPRESS_DATA", "data")) / "wiki_en" / "train.txt.gz", 0, 0
    while True:
        turn += 1
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                said = f"{turn} {line}" if line.strip() else line
                size += len(said.encode())
                if size > megabytes * 1_000_000:
                    return
                yield said


def limited(file: Path, tokenizer: str, home: Path) -> None:
    """Make a corpus and read it with limited memory; print its size."""
    import transformers

    loaded = transformers.AutoTokenizer.from_pretrained(tokenizer)
    rows_of([Source.of(Path(tokenizer) / "some.txt")], loaded, home)  # imports everything that is imported on first use
    before = _own_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (before + SPARE, before + SPARE))
    rows = rows_of([Source.of(file)], loaded, home)
    for start in range(0, len(rows), max(1, len(rows) // 500)):
        rows.batch([start])
    print(json.dumps({"tokens": int(rows.lengths.sum()), "limit": SPARE, "text": file.stat().st_size}))


def _own_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmData"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status does not say VmData")


def bounded(megabytes: int) -> dict[str, Any]:
    """Run ``limited`` in its own process on a text of this size."""
    with tempfile.TemporaryDirectory() as scratch:
        file, pieces = Path(scratch) / "text.txt", Path(scratch) / "tokenizer"
        with file.open("w", encoding="utf-8") as stream:
            stream.writelines(text(megabytes))
        data = Path(os.environ.get("COMPRESS_DATA", "data")) / "wiki_en" / "validation.txt.gz"
        trained_tokenizer(Sentences([Source.of(data)]), "wordpiece", 8000, True, Path(scratch)).save_pretrained(pieces)
        (pieces / "some.txt").write_text("A few words. And more of them.\n" * 20, encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.pretraining", "--limited", str(file), str(pieces), scratch]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the limited process failed: {done.stderr[-1500:]}")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def main() -> None:
    """Measure, print and keep."""
    parser = arguments(__doc__)
    parser.add_argument("--megabytes", type=int, default=0)
    parser.add_argument("--limited", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.limited:
        file, tokenizer, home = map(Path, given.limited)
        limited(file, str(tokenizer), home)
        return
    found = speeds(given.rounds)
    if given.megabytes:
        text = bounded(given.megabytes)
        found["others"] |= {
            "text made into a corpus and read with limited memory, MB": f"{text['text'] / 1e6:.0f}",
            "memory of that process beyond its libraries, at most, MiB": f"{text['limit'] / 2**20:.0f}",
        }
    tell("pretraining", found, given.fill)


if __name__ == "__main__":
    main()
