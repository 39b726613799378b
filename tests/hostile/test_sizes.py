"""Shapes, labels and lines that are far too large: refused from what describes them, in seconds and little memory."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hostile.case import Case, table
from tests.hostile.damage import Damage, json_set, remove, write

CHECKS = {"check": "check recipe.yaml", "plan": "plan recipe.yaml", "run": "run recipe.yaml --out out"}
LIMITS = {"seconds": 120, "megabytes": 1500}
RANDOM = "--set student.init=random"
SHAPES = {
    "a wide layer": (f"{RANDOM} --set student.layers=3 --set student.hidden_size=20000", r"billion parameters"),
    "very wide": (f"{RANDOM} --set student.layers=2 --set student.hidden_size=4000000", r"billion parameters"),
    "many layers": (f"{RANDOM} --set student.layers=3000", r"student\.layers: 3,000 layers; at most 256"),
    "a billion layers": (f"{RANDOM} --set student.layers=1000000000", r"student\.layers: 1,000,000,000 layers"),
    "many neurons": (
        f"{RANDOM} --set student.layers=2 --set student.intermediate_size=1000000000",
        r"billion parameters, which are .* GB.*at most 2 billion",
    ),
    "many words": (f"{RANDOM} --set student.layers=2 --set student.vocab_size=1000000000", r"billion parameters"),
    "many places": (f"{RANDOM} --set student.layers=2 --set student.max_positions=1000000000", r"billion parameters"),
    "new layers": ("--set student.init=embeddings --set student.layers=3000", r"3,000 layers; at most 256"),
    "options": (
        f"{RANDOM} --set student.layers=2 --set student.family=mobilebert --set student.embedding_size=16 "
        "--set student.options.intra_bottleneck_size=400000",
        r"billion parameters",
    ),
}
CONFIG = {
    "hidden_size": 2**20,
    "intermediate_size": 10**9,
    "vocab_size": 10**9,
    "max_position_embeddings": 10**9,
    "num_hidden_layers": 3000,
}
READS = {**CHECKS, "eval": "eval model --data data --no-latency", "export": "export model --out out"}


def many_labels(split: str, count: int = 100_000) -> Damage:
    """Give every line of a split another label."""

    def act(scene: Path) -> None:
        lines = (json.dumps({"text": "a good text", "label": f"label {number}"}) + "\n" for number in range(count))
        (scene / "data" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")

    return act


def near_labels(scene: Path) -> None:
    """Give a hundred thousand lines labels that nearly are those allowed."""
    lines = (json.dumps({"text": "a", "label": f"good{number}"}) + "\n" for number in range(100_000))
    (scene / "data" / "validation.jsonl").write_text("".join(lines), encoding="utf-8")


def index(name: str) -> tuple[Damage, ...]:
    """Put an index that names one file in the place of weights."""
    content = json.dumps({"metadata": {}, "weight_map": {"a": name}})
    return (remove("model/model.safetensors"), write("model/model.safetensors.index.json", content))


OUTSIDE = {
    "above": "../data/train.jsonl",
    "above, through a folder": "onnx/../../data/train.jsonl",
    "absolute": "/etc/hostname",
    "zeros without end": "/dev/zero",
    "a stream": "/dev/stdin",
    "a pickle": "pytorch_model.bin",
    "nothing": "",
    "the folder": ".",
    "not there": "model-00001-of-00009.safetensors",
    "a control character": "a\x00.safetensors",
}
LINE = 10_000_000


def long_text(text: str) -> Damage:
    """Make a split of two texts, of which the first is ten megabytes of something."""
    rows = ({"text": (text * (LINE // len(text))), "label": "good"}, {"text": "b", "label": "bad"})
    return write("data/validation.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


CASES = [
    *(
        Case(f"{command}: {name}", f"{words} {settings}", says=says, **LIMITS)
        for command, words in CHECKS.items()
        for name, (settings, says) in SHAPES.items()
        if command == "check" or name in ("a wide layer", "many layers")
    ),
    *(
        Case(
            f"{command}: {key} of config.json",
            words,
            json_set("model/config.json", key, value),
            says=r"model: config\.json: .*(billion parameters|3,000 layers)",
            **LIMITS,
        )
        for command, words in READS.items()
        for key, value in CONFIG.items()
        if command in ("check", "eval") or key == "hidden_size"
    ),
    Case(
        "a limit of one's own",
        "check recipe.yaml",
        env={"COMPRESS_MAX_PARAMETERS": "1000"},
        says=r"at most 1e-06 billion are possible, or what the variable COMPRESS_MAX_PARAMETERS says",
    ),
    Case(
        "a limit that is no number",
        "check recipe.yaml",
        env={"COMPRESS_MAX_PARAMETERS": "²"},
        says=r"COMPRESS_MAX_PARAMETERS: got '²'; must be a whole number",
    ),
    *(
        Case(
            f"{words.split()[0]}: 100,000 unknown labels in {split}",
            words,
            many_labels(split),
            says="unknown label",
            **LIMITS,
        )
        for words in ("check recipe.yaml", READS["eval"])
        for split in ("validation", "test")
    ),
    Case("100,000 labels that nearly are allowed", "check recipe.yaml", near_labels, says="did you mean", **LIMITS),
    Case(
        "100,000 labels in the training data",
        "check recipe.yaml",
        (many_labels("train"), many_labels("validation")),
        code=2,
        **LIMITS,
    ),
    *(
        Case(
            f"{command}: an index that names {name}",
            words,
            index(target),
            says=r"index\.json: names .*allowed are",
            **LIMITS,
        )
        for command, words in READS.items()
        for name, target in OUTSIDE.items()
        if command in ("check", "eval")
    ),
    *(
        Case(
            f"{words.split()[0]}: a text of ten megabytes ({name})",
            words,
            write(
                "data/validation.jsonl",
                json.dumps({"text": (text * (LINE // len(text))), "label": "good"})
                + "\n"
                + json.dumps({"text": "b", "label": "bad"}),
            ),
            code=code,
            seconds=300,
            megabytes=6000,
            slow=True,
        )
        for name, text in {"words": "a word ", "one word": "x", "spaces": " ", "signs": "!"}.items()
        for words, code in ((READS["eval"], 0), ("check recipe.yaml", 0))
    ),
    Case(
        "a label of ten megabytes",
        READS["eval"],
        write("data/validation.jsonl", json.dumps({"text": "a", "label": "x" * LINE})),
        says="unknown label 'xxx",
        **LIMITS,
    ),
    Case(
        "a broken line of ten megabytes",
        READS["eval"],
        write("data/validation.jsonl", '{"text": "' + "x" * LINE),
        says="is not JSON",
        **LIMITS,
    ),
    Case(
        "a line of ten megabytes that is no object",
        READS["eval"],
        write("data/validation.jsonl", json.dumps("x" * LINE)),
        says="must be a JSON object",
        **LIMITS,
    ),
]
test_case = table(CASES, quick=5)
