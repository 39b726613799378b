"""Files that were changed after they were written: whatever reads them names the file, and says what to do."""

from __future__ import annotations

import json
from typing import Any

from tests.hostile.case import Case, table
from tests.hostile.damage import DEEP, Damage, flip, json_drop, json_set, json_update, remove, truncate, write

EVAL = "eval artifact --data data --no-latency"
COMMANDS = {
    "eval": EVAL,
    "export": "export artifact --out out",
    "run": "run recipe.yaml --set teacher.model=artifact --set student.layers=[0,1] --out out",
}
VOCABULARY = "artifact/tokenizer.json"


def exchanged(*path: str, one: Any, other: Any):
    """Exchange two values of an object or list in a JSON file."""

    def change(top):
        node = top
        for part in path:
            node = node[part]
        node[one], node[other] = node[other], node[one]
        return top

    return change


CONFIG: dict[str, Any] = {
    "hidden_act": "relu",
    "layer_norm_eps": 1e-6,
    "num_attention_heads": 2,
    "hidden_dropout_prob": 0.5,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 1,
    "is_decoder": True,
    "problem_type": "multi_label_classification",
    "architectures": ["BertForTokenClassification"],
    "initializer_range": 0.5,
    "id2label": {"0": "good", "1": "bad"},
    "label2id": {"good": 0, "bad": 1},
    "chunk_size_feed_forward": 3,
    "max_position_embeddings": 64,
    "num_hidden_layers": 1,
    "vocab_size": 99,
    "hidden_size": 16,
    "model_type": "roberta",
    "quantization_config": {"load_in_8bit": True},
}
TASK: dict[str, Any] = {
    "labels": ["good", "bad"],
    "metric": "f1",
    "max_length": 8,
    "stride": 1,
    "pair": True,
    "truncation": "only_first",
    "truncation_side": "left",
    "class_weights": [1.0, 2.0],
    "kind": "tagging",
    "pooling": "first",
    "normalize": False,
}
TOKENIZER: dict[str, Damage] = {
    "two words of the vocabulary exchanged": json_update(
        VOCABULARY, exchanged("model", "vocab", one="[CLS]", other="[SEP]")
    ),
    "two letters of the vocabulary exchanged": json_update(VOCABULARY, exchanged("model", "vocab", one="a", other="e")),
    "upper case kept": json_set(VOCABULARY, "normalizer.lowercase", False),
    "accents stripped": json_set(VOCABULARY, "normalizer.strip_accents", False),
    "another prefix": json_set(VOCABULARY, "model.continuing_subword_prefix", "@@"),
    "shorter words": json_set(VOCABULARY, "model.max_input_chars_per_word", 1),
    "another pre-tokenizer": json_set(VOCABULARY, "pre_tokenizer", {"type": "WhitespaceSplit"}),
    "no special tokens": json_set(VOCABULARY, "post_processor", None),
    "one more token": json_update(VOCABULARY, lambda top: top | {"added_tokens": top["added_tokens"][:-1]}),
    "a word lost": json_drop(VOCABULARY, "model.vocab.a"),
    "too deep": json_set(VOCABULARY, "", DEEP),
    "no JSON": write(VOCABULARY, "{"),
    "cut": truncate(VOCABULARY, 700),
}
ADDED = {
    "structure.json": "{}",
    "special_tokens_map.json": '{"unk_token": "a"}',
    "added_tokens.json": '{"good": 7}',
    "vocab.txt": "a\nb\n",
}
RECORD: dict[str, Any] = {
    "technique": "prune.layers",
    "version": 9,
    "config.temperature": 3.0,
    "data.train": "0" * 64,
    "teacher": "0" * 64,
    "seed": 7,
    "facts": {},
    "size_after.parameters": 1,
    "libraries.torch": "1.0",
    "seconds": 0.0,
    "files": {},
    "digest": "0" * 64,
    "previous": "0" * 64,
}
"""What a record of a lineage says, made into something else."""
LINEAGE = "artifact/lineage.json"
EDITED = r"artifact/lineage\.json: record {}, .* (was changed|does not follow).*copy the folder anew"


def records(change):
    return json_update(LINEAGE, lambda top: top | {"records": change(top["records"])})


def old(top):
    """What versions before the digests wrote."""
    plain = [{key: row[key] for key in row if key not in ("files", "digest", "previous")} for row in top["records"]]
    return {"format": 1, "records": plain}


def same_content(scene):
    """Save the JSON files of an artifact again, as another library would: other order, spaces, names of versions."""
    for name in ("config.json", "task.json", "tokenizer.json", "tokenizer_config.json"):
        values = json.loads((scene / "artifact" / name).read_text(encoding="utf-8"))
        values = dict(reversed(values.items()))
        if name == "config.json":
            values |= {"transformers_version": "9.9", "_name_or_path": "/elsewhere", "dtype": "float32"}
        if name == "tokenizer.json":
            values |= {"truncation": {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}}
        (scene / "artifact" / name).write_text(json.dumps(values, indent=7), encoding="utf-8")


EXPORTED = ("model.onnx", "tokenizer.json", "encoder.json", "conformance.json", "config.json", "predict.py")
NEEDED = EXPORTED[:4]
"""Without these, an export does not answer; the others are for other tools."""
PLACES = (0, 1, 7, 40, 150, 300, -300, -100, -2)
MANIFEST: dict[str, Any] = {
    "name": "other",
    "target": "ort",
    "task.labels": ["good", "bad"],
    "scheme": "int8",
    "opset": 1,
    "speed": 0.5,
    "source.weights": "0" * 64,
    "gate.passed": False,
    "gate.limit": 9,
    "machine.cpu": "other",
    "tuned": {"threads": 2},
}
PREDICT = "predict export hello"

