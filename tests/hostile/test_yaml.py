"""Recipes as text: YAML that is broken or a bomb, and every field of every block and technique with wrong values."""

from __future__ import annotations

import functools
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from compress.augment.block import AugmentBlock
from compress.recipe import Recipe
from compress.recipe.blocks import EvaluateBlock, LatencyBlock, TaskBlock
from compress.registry import get, names
from compress.student.student import Student
from eval.errors import UserError
from teachers.training.config import Training
from tests.hostile.case import Case, table
from tests.hostile.damage import write

CHECK = "check recipe.yaml --file-only"
HEAD = "name: small\nseed: 13\ntask: {kind: classification, data: data}\nteacher: {model: model}\n"
VALUES: dict[str, tuple[str, Any]] = {
    "a mapping": ("{a: {b: 1}}", {"a": {"b": 1}}),
    "a list of lists": ("[[[]]]", [[[]]]),
    "a word": ("nonsense", "nonsense"),
    "a negative number": ("-7", -7),
    "infinite": (".inf", float("inf")),
    "not a number": (".nan", float("nan")),
    "true": ("true", True),
    "a number of 400 digits": ("9" * 400, 10**400 - 1),
    "a megabyte": ("x" * 900_000, "x" * 900_000),
}
"""Name -> a value in YAML and in Python."""
BLOCKS: dict[str, tuple[type[BaseModel], dict[str, str]]] = {
    "": (Recipe, {}),
    "task": (TaskBlock, {"kind": "classification", "data": "data"}),
    "student": (Student, {}),
    "training": (Training, {}),
    "augment": (AugmentBlock, {"rule": "bilstm"}),
    "evaluate": (EvaluateBlock, {"against": "none"}),
    "evaluate.latency": (LatencyBlock, {}),
    "teacher.finetune": (Training, {}),
    "export.0.onnx": (BaseModel, {}),
}
"""Block of a recipe -> its type and the fields it cannot do without."""
OWN_SENTENCE = ("steps", "export", "task", "tasks", "teacher", "student", "augment", "training", "evaluate")
"""Blocks of a recipe, which say what is wrong in them themselves."""


def is_wrong(model: type[BaseModel], field: str, value: Any) -> bool:
    """Whether a field refuses a value, as far as its type says it; numbers are not true or false either."""
    try:
        found = _adapter(model, field).validate_python(value)
    except (ValidationError, UserError):
        return True
    return value is True and isinstance(found, (int, float)) and not isinstance(found, bool)


@functools.cache
def _adapter(model: type[BaseModel], field: str) -> TypeAdapter[Any]:
    info = model.model_fields[field]
    return TypeAdapter(Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation)


def placed(path: str, fields: dict[str, str]) -> tuple[str, int]:
    """Return a recipe with a block at a path, and the line of the last of its fields."""
    lines, indent = [], ""
    for key in path.split(".") if path else ():
        if key.isdigit():
            continue
        dash = "- " if lines and lines[-1].strip() in ("steps:", "export:") else ""
        lines.append(f"{indent}{dash}{key}:")
        lines += ["  model: model"] if key == "teacher" else []
        indent += "    " if dash else "  "
    lines += [f"{indent}{name}: {value}" for name, value in fields.items()]
    return "\n".join(lines) + "\n", len(lines)


