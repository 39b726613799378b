"""An export's files and the records of a model folder: each damaged in each way, through the commands that read them.

A change that leaves the digest in ``export.json`` as it was must be found by it; one that corrects the digest must be
found by what reads the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compress.export.runtime.manifest import with_digest
from tests.forking import Ending
from tests.hostile.case import Case, table
from tests.hostile.damage import (
    DEEP,
    WRONG,
    Damage,
    Raw,
    append,
    device,
    flip,
    json_drop,
    json_set,
    link,
    remove,
    truncate,
    write,
)

COMMANDS = {
    "predict": "predict export good bad",
    "predict.py": "export/predict.py good bad",
    "verify": "verify export",
    "eval": "eval export --data data --no-latency",
    "verify --against": "verify export --against artifact",
    "eval --against": "eval artifact --against export --data data --no-latency",
}
QUICK = ("predict", "predict.py")
DAMAGES: dict[str, Callable[[str], Damage | Sequence[Damage]]] = {
    "missing": remove,
    "empty": lambda name: write(name, b""),
    "one byte": lambda name: write(name, b"x"),
    "cut in half": lambda name: half(name),
    "a byte more": lambda name: append(name, b"\x00"),
    "one bit at the start": lambda name: flip(name, 5),
    "one bit at the end": lambda name: flip(name, -5),
    "zeros": lambda name: write(name, b"\x00" * 4096),
    "a folder": lambda name: (remove(name), write(f"{name}/inside", b"x")),
    "a link to nothing": lambda name: link(name, "nowhere"),
    "a link to itself": lambda name: link(name, Path(name).name),
    "a device": lambda name: (remove(name), device(name, 3)),
    "nested deeply": lambda name: write(name, DEEP),
    "an array": lambda name: write(name, "[]"),
    "UTF-16": lambda name: write(name, '{"format": 1}'.encode("utf-16")),
    "another file": lambda name: write(name, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"),
}
"""Name -> what damages a file."""


def half(name: str) -> Damage:
    return lambda scene: truncate(name, (scene / name).stat().st_size // 2)(scene)


def signed(*names: str) -> Damage:
    """Write the size and digest that files of the export have now into its manifest, and its own digest."""

    def act(scene: Path) -> None:
        file = scene / "export" / "export.json"
        manifest = json.loads(file.read_text("utf-8"))
        for name in names:
            raw = (scene / "export" / name).read_bytes()
            manifest["files"][name] = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
        file.write_text(json.dumps(with_digest(manifest)), "utf-8")

    return act


def answers_stay(_: Path, ending: Ending) -> None:
    assert ending.out


def of_files() -> list[Case]:
    """Files whose digests stand in the manifest, and the manifest itself."""
    return [
        Case(
            f"{command}: {file} is {name}",
            words,
            damage(f"export/{file}"),
            says=rf"{file}|export\.json|no such|is no export|No such" if file == "export.json" else file,
            code=(1, 2),
            slow=command not in QUICK or (command == "predict.py" and name not in ("missing", "one bit at the end")),
        )
        for file in ("model.onnx", "tokenizer.json", "encoder.json", "export.json", "conformance.json")
        for command, words in COMMANDS.items()
        for name, damage in DAMAGES.items()
        if not (file == "export.json" and name.startswith("one bit"))
        and not (file == "export.json" and name == "a byte more")
        and not (file == "export.json" and words.startswith("eval artifact") and name in ("missing", "a folder"))
    ]


FITTING = {
    "name": ("text", "long"),
    "scheme": ("text", "null", "long"),
    "target": ("null",),
    "task": ("object",),
    "files": ("object",),
    "source": ("object", "null"),
    "gate": ("object", "null"),
    "int8": ("object", "null"),
    "tuned": ("object", "null"),
    "speed": ("null", "number", "fraction", "infinite", "no number"),
}
MANIFEST = ("format", "name", "task", "files", "target", "scheme", "source", "gate", "int8", "tuned", "speed")
DEEPER: dict[str, tuple[str, Any, str]] = {
    "another format": ("format", 2, "format 2"),
    "a format of text": ("format", "1", "format '1'"),
    "an unknown target": ("target", "toaster", "export for 'toaster'"),
    "no files": ("files", {}, "does not list model.onnx"),
    "a file outside": ("files.../data/train~jsonl", {"bytes": 1, "sha256": ""}, "is no plain file name"),
    "a file by its whole path": ("files./etc/passwd", {"bytes": 1, "sha256": ""}, "is no plain file name"),
    "a file of no name": ("files.", {"bytes": 1, "sha256": ""}, "is no plain file name"),
    "a file that is the folder": ("files.~~", {"bytes": 1, "sha256": ""}, "is no plain file name"),
    "a file that is not there": ("files.more", {"bytes": 1, "sha256": ""}, "more is missing"),
    "a file without a digest": ("files.more", {}, "more is missing"),
    "a size of text": ("files.model~onnx.bytes", "many", "model.onnx has no size and digest"),
    "a size of 5,000 digits": ("files.model~onnx.bytes", Raw("9" * 5000), "thousands of digits"),
    "a size that is infinite": ("files.model~onnx.bytes", Raw("1e999"), "model.onnx has no size and digest"),
    "a size that is null": ("files.model~onnx.bytes", None, "model.onnx has no size and digest"),
    "a size below zero": ("files.model~onnx.bytes", -1, "model.onnx has .* bytes instead of -1"),
    "a digest of a number": ("files.model~onnx.sha256", 7, "model.onnx has no size and digest"),
    "a digest of a list": ("files.model~onnx.sha256", [], "model.onnx has no size and digest"),
    "an entry of text": ("files.model~onnx", "x", "model.onnx has no size and digest"),
    "an entry of a list": ("files.model~onnx", [1], "model.onnx has no size and digest"),
}
"""Changes inside of the manifest; ``~`` stands for a dot of a name."""


def inside(key: str, value: Any) -> Damage:
    """Set a value inside of the manifest, by a way whose names may hold dots."""

    def act(scene: Path) -> None:
        file = scene / "export" / "export.json"
        top = json.loads(file.read_text("utf-8"))
        node = top
        first, _, rest = key.partition(".")
        way = [first] if not rest and key != "files." else [first, *split(rest)]
        for part in way[:-1]:
            node = node[part]
        node[way[-1]] = "\x00" if isinstance(value, Raw) else value
        text = json.dumps(top)
        file.write_text(text.replace('"\\u0000"', value) if isinstance(value, Raw) else text, "utf-8")

    def split(rest: str) -> list[str]:
        name, last = rest, None
        for field in ("bytes", "sha256"):
            if rest.endswith(f".{field}"):
                name, last = rest.removesuffix(f".{field}"), field
        return [name.replace("~", "."), *([last] if last else [])]

    return act


def of_manifest() -> list[Case]:
    cases = []
    for field in MANIFEST:
        for name, value in WRONG.items():
            if name in FITTING.get(field, ()):
                continue
            said = {"deep": "nested too deeply", "huge": "thousands of digits"}.get(name, field)
            if field == "target" and name in ("text", "long"):
                said = "an export for"
            cases += [
                Case(
                    f"{command}: {field} is {name}",
                    words,
                    json_set("export/export.json", field, value),
                    says=rf"export\.json.*{said}|{said}|export\.json was changed",
                    slow=command != "predict",
                )
                for command, words in COMMANDS.items()
                if command in ("predict", "predict.py", "verify")
            ]
        if field in ("format", "name", "task", "files"):
            cases.append(
                Case(f"no {field}", COMMANDS["predict"], json_drop("export/export.json", field), says=r"export\.json")
            )
    cases += [
        Case(f"{command}: {name}", words, inside(key, value), says=says, slow=command != "predict")
        for command, words in COMMANDS.items()
        if command in ("predict", "predict.py", "eval")
        for name, (key, value, says) in DEEPER.items()
    ]
    return cases


ENCODER = (
    "kind",
    "labels",
    "pair",
    "max_length",
    "stride",
    "truncation",
    "truncation_side",
    "inputs",
    "pad_id",
    "pad_type_id",
    "pad_side",
)
FITS_ENCODER = {"pair": ("true",)}


def of_settings() -> list[Case]:
    cases = []
    for field in ENCODER:
        for name, value in WRONG.items():
            if name in FITS_ENCODER.get(field, ()):
                continue
            said = {"deep": "nested too deeply", "huge": "thousands of digits"}.get(name, f"{field} must be")
            cases.append(
                Case(
                    f"encoder.json: {field} is {name}",
                    COMMANDS["predict.py" if name in ("null", "deep") else "predict"],
                    (json_set("export/encoder.json", field, value), signed("encoder.json")),
                    says=rf"encoder\.json: .*{said}",
                    slow=name in ("true", "fraction", "list", "object", "no number"),
                )
            )
    for name, act, says in (
        ("an unknown field", json_set("export/encoder.json", "nope", 1), "nope is unknown"),
        ("no kind", json_drop("export/encoder.json", "kind"), "kind is missing"),
        ("an array", write("export/encoder.json", "[]"), "kind is missing"),
        ("empty", write("export/encoder.json", ""), "is not JSON"),
        ("UTF-16", write("export/encoder.json", "{}".encode("utf-16")), "is not UTF-8|is not JSON"),
        ("nested deeply", write("export/encoder.json", DEEP), "nested too deeply"),
        ("a field twice", write("export/encoder.json", '{"kind": "qa", "kind": "tagging"}'), "gives 'kind' twice"),
        (
            "no room for text",
            json_set("export/encoder.json", "max_length", 2),
            "max_length=2 leaves no room|max_length",
        ),
    ):
        cases.append(
            Case(
                f"encoder.json: {name}",
                COMMANDS["predict"],
                (act, signed("encoder.json")),
                says=rf"encoder\.json.*{says}|{says}",
            )
        )
    return cases


CONFORMANCE_FIELDS = (
    "format",
    "exact",
    "limit",
    "rows",
    "rows.0",
    "rows.0.example",
    "rows.0.window",
    "rows.0.inputs",
    "rows.0.inputs.input_ids",
    "rows.0.logits",
    "rows.0.torch",
)
FITS_CONFORMANCE = {
    "exact": ("true",),
    "limit": ("fraction", "true"),
    "rows.0.window": ("true",),
    "format": ("true",),
    "rows.0.example": ("object",),
}


def of_conformance() -> list[Case]:
    file = "export/conformance.json"
    cases = []
    for field in CONFORMANCE_FIELDS:
        for name, value in WRONG.items():
            if name in FITS_CONFORMANCE.get(field, ()):
                continue
            said = {"deep": "nested too deeply", "huge": "thousands of digits"}.get(name, field.replace(".", r"\."))
            cases.append(
                Case(
                    f"conformance.json: {field} is {name}",
                    COMMANDS["verify"],
                    (json_set(file, field, value), signed("conformance.json")),
                    says=rf"conformance\.json: .*{said}",
                    slow=name not in ("null", "text", "deep", "list"),
                )
            )
    for name, act, says in (
        ("another format", json_set(file, "format", 2), r"conformance\.json: format"),
        ("no rows", json_set(file, "rows", []), r"conformance\.json holds no inputs"),
        ("a limit of nothing", json_drop(file, "limit"), r"conformance\.json: limit"),
        ("a limit below zero", json_set(file, "limit", -1), r"conformance\.json: limit"),
        ("ids below zero", json_set(file, "rows.0.inputs.input_ids", [-1]), r"conformance\.json: rows\.0\.inputs"),
        ("ids of text", json_set(file, "rows.0.inputs.input_ids", ["a"]), r"conformance\.json: rows\.0\.inputs"),
        ("no ids", json_set(file, "rows.0.inputs", {}), r"conformance\.json: rows\.0\.inputs: input_ids is missing"),
        ("uneven answers", json_set(file, "rows.0.logits", [[1], [1, 2]]), r"conformance\.json: rows\.0\.logits: its"),
        ("other answers", json_set(file, "rows.0.logits", [9.0, -9.0]), "logits differ by up to"),
        ("other ids", json_set(file, "rows.0.inputs.input_ids", [1, 2]), "other tokens"),
        ("a window beyond", json_set(file, "rows.0.window", 7), "other tokens"),
        ("an array", write(file, "[]"), r"conformance\.json: "),
        ("empty", write(file, ""), r"conformance\.json: is not JSON"),
    ):
        cases.append(
            Case(
                f"conformance.json: {name}",
                COMMANDS["verify"],
                (act, signed("conformance.json")),
                says=says,
                code=(1, 2),
            )
        )
    return cases


RECORDS: dict[str, tuple[str, str, dict[str, tuple[str, ...]]]] = {
    "lineage.json": (
        "history artifact",
        "artifact",
        {
            "format": ("true",),
            "records": (),
            "records.0": (),
            "records.0.technique": ("text", "long"),
            "records.0.version": ("number", "true"),
            "records.0.config": ("object",),
            "records.0.data": (),
            "records.0.teacher": ("null", "text", "long"),
            "records.0.seed": ("null", "number", "true"),
            "records.0.export_scheme": ("null", "object"),
            "records.0.facts": ("object",),
            "records.0.size_before": ("null", "object"),
            "records.0.size_after": ("object",),
            "records.0.weights_before": ("null", "text", "long"),
            "records.0.weights_after": ("text", "long"),
            "records.0.libraries": (),
            "records.0.seconds": ("number", "fraction", "true", "infinite", "no number"),
        },
    ),
    "task.json": (
        "eval model --data data --no-latency",
        "model",
        {
            "kind": (),
            "labels": (),
            "metric": ("text", "long"),
            "pair": ("true",),
            "max_length": (),
            "stride": ("true",),
            "truncation": (),
            "truncation_side": (),
            "class_weights": ("null",),
            "pooling": (),
            "normalize": ("true",),
        },
    ),
}
"""File of a model folder -> a command that reads it, its folder, and its fields with the values that fit."""
CONFIG = (
    "model_type",
    "architectures",
    "id2label",
    "label2id",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
    "hidden_act",
    "layer_norm_eps",
    "hidden_dropout_prob",
    "pad_token_id",
    "problem_type",
    "initializer_range",
)
HARMLESS = {
    "initializer_range",
    "pad_token_id",
    "problem_type",
    "label2id",
    "hidden_dropout_prob",
    "layer_norm_eps",
    "architectures",
    "id2label",
    "model_type",
    "type_vocab_size",
}
"""Fields of which transformers ignores some wrong values."""
LEAVES = (
    "config.json",
    "task.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
)


def of_records() -> list[Case]:
    cases = []
    for file, (words, folder, fields) in RECORDS.items():
        for field, fitting in fields.items():
            for name, value in WRONG.items():
                if name in fitting:
                    continue
                said = {"deep": "nested too deeply", "huge": "thousands of digits"}.get(name, field.replace(".", r"\."))
                cases.append(
                    Case(
                        f"{file}: {field} is {name}",
                        words,
                        json_set(f"{folder}/{file}", field, value),
                        says=rf"{folder}/{file}: .*({said}|was changed after it was written)",
                        slow=name in ("fraction", "infinite", "true", "no number", "number"),
                    )
                )
        for name, content in (
            ("empty", ""),
            ("an array", "[]"),
            ("text", "x"),
            ("nested deeply", DEEP),
            ("null", "null"),
            ("UTF-16", "{}".encode("utf-16")),
            ("a field twice", '{"format": 1, "format": 1}'),
        ):
            cases.append(Case(f"{file}: {name}", words, write(f"{folder}/{file}", content), says=f"{folder}/{file}: "))
        cases.append(
            Case(
                f"{file}: an unknown field",
                words,
                json_set(f"{folder}/{file}", "nope" if file == "task.json" else "records.0.nope", 1),
                says=rf"{folder}/{file}: .*(nope|was changed after it was written)",
            )
        )
    cases += [
        Case(
            f"config.json: {field} is {name}",
            "eval model --data data --no-latency",
            json_set("model/config.json", field, value),
            says="model: |nested|accepted" if field not in HARMLESS else "",
            code=(0, 2) if field in HARMLESS else 2,
            slow=name not in ("text", "list", "deep"),
        )
        for field in CONFIG
        for name, value in WRONG.items()
        if not (field in ("hidden_size", "vocab_size", "max_position_embeddings") and name == "true")
    ]
    cases += [
        Case(
            f"model/{file} is {name}",
            "eval model --data data --no-latency",
            damage(f"model/{file}"),
            says="" if file == "tokenizer_config.json" or name.startswith(("one bit", "a byte")) else "model",
            code=(0, 2) if file == "tokenizer_config.json" or name.startswith(("one bit", "a byte")) else (1, 2),
            slow=name not in ("empty", "nested deeply", "a folder"),
        )
        for file in LEAVES
        for name, damage in DAMAGES.items()
        if not (
            file == "task.json" and name in ("missing", "a link to nothing", "a link to itself", "a folder", "a device")
        )
    ]
    return cases


CASES = [
    *of_files(),
    *of_manifest(),
    *of_settings(),
    *of_conformance(),
    *of_records(),
    *(
        Case(
            f"tokenizer.json: {name}",
            COMMANDS["predict"],
            (write("export/tokenizer.json", content), signed("tokenizer.json")),
            says="tokenizer",
        )
        for name, content in (
            ("empty", ""),
            ("an object", "{}"),
            ("nested deeply", DEEP),
            ("null", "null"),
            ("an unknown version", '{"version": "9.9"}'),
            ("zeros", b"\x00" * 100),
        )
    ),
    *(
        Case(f"model.onnx: {name}", COMMANDS["predict"], (act, signed("model.onnx")), says="model.onnx")
        for name, act in (
            ("empty", write("export/model.onnx", b"")),
            ("zeros", write("export/model.onnx", b"\x00" * 100)),
            ("text", write("export/model.onnx", "hello")),
            ("cut in half", half("export/model.onnx")),
            ("weights elsewhere", append("export/model.onnx", b"\n\x08location\x12\x0a../secret")),
        )
    ),
    *(
        Case(
            f"the task in the manifest: {name}",
            "eval export --data data --no-latency",
            (json_set("export/export.json", f"task.{key}", value), signed()),
            says=rf"export\.json: task: .*{key}",
        )
        for name, key, value in (
            ("another kind", "kind", "nope"),
            ("labels of numbers", "labels", [1, 2]),
            ("labels of text", "labels", "good"),
            ("a length of text", "max_length", "long"),
            ("a length below zero", "max_length", -1),
            ("an unknown field", "nope", 1),
            ("a pair of text", "pair", "maybe"),
        )
    ),
    *(
        Case(
            f"tuned threads: {name}",
            COMMANDS["predict"],
            (json_set("export/export.json", "tuned", {"threads": value}), signed()),
            code=0,
            after=answers_stay,
        )
        for name, value in (("text", "many"), ("below zero", -3), ("too many", 10**6), ("null", None), ("true", True))
    ),
    *(
        Case(
            f"the gate: {name}",
            COMMANDS["verify --against"],
            (json_set("export/export.json", f"gate.{key}", value), signed()),
            says=rf"export\.json: gate: {key}",
        )
        for name, key, value in (
            ("a limit of text", "limit", "x"),
            ("agreement of text", "agreement_needed", "x"),
            ("agreement above one", "agreement_needed", 7),
        )
    ),
]
test_case = table(CASES, quick=14)