CASES = [
    *(
        Case(f"{command}: {key} of config.json", words, json_set("artifact/config.json", key, value), says=named)
        for command, words in COMMANDS.items()
        for key, value in CONFIG.items()
        for named in (r"artifact/config\.json: .*not the file that lineage\.json records.*copy the folder anew",)
        if command == "eval" or key in ("hidden_act", "layer_norm_eps", "id2label")
    ),
    *(
        Case(
            f"{command}: {key} of task.json",
            words,
            json_set("artifact/task.json", key, value),
            says=r"task\.json: .*not",
        )
        for command, words in COMMANDS.items()
        for key, value in TASK.items()
        if command == "eval" or key in ("labels", "max_length")
    ),
    *(
        Case(f"{command}: a tokenizer with {name}", words, damage, says=r"artifact/tokenizer\.json: .*not the file")
        for command, words in COMMANDS.items()
        for name, damage in TOKENIZER.items()
        if command == "eval" or name == "two letters of the vocabulary exchanged"
    ),
    *(
        Case(f"{name} is added", EVAL, write(f"artifact/{name}", text), says=rf"artifact/{name}: .*does not record it")
        for name, text in ADDED.items()
    ),
    *(
        Case(f"{name} is missing", EVAL, remove(f"artifact/{name}"), says=rf"artifact/{name}: is missing")
        for name in ("tokenizer.json", "tokenizer_config.json", "task.json")
    ),
    *(
        Case(
            f"{key} of tokenizer_config.json",
            EVAL,
            json_set("artifact/tokenizer_config.json", key, value),
            says="_config.*not",
        )
        for key, value in {
            "do_lower_case": False,
            "model_max_length": 4,
            "padding_side": "left",
            "pad_token": "a",
        }.items()
    ),
    Case(
        "several files are named at once",
        EVAL,
        (json_set("artifact/config.json", "hidden_act", "relu"), remove("artifact/task.json")),
        says=r"config\.json.*\n.*task\.json.*2 errors",
    ),
    Case("the same content in other words", EVAL, same_content, code=0),
    *(
        Case(
            f"{key} of record {number}",
            EVAL,
            json_set(LINEAGE, f"records.{number - 1}.{key}", value),
            says=EDITED.format(number),
        )
        for key, value in RECORD.items()
        for number in (1, 3)
        if number == 3 or key in ("version", "seed", "files", "digest", "previous")
    ),
    *(
        Case(f"{command}: a lineage {name}", words, records(change), says=says)
        for command, words in COMMANDS.items()
        for name, change, says in (
            ("without its first record", lambda rows: rows[1:], EDITED.format(1)),
            ("without its second record", lambda rows: [rows[0], *rows[2:]], EDITED.format(2)),
            ("without its last record", lambda rows: rows[:-1], r"holds 2 records, and the last one is missing"),
            ("in another order", lambda rows: [rows[1], rows[0], rows[2]], EDITED.format(1)),
            ("with a record twice", lambda rows: [*rows, rows[-1]], EDITED.format(4)),
            ("without records", lambda rows: [], r"records: list should have at least 1 item"),
        )
    ),
    Case("a lineage of a later version", EVAL, json_set(LINEAGE, "format", 4), says="format 4; this version reads"),
    Case(
        "a new lineage that calls itself old",
        EVAL,
        json_set(LINEAGE, "format", 1),
        says="records: 0.previous: extra inputs",
    ),
    Case(
        "an artifact from before its files were covered",
        EVAL,
        json_update(LINEAGE, old),
        code=0,
        says=r"artifact: .*written by an earlier version.*covers the weights alone",
    ),
    Case(
        "another activation in an artifact from before",
        EVAL,
        (json_update(LINEAGE, old), json_set("artifact/config.json", "hidden_act", "relu")),
        code=0,
        says="covers the weights alone",
    ),
    *(
        Case(
            f"{command}: no lineage",
            words,
            remove(LINEAGE),
            says=r"artifact: lacks lineage\.json.*copy the folder anew",
        )
        for command, words in COMMANDS.items()
    ),
    Case(
        "no lineage of a model to be measured against",
        "eval model --data data --no-latency --against artifact",
        remove(LINEAGE),
        says=r"artifact: lacks lineage\.json",
    ),
    *(
        Case(
            f"verify: byte {place} of {name}",
            "verify export",
            flip(f"export/{name}", place),
            says=rf"{name} was changed",
        )
        for name in EXPORTED
        for place in PLACES
    ),
    *(
        Case(f"predict: byte {place} of {name}", PREDICT, flip(f"export/{name}", place), says=rf"{name} was changed")
        for name in NEEDED
        for place in PLACES[::3]
    ),
    *(
        Case(f"verify: {name} is missing", "verify export", remove(f"export/{name}"), says=rf"{name} is missing")
        for name in EXPORTED
    ),
    *(
        Case(f"verify: {name} is cut", "verify export", truncate(f"export/{name}", 10), says=rf"{name} has 10 bytes")
        for name in EXPORTED
    ),
    *(
        Case(
            f"{words.split()[0]}: {key} of the manifest",
            words,
            json_set("export/export.json", key, value),
            says=r"export\.json was changed|does not list model\.ort",
        )
        for words in (PREDICT, "verify export")
        for key, value in MANIFEST.items()
    ),
    Case(
        "a manifest from before it was covered",
        "verify export",
        (json_drop("export/export.json", "digest"), json_drop("export/export.json", "beside")),
        code=0,
    ),
]
test_case = table(CASES, quick=12)