def of_blocks() -> list[Case]:
    cases = []
    for path, (model, least) in BLOCKS.items():
        for field, info in model.model_fields.items():
            if not path and field in OWN_SENTENCE:
                continue
            name = info.alias or field
            for value_name, (text, value) in VALUES.items():
                if not is_wrong(model, field, value) or (path == "augment" and value is True):
                    continue  # a block with other errors is not looked through for them
                fields = {key: known for key, known in least.items() if key != name} | {name: text}
                recipe, line = placed(path, fields)
                quick = value_name in ("a mapping", "true") or path in ("", "task")
                cases.append(
                    Case(
                        f"{path or 'recipe'}: {name} is {value_name}",
                        CHECK,
                        write("recipe.yaml", recipe),
                        says=rf"recipe\.yaml:{line}: .*{name}.*(got |unknown field)",
                        slow=not quick,
                    )
                )
        recipe, line = placed(path, least | {"nonsense": "1"})
        cases.append(
            Case(
                f"{path or 'recipe'}: an unknown field",
                CHECK,
                write("recipe.yaml", recipe),
                says=rf"recipe\.yaml:{line}: .*unknown field 'nonsense'",
            )
        )
        cases += [
            Case(
                f"{path or 'recipe'}: is {value_name}",
                CHECK,
                write("recipe.yaml", block),
                says=rf"recipe\.yaml.*{(path or 'recipe').split('.')[-1].replace('onnx', 'export')}",
                slow=path.count(".") > 0,
            )
            for value_name, text in (("text", "nonsense"), ("a list", "[1, 2]"), ("a number", "7"), ("true", "true"))
            for block in [placed(path.rpartition(".")[0], {path.rpartition(".")[2]: text})[0] if path else text]
            if path != "export.0.onnx"
        ]
    return cases


def of_techniques() -> list[Case]:
    cases = []
    for number, technique in enumerate(names()):
        model = get(technique)
        for field, info in model.model_fields.items():
            for value_name in ("a mapping", "a list of lists", "true", "a number of 400 digits"):
                text, value = VALUES[value_name]
                if not is_wrong(model, field, value) or (field == "requantize_output" and value is True):
                    continue  # true stands for one of its words
                recipe = f"{HEAD}steps:\n  - {technique}:\n      {info.alias or field}: {text}\n"
                cases.append(
                    Case(
                        f"{technique}: {field} is {value_name}",
                        CHECK,
                        write("recipe.yaml", recipe),
                        says=rf"recipe\.yaml:(6|7): step 1, {technique}: .*{info.alias or field}",
                        slow=True,
                    )
                )
        recipe = f"{HEAD}steps:\n  - {technique}:\n      nonsense: 1\n"
        cases.append(
            Case(
                f"{technique}: an unknown field",
                CHECK,
                write("recipe.yaml", recipe),
                says=rf"recipe\.yaml:7: step 1, {technique}: unknown field 'nonsense'",
                slow=number % 4 > 0,
            )
        )
    return cases


def bomb(levels: int, width: int) -> str:
    """Return a recipe whose aliases stand for ``width ** levels`` values."""
    lines = ["a0: &a0 [x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


BROKEN: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "empty"),
    "a comment alone": ("# nothing\n", "empty"),
    "null": ("null\n", "empty"),
    "a word": ("hello\n", "must be a mapping"),
    "a number": ("7\n", "must be a mapping"),
    "a list": ("- a\n- b\n", "must be a mapping"),
    "JSON cut off": ('{"name": "small", "seed"', r":1: not valid YAML|:2: not valid YAML"),
    "a tab": ("task:\n\tkind: classification\n", r":2: a tab"),
    "a tab after spaces": ("task:\n  kind: classification\n  \tdata: data\n", r":3: "),
    "the same key twice": ("seed: 1\nname: a\nseed: 2\n", r":3: 'seed' is given twice, first in line 1"),
    "the same key twice inside": ("task:\n  kind: qa\n  kind: qa\n", r":3: 'kind' is given twice, first in line 2"),
    "two documents": ("seed: 1\n---\nseed: 2\n", r":2: a second document"),
    "indented too little": ("task:\nkind: classification\n", r":2: unknown field 'kind'"),
    "indented too much": ("seed: 1\n  name: a\n", r":2: not valid YAML|:1: "),
    "an open quote": ('name: "small\nseed: 1\n', r"not valid YAML"),
    "an open bracket": ("steps: [a, b\nseed: 1\n", r"not valid YAML"),
    "an open brace": ("task: {kind: qa\nseed: 1\n", r"not valid YAML"),
    "a bracket too many": ("steps: [a]]\n", r":1: not valid YAML"),
    "a colon in a value": ("name: a: b\n", r":1: not valid YAML"),
    "a percent sign": ("name: %a\n", r":1: not valid YAML"),
    "an at sign": ("name: @a\n", r":1: not valid YAML"),
    "a backtick": ("name: `a`\n", r":1: not valid YAML"),
    "an unknown alias": ("name: *nope\n", r":1: not valid YAML.*nope"),
    "an alias to itself": ("a: &a [*a]\n", r":1: "),
    "an alias around itself": ("task: &a {kind: *a}\n", r":1: "),
    "a merge of a list of words": ("task:\n  <<: [a, b]\n", r":2: '<<' merges"),
    "a merge of a word": ("task:\n  <<: nope\n", r":2: '<<' merges"),
    "a merge of itself": ("task: &a\n  <<: *a\n", r":[12]: "),
    "a bomb of aliases": (bomb(20, 10), r"more than 10,000 values, aliases expanded"),
    "a wide bomb of aliases": (bomb(3, 1000), r"more than 10,000 values"),
    "a bomb of merges": (
        "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)),
        r"more than 10,000 values|unknown field",
    ),
    "nested 100,000 deep in lists": ("steps: " + "[" * 100_000 + "]" * 100_000, "nested deeper"),
    "nested 100,000 deep in mappings": ("task: " + "{a: " * 100_000 + "}" * 100_000, "nested deeper"),
    "nested 100,000 deep in dashes": ("steps: \n" + "- " * 100_000 + "x\n", "nested deeper|not valid YAML"),
    "nested 50 deep": ("steps: " + "[" * 50 + "]" * 50, r":1: nested deeper than 40"),
    "nested 200 deep by spaces": ("".join(" " * n + "a:\n" for n in range(200)), "nested deeper than 40"),
    "two megabytes": ("name: " + "x" * 2_000_000 + "\n", "longer than 1,000,000 characters"),
    "20,000 keys": ("".join(f"k{n}: 1\n" for n in range(20_000)), "more than 10,000 values"),
    "5,000 unknown keys": ("".join(f"k{n}: 1\n" for n in range(5_000)), r":1: unknown field 'k0'"),
    "5,000 unknown steps": ("steps: [" + ", ".join(["nope"] * 5_000) + "]\n", r"step 1: .*nope"),
    "a tag of Python": ("name: !!python/object/apply:os.system ['touch RAN']\n", r":1: the tag .* is not allowed"),
    "a tag of Python's names": ("name: !!python/name:os.system\n", r":1: the tag .* is not allowed"),
    "a tag of its own": ("task: !mine {kind: qa}\n", r":1: the tag '!mine' is not allowed"),
    "a tag for bytes": ("name: !!binary aGVsbG8=\n", r":1: the tag '!!binary' is not allowed"),
    "a tag for a set": ("task: !!set {a, b}\n", r":1: the tag '!!set' is not allowed"),
    "a tag for pairs": ("steps: !!omap [a: 1]\n", r":1: the tag '!!omap' is not allowed"),
    "a number that is none": ("seed: !!int nope\n", r":1: 'nope' is not an int"),
    "a fraction that is none": ("seed: !!float nope\n", r":1: 'nope' is not a float"),
    "a truth that is none": ("ablate: !!bool nope\n", r":1: 'nope' is not a bool"),
    "an impossible date": ("name: 2024-99-99\n", r":1: |check"),
    "a number of 5,000 digits": ("seed: " + "9" * 5_000 + "\n", r":1: .*is not an int"),
    "a number in base 60": ("seed: 1:30\n", r":1: .*seed|:1: .*90|teacher|steps"),
    "an octal number that is none": ("seed: 0o9\n", r":1: seed: got '0o9'"),
    "a key that is a list": ("[a, b]: 1\n", r":1: a key must be text"),
    "a key that is a mapping": ("{a: b}: 1\n", r":1: a key must be text"),
    "a key of a megabyte": ("x" * 900_000 + ": 1\n", r"not valid YAML|unknown field"),
    "a key that is null": ("~: 1\n", r":1: unknown field"),
    "a key that is empty": ("'': 1\n", r":1: unknown field"),
    "a zero character": ("name: a\x00b\n", r":1: the character U\+0000"),
    "a bell": ("seed: 1\nname: a\x07b\n", r":2: the character U\+0007"),
    "half a character": ("name: a\ud83d\n", r":1: not UTF-8"),
    "latin-1": ("seed: 1\nname: schön\n".encode("latin-1"), r":2: not UTF-8 text \(byte 0xf6\)"),
    "UTF-16": ("name: a\n".encode("utf-16"), r":1: not UTF-8"),
    "UTF-16 without a mark": ("name: a\n".encode("utf-16-le"), r":1: the character U\+0000"),
    "bytes": (bytes(range(256)), r"not UTF-8|the character U"),
    "a picture": (b"\x89PNG\r\n\x1a\n", r":1: not UTF-8"),
    "an escape out of range": ('name: "\\U99999999"\n', r"not valid YAML"),
    "an escape of half a character": ('name: "\\ud83d"\n', r":1: name"),
    "an unknown escape": ('name: "\\q"\n', r":1: not valid YAML"),
    "a directive": ("%YAML 9.9\n---\nname: a\n", r"not valid YAML|:1: "),
    "a directive twice": ("%YAML 1.1\n%YAML 1.1\n---\nname: a\n", r"not valid YAML"),
    "an anchor twice": ("a: &x 1\nb: &x 2\n", r"unknown field|not valid YAML"),
    "a question mark": ("? a\n? b\n", r":1: unknown field 'a'"),
    "a carriage return alone": ("name: a\rseed: x\r", r":2: seed"),
    "a line separator": ("name: a\u2028seed: x\n", r"recipe\.yaml:\d"),
}
"""Texts that are no recipe, and what the message must say."""
STRUCTURE: dict[str, tuple[str, str]] = {
    "steps that are a mapping": ("steps: {prune.layers: {count: 1}}\n", r":1: steps: got a mapping, must be a list"),
    "steps that are text": ("steps: prune.layers\n", r":1: steps: got 'prune.layers', must be a list"),
    "a step that is a number": ("steps: [7]\n", r":1: step 1: got 7"),
    "a step that is null": ("steps: [null]\n", r":1: step 1: got nothing"),
    "a step that is a list": ("steps: [[prune.layers]]\n", r":1: step 1: got"),
    "a step that is empty": ("steps: [{}]\n", r":1: step 1: got"),
    "a step of two names": ("steps: [{prune.layers: {}, prune.heads: {}}]\n", r":1: step 1: holds 2 names"),
    "a step whose fields are not indented": (
        "steps:\n  - prune.layers:\n    count: 1\n",
        r":2: step 1: the fields of 'prune.layers' must be indented",
    ),
    "an unknown step": ("steps: [prune.layer]\n", r":1: step 1: .*prune\.layer.*did you mean 'prune\.layers'"),
    "a step by a module's name": ("steps: ['os.system']\n", r":1: step 1: .*os\.system"),
    "a step by a private name": ("steps: ['__class__']\n", r":1: step 1: .*__class__"),
    "a step whose fields are text": ("steps: [{prune.layers: all}]\n", r":1: step 1, prune\.layers: got 'all'"),
    "a step whose fields are a list": ("steps: [{prune.layers: [1]}]\n", r":1: step 1, prune\.layers: got"),
    "an unknown export": ("export: [onyx]\n", r":1: export 1: unknown format 'onyx'; did you mean 'onnx'"),
    "an export that is a number": ("export: [7]\n", r":1: export 1: got 7"),
    "exports that are text": ("export: onnx\n", r":1: export: got 'onnx', must be a list"),
    "exports that are a mapping": ("export: {onnx: {}}\n", r":1: export: got a mapping"),
    "int8 that is a word": ("export: [{onnx: {int8: maybe}}]\n", r":1: export 1: .*int8"),
    "agreement above one": ("export: [{onnx: {agreement: 2}}]\n", r":1: export 1: .*agreement: got 2"),
    "a teacher without a model": ("teacher: {}\n", r":1: teacher: .*model"),
    "a teacher of an empty list": ("teacher: {model: []}\n", r":1: teacher: model"),
    "a teacher of numbers": ("teacher: {model: [1, 2]}\n", r":1: teacher: model"),
    "a teacher with an empty name": ("teacher: {model: ''}\n", r":1: teacher: model"),
    "one of several tasks": ("tasks: {a: {kind: qa, data: x}}\n", r":1: tasks"),
    "tasks of a strange name": (
        "tasks: {'../a': {kind: qa, data: x}, b: {kind: qa, data: y}}\n",
        r":1: tasks",
    ),
    "a task and tasks": (
        "task: {kind: qa, data: x}\ntasks: {a: {kind: qa, data: x}, b: {kind: qa, data: y}}\n",
        r"recipe\.yaml:[12]: .*task",
    ),
    "a name that leads outside": ("name: ../../etc\n", r":1: name: '../../etc' must be"),
    "a name that is absolute": ("name: /etc/passwd\n", r":1: name: "),
    "a name that is a number": ("name: 7\n", r":1: name: got 7.*put it in quotes"),
    "a name that is a truth": ("name: yes\n", r":1: name: got true.*put it in quotes"),
    "a name of 200 characters": (f"name: {'x' * 200}\n", r":1: name: "),
    "a sweep of nothing": (
        "teacher: {model: m, finetune: {sweep: {}}}\ntask: {kind: qa, data: x}\n",
        r":1: teacher.*sweep",
    ),
    "a sweep of unknown fields": (
        "teacher: {model: m, finetune: {sweep: {nope: [1]}}}\ntask: {kind: qa, data: x}\n",
        r":1: teacher.*nope",
    ),
    "a sweep of wrong values": (
        "teacher: {model: m, finetune: {sweep: {epochs: [-1]}}}\ntask: {kind: qa, data: x}\n",
        r":1: teacher.*epochs",
    ),
    "a loss of another name": (
        "teacher: {model: m, finetune: {loss: nope}}\ntask: {kind: classification, data: x}\n",
        r":1: teacher.*nope",
    ),
    **{
        f"an objective: {name}": (
            f"{HEAD}steps:\n  - distill.combined: {{objective: {objective}}}\n",
            rf":6: step 1, distill\.combined: {says}",
        )
        for name, objective, says in (
            ("epochs in a term", "{distill.logits: {epochs: 3}}", r".*distill\.logits: epochs: a term of an objective"),
            ("a batch size in a term", "{distill.labels: {batch_size: 3}}", r".*labels: batch_size: a term of an obj"),
            ("training in a term", "{distill.logits: {training: {epochs: 3}}}", r".*logits: epochs: a term of an obj"),
            (
                "two fields of training",
                "{distill.pkd: {epochs: 3, warmup_steps: 0}}",
                r".*distill\.pkd: epochs, warmup_steps: a term",
            ),
            ("nothing", "{}", "objective"),
            ("a number", "7", "objective"),
            ("a list", "[distill.logits]", "objective"),
            ("an unknown term", "{distill.logit: {}}", r".*distill\.logit\b.*did you mean"),
            ("a term that is no loss", "{prune.layers: {}}", r".*prune\.layers is not a single loss"),
            ("a weight below zero", "{distill.logits: {weight: -1}}", r".*weight"),
            ("a weight that is no number", "{distill.logits: {weight: .nan}}", r".*weight"),
            ("a weight of text", "{distill.logits: {weight: much}}", r".*weight"),
            ("an unknown field", "{distill.logits: {nope: 1}}", r".*distill\.logits: unknown field 'nope'"),
            ("a term of text", "{distill.logits: all}", r".*distill\.logits: got 'all'"),
        )
    },
}
OVERRIDES: dict[str, tuple[str, str]] = {
    "nothing": ("", "write path=value"),
    "no value": ("training.epochs", "write path=value"),
    "no path": ("=1", "write path=value"),
    "an empty part": ("training..epochs=1", "write path=value"),
    "an unknown field": ("training.nope=1", "unknown field 'nope'"),
    "an unknown block": ("nope.epochs=1", "unknown field 'nope'"),
    "a field of a number": ("seed.nope=1", "seed is a single value"),
    "a step that is not there": ("steps.7.alpha=1", "steps has 1 item,"),
    "a step by a huge number": (f"steps.{'9' * 5000}.alpha=1", "there is no 9|characters left out"),
    "a step by another digit": ("steps.².alpha=1", "steps"),
    "a step by another name": ("steps.prune.layers.count=1", "no 'prune.layers.count' in steps"),
    "a whole step": ("steps.0=nope", "unknown technique|step 1"),
    "a whole step by its name": ("steps.distill.logits=1", "names a whole step|step 1"),
    "broken YAML": ("training.epochs=[1", "not valid YAML"),
    "nested deeply": ("training.epochs=" + "[" * 5000, "nested deeper|not valid YAML"),
    "a number of 5,000 digits": ("seed=" + "9" * 5000, "is not an int"),
    "100,000 characters": ("seed=" + "x" * 100_000, "seed"),
    "a path of 100,000 characters": ("x" * 100_000 + "=1", "unknown field|x"),
    "a path of 5,000 parts": (".".join(["a"] * 5000) + "=1", "at most 40 parts"),
    "a mapping": ("seed={a: 1}", "seed: got a mapping"),
    "null": ("task.kind=null", "kind"),
    "a wrong value": ("training.epochs=-1", "training: epochs: got -1"),
    "a variable that is not set": ("name=${NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE is not set"),
    "a zero": ("name=a\\0b", "name"),
}
CASES = [
    *of_blocks(),
    *of_techniques(),
    *(
        Case(
            name,
            CHECK,
            write("recipe.yaml", text),
            says=rf"recipe\.yaml.*({says})",
            seconds=20,
            megabytes=500,
            slow=name in ("5,000 unknown steps", "5,000 unknown keys"),
        )
        for name, (text, says) in BROKEN.items()
        if name not in ("an impossible date",)
    ),
    *(
        Case(name, CHECK, write("recipe.yaml", text), says=rf"recipe\.yaml.*{says}" if says[0] == ":" else says)
        for name, (text, says) in STRUCTURE.items()
    ),
    *(
        Case(
            f"{command} --set {name}",
            f"{command} recipe.yaml{more} --set '{text}'",
            says=rf"(--set|recipe\.yaml).*({says})",
            slow=command != "check",
        )
        for command, more in (("check", " --file-only"), ("plan", ""), ("run", " --out out"))
        for name, (text, says) in OVERRIDES.items()
        if command == "check" or len(text) < 1000
    ),
    *(
        Case(
            f"{command}: {name}",
            f"{command} recipe.yaml",
            write("recipe.yaml", text),
            says=rf"recipe\.yaml.*({says})",
            slow=True,
        )
        for command in ("plan", "run", "teach --recipe")
        for name, (text, says) in BROKEN.items()
        if name not in ("an impossible date",)
    ),
    *(
        Case(f"{command}: the recipe is {name}", f"{command} {path}{more}", act, says=says, code=(1, 2))
        for command, more in (("check", ""), ("plan", ""), ("run", " --out out"), ("teach --recipe", ""))
        for name, path, act, says in (
            ("a folder", "data", (), "data: the recipe cannot be read .it is a folder"),
            ("not there", "nowhere.yaml", (), "nowhere.yaml: the recipe cannot be read"),
            ("below a file", "recipe.yaml/x", (), "recipe.yaml/x: the recipe cannot be read"),
            ("a name of 5,000 characters", "x" * 5000, (), "recipe cannot be read|characters left out"),
            ("the weights of a model", "model/model.safetensors", (), "model.safetensors"),
            ("a script", "export/predict.py", (), "predict.py"),
        )
    ),
]
test_case = table(CASES, quick=12)
