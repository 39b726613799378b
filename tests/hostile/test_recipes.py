"""What would end a run late is said by ``check``, and by ``run`` before it trains: all of it, with its line."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.forking import Ending
from tests.hostile.case import Case, table
from tests.hostile.damage import Damage, flip, json_set, remove, tensors, truncate, write

BLOCKS = {
    "name": "small",
    "task": "{kind: classification, data: data, max_length: 32}",
    "teacher": "{model: model}",
    "student": "{from: teacher, layers: [0, 2]}",
    "training": "{max_steps: 2, learning_rate: 1.0e-3, batch_size: 8}",
    "steps": "[distill.logits: {alpha: 0.9}]",
    "export": "[onnx]",
    "evaluate": "{against: teacher, latency: null}",
}
"""A sound recipe, a block a line."""
LINES = {key: number for number, key in enumerate(BLOCKS, start=1)}


def recipe(**changes: str | None) -> Damage:
    """Write the recipe with other blocks; None leaves one out."""
    blocks = {key: value for key, value in (BLOCKS | changes).items() if value is not None}
    return write("recipe.yaml", "".join(f"{key}: {value}\n" for key, value in blocks.items()))


def copied(source: str, target: str) -> Damage:
    return lambda scene: shutil.copytree(scene / source, scene / target) and None


def without_labels(split: str, keep: int = 0) -> Damage:
    """Take the labels of a split away, but for the first examples."""

    def act(scene: Path) -> None:
        path = scene / "data" / f"{split}.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        some = [row if number < keep else {"text": row["text"]} for number, row in enumerate(rows)]
        path.write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")

    return act


def absent(package: str) -> Damage:
    """Skip where a package is installed, for then the case is none."""

    def act(scene: Path) -> None:
        if find_spec(package) is not None:
            pytest.skip(f"{package} is installed")

    return act


def other_labels(folder: str, *labels: str) -> Damage:
    def act(scene: Path) -> None:
        names = {str(number): label for number, label in enumerate(labels)}
        json_set(f"{folder}/config.json", "id2label", names)(scene)
        json_set(f"{folder}/config.json", "label2id", {label: int(key) for key, label in names.items()})(scene)
        json_set(f"{folder}/task.json", "labels", list(labels))(scene)

    return act


def without_head(weights: dict) -> dict:
    return {name: tensor for name, tensor in weights.items() if not name.startswith("classifier")}


def with_nan(weights: dict) -> dict:
    return weights | {"classifier.bias": weights["classifier.bias"] * float("nan")}


BASE = (
    copied("model", "base"),
    tensors("base/model.safetensors", without_head),
    json_set("base/config.json", "architectures", ["BertModel"]),
)
"""A base without a head."""
OTHER = copied("model", "other")


def bad(title: str, says: str, /, *damage: Damage, line: str | None = None, **changes: str | None) -> Case:
    """A recipe that ``check`` refuses, in the line of the last block that was changed."""
    where = line or next(reversed(changes), None)
    found = rf"recipe\.yaml:{LINES[where]}: .*{says}" if where else says
    return Case(title, "check recipe.yaml", (recipe(**changes), *damage), says=found)


def late(title: str, says: str, /, *damage: Damage, **changes: str | None) -> Case:
    """As ``bad``, where the fault stands in what the recipe names, and no line is due."""
    return Case(title, "check recipe.yaml", (recipe(**changes), *damage), says=says)


def good(name: str, *damage: Damage, **changes: str | None) -> Case:
    return Case(name, "check recipe.yaml", (recipe(**changes), *damage), code=0, after=nothing_is_made)


def nothing_is_made(scene: Path, _: Ending) -> None:
    assert not (scene / "out").exists()
    assert not (scene / "home" / "teachers").exists()


def evaluate(what: str) -> dict[str, str]:
    return {"evaluate": f"{{latency: null, {what}}}"}


def latency(what: str) -> dict[str, str]:
    return {"evaluate": f"{{latency: {what}}}"}


SOUND = [
    good("all is well"),
    good("judged on the training split", **evaluate("split: train")),
    good("held against an artifact", **evaluate("against: artifact")),
    good("held against nothing", **evaluate("against: none")),
    good("held against labels in another order", OTHER, **evaluate("against: other")),
    good("no longer than the model takes", **latency("{lengths: 32}")),
    good("a margin of nothing", **evaluate("margin: 0")),
    good("a baseline", **evaluate("baseline: true")),
    good("several exports", export="[onnx: {int8: true}, ort, web]"),
    good(
        "a second step that the first leaves possible",
        steps="[prune.layers: {keep: [1]}, prune.heads: {heads: {0: [1]}}]",
    ),
]
SPLITS = [
    bad("a split that is not there", r"evaluate\.split: there is no split 'nosuch'", **evaluate("split: nosuch")),
    bad("a split with a typo", r"evaluate\.split: .*did you mean 'validation'", **evaluate("split: validaton")),
    bad("a split without a name", r"evaluate\.split: there is no split ''", **evaluate('split: ""')),
    bad("a split that is a number", r"split: got 5, must be text", **evaluate("split: 5")),
    bad("a split that is a list", r"split: got .*must be text", **evaluate("split: [test]")),
    bad("no test split", r"evaluate\.split: .*'test'", remove("data/test.jsonl"), **evaluate("split: test")),
    bad(
        "no split that reports",
        r"evaluate\.split: Nothing reports: data has no validation or test split with labels.*40 examples",
        remove("data/validation.jsonl"),
        remove("data/test.jsonl"),
        evaluate="{latency: null}",
    ),
    bad(
        "a split without labels",
        r"evaluate\.split: .*without 'label'",
        without_labels("test"),
        **evaluate("split: test"),
    ),
]
AGAINST = [
    bad("against no model", r"evaluate\.against: .*nowhere.*no such folder", **evaluate("against: ./nowhere")),
    bad("against a folder of data", r"evaluate\.against: data: no config\.json here", **evaluate("against: data")),
    bad(
        "against an empty folder",
        r"evaluate\.against: empty: no config",
        lambda s: (s / "empty").mkdir(),
        **evaluate("against: empty"),
    ),
    bad("against a file", r"evaluate\.against: recipe\.yaml", **evaluate("against: recipe.yaml")),
    bad("against an export", r"evaluate\.against: export", **evaluate("against: export")),
    bad("against nothing", r"against: got .*must be text", **evaluate("against: null")),
    bad("against a list", r"against: got .*must be text", **evaluate("against: [model, artifact]")),
    bad(
        "against other labels",
        r"evaluate\.against: other: the model answers \['no', 'yes'\]",
        OTHER,
        other_labels("other", "no", "yes"),
        **evaluate("against: other"),
    ),
    bad(
        "against one label more",
        r"evaluate\.against: other",
        OTHER,
        other_labels("other", "bad", "good", "fine"),
        **evaluate("against: other"),
    ),
    bad(
        "against a model without a head",
        r"evaluate\.against: base: .*without a trained head for classification",
        *BASE,
        **evaluate("against: base"),
    ),
    bad(
        "against weights cut off",
        r"evaluate\.against: other: .*weights",
        OTHER,
        truncate("other/model.safetensors", 999),
        **evaluate("against: other"),
    ),
    bad(
        "against no weights",
        r"evaluate\.against: other: .*weights",
        OTHER,
        remove("other/model.safetensors"),
        **evaluate("against: other"),
    ),
    bad(
        "against NaN",
        r"evaluate\.against: other: .*NaN",
        OTHER,
        tensors("other/model.safetensors", with_nan),
        **evaluate("against: other"),
    ),
    bad(
        "against a model without a tensor",
        r"evaluate\.against: other: missing from the weights",
        OTHER,
        tensors("other/model.safetensors", without_head),
        **evaluate("against: other"),
    ),
    bad(
        "against a model without a tokenizer",
        r"evaluate\.against: other: .*tokenizer",
        OTHER,
        remove("other/tokenizer.json"),
        **evaluate("against: other"),
    ),
    bad(
        "against an artifact with a flipped bit",
        r"evaluate\.against: artifact: .*not those",
        flip("artifact/model.safetensors", -1),
        **evaluate("against: artifact"),
    ),
    bad(
        "against an artifact that lost a record",
        r"evaluate\.against: .*record 2",
        lambda s: _drop_record(s),
        **evaluate("against: artifact"),
    ),
    bad(
        "against a model whose task was changed",
        r"evaluate\.against: artifact/task\.json: is not the file that lineage\.json records",
        json_set("artifact/task.json", "kind", "regression"),
        json_set("artifact/task.json", "labels", []),
        **evaluate("against: artifact"),
    ),
    late(
        "against a teacher that is not there",
        r"evaluate\.against: there is no teacher",
        teacher=None,
        student="{from: model}",
        steps="[distill.labels]",
    ),
]


def _drop_record(scene: Path) -> None:
    file = scene / "artifact" / "lineage.json"
    lineage = json.loads(file.read_text(encoding="utf-8"))
    del lineage["records"][1]
    file.write_text(json.dumps(lineage), encoding="utf-8")


MARGINS = [
    bad(f"a margin of {value}", r"margin: got .*must be a .*number", **evaluate(f"margin: {value}"))
    for value in (".inf", "-.inf", ".nan", "-0.1", "much", "true", "1.0e+999", "[0.1]", "null", "{}")
]
LATENCIES = [
    bad(
        "longer than the task takes",
        r"evaluate\.latency\.lengths: latency of teacher: 33 tokens are more than the 32",
        **latency("{lengths: 33}"),
    ),
    bad(
        "much longer than the task takes",
        r"evaluate\.latency\.lengths: .*small: 1000000 tokens",
        **latency("{lengths: 1000000}"),
    ),
    bad(
        "longer than the model takes",
        r"evaluate\.latency\.lengths: .*129 tokens are more than the 128",
        line="evaluate",
        **(latency("{lengths: 129}") | {"task": "{kind: classification, data: data, max_length: 200}"}),
    ),
    *(
        bad(f"latency {value}", says, **latency(value))
        for value, says in {
            "{lengths: 0}": "latency.lengths: got 0",
            "{lengths: -5}": "latency.lengths: got -5",
            "{lengths: all}": "latency.lengths: got 'all'",
            "{lengths: 8.5}": "latency.lengths: got 8.5",
            "{lengths: [8]}": "latency.lengths: got",
            "{batch: []}": "latency.batch: .*must not be empty",
            "{batch: [0]}": r"latency.batch\[0\]: got 0",
            "{batch: [1, -1]}": r"latency.batch\[1\]: got -1",
            "{batch: [1.5]}": r"latency.batch\[0\]: got 1.5",
            "{batch: 8}": "latency.batch: got 8",
            "{length: 8}": "unknown field 'length'",
            "5": "latency: got 5",
            "yes": "latency: got",
        }.items()
    ),
]
EVALUATES = [
    bad("a baseline that is a word", "baseline: got 'perhaps'", **evaluate("baseline: perhaps")),
    bad("an unknown field", "unknown field 'agianst'; did you mean 'against'", **evaluate("agianst: none")),
    bad("a list", "evaluate: got .*must be", evaluate="[against]"),
    bad("a word", "evaluate: got 'teacher'", evaluate="teacher"),
    *(
        bad(f"the name {name!r}", "is what results call another model", line="name", **({"name": name} | more))
        for name, more in {
            "teacher": {},
            "TEACHER": {},
            "onnx": {},
            "onnx-int8": {"export": "[onnx: {int8: true}]"},
            "no teacher": evaluate("baseline: true"),
            "no-teacher": evaluate("baseline: true"),
        }.items()
    ),
]
EXPORTS = [
    bad(
        "OpenVINO is not installed",
        r"export 1, openvino: openvino is not installed; run: pip install",
        absent("openvino"),
        export="[openvino]",
    ),
    bad(
        "ExecuTorch is not installed",
        r"export 2, executorch: executorch is not installed; run: pip install",
        absent("executorch"),
        export="[onnx, executorch]",
    ),
    bad(
        "bitsandbytes before onnx",
        r"export 1, onnx: .*bitsandbytes runs in torch alone",
        line="export",
        steps="[quantize.bitsandbytes]",
    ),
    bad(
        "bitsandbytes before all",
        r"export 2, ort: .*bitsandbytes runs in torch alone",
        line="export",
        steps="[quantize.bitsandbytes]",
        export="[onnx, ort, web]",
    ),
    bad(
        "a pattern without a module",
        r"no module is called 'nosuch'",
        line="steps",
        steps="[quantize.dynamic: {exclude: [nosuch]}]",
    ),
    *(
        bad(f"export {value}", says, export=value)
        for value, says in {
            "[tensorrt]": "unknown format 'tensorrt'",
            "[onxx]": "unknown format 'onxx'; did you mean 'onnx'",
            "[onnx: {int8: perhaps}]": "int8: got 'perhaps'",
            "[onnx: {agreement: 2}]": "agreement: got 2",
            "[onnx: {agreement: -1}]": "agreement: got -1",
            "[onnx: {agreement: .nan}]": "agreement: got nan",
            "[onnx: {agreement: .inf}]": "agreement: got inf",
            "[onnx: {opset: 17}]": "unknown field 'opset'",
            "[onnx: 5]": "got 5",
            "onnx": "export: got 'onnx', must be a list",
            "{onnx: {}}": "export: got .*must be a list",
            "[{onnx: {}, ort: {}}]": "holds 2 names",
            "[null]": "export 1: got",
            "[[onnx]]": "export 1: got",
            "[5]": "export 1: got 5",
        }.items()
    ),
]
STEPS = [
    bad(
        "a second impossible step",
        r"step 2, prune\.layers .*",
        line="steps",
        steps="[prune.layers: {keep: [0]}, prune.layers: {keep: [1]}]",
    ),
    bad(
        "heads of a layer that went",
        r"step 2, prune\.heads .*",
        line="steps",
        steps="[prune.layers: {keep: [0]}, prune.heads: {heads: {1: [0]}}]",
    ),
    bad(
        "two impossible steps",
        r"step 1, prune\.layers.*step 2, prune\.heads",
        line="steps",
        steps="[prune.layers: {keep: [0, 7]}, prune.heads: {heads: {7: [0]}}]",
    ),
    bad(
        "one impossible before, one impossible after",
        r"step 1, prune\.layers.*step 3, prune\.layers",
        line="steps",
        steps="[prune.layers: {keep: [7]}, prune.layers: {keep: [0]}, prune.layers: {keep: [1]}]",
    ),
    bad(
        "new layers from no model",
        r"step 1, replace\.theseus .*nowhere.*no such folder",
        line="steps",
        steps="[replace.theseus: {count: 1, start: ./nowhere}]",
    ),
    bad(
        "new layers from an artifact with too few",
        r"step 1, replace\.theseus .*artifact: has 2 layers, and 3 are to start",
        line="steps",
        student="{from: teacher}",
        steps="[replace.theseus: {count: 3, start: artifact}]",
    ),
    bad(
        "a step that the last one forbids",
        r"step 2, prune\.layers",
        line="steps",
        steps="[distill.bilstm: {hidden_size: 8}, prune.layers: {count: 1}]",
    ),
    bad(
        "trained after it was quantized",
        r"step 2, distill\.logits",
        line="steps",
        steps="[quantize.dynamic, distill.logits]",
    ),
    bad(
        "a temperature without end",
        r"temperature: got inf, must be a finite number",
        line="steps",
        steps="[distill.logits: {temperature: .inf}]",
    ),
    bad(
        "an alpha that is none",
        r"alpha: got nan, must be a finite number",
        line="steps",
        steps="[distill.logits: {alpha: .nan}]",
    ),
]
TASKS = [
    late("few labels", "data/test.jsonl:10: the field 'label' is missing", without_labels("test", 9)),
    late(
        "no labels to learn from",
        "data/train.jsonl: all 40 items: the field 'label' is missing",
        without_labels("train"),
    ),
    late("no data", "nowhere", task="{kind: classification, data: nowhere}"),
    late("data in a file that is none", "recipe.yaml", task="{kind: classification, data: recipe.yaml}"),
    *(
        late(f"task with {value}", says, task=f"{{kind: classification, data: data, {value}}}")
        for value, says in {
            "metric: f2": "f2",
            "metric: spearman": "spearman",
            "labels: [good]": "needs two labels",
            "labels: []": "labels",
            "labels: [bad, good, good]": "good",
            "class_weights: {fine: 2.0}": "fine",
            "class_weights: {bad: .inf, good: 1.0}": "class_weights",
            "class_weights: {bad: -1.0, good: 1.0}": "class_weights|weight",
            "max_length: 3": "max_length: got 3",
            "max_length: 1.5": "max_length: got 1.5",
            "stride: -1": "stride: got -1",
            "truncation: middle": "truncation: got 'middle'",
            "truncation_side: up": "truncation_side: got 'up'",
            "on_bad: forget": "on_bad: got 'forget'",
            "limit: {train: 0}": "limit.train: got 0",
            "limit: 5": "limit: got 5",
            "files: {train: nowhere.jsonl}": "nowhere.jsonl",
            "columns: {text: nosuch}": "nosuch",
            "columns: 5": "columns: got 5",
            "label_map: {bad: 1}": "label_map.bad: got 1, must be text",
            "label_map: {bad: worse}": "good",
        }.items()
    ),
    late("an unknown kind", "kind: got 'sentiment'", task="{kind: sentiment, data: data}"),
]
TEACHERS = [
    late("no teacher", "nowhere", teacher="{model: ./nowhere}"),
    late("one teacher of two", "nowhere", teacher="{model: [model, ./nowhere]}"),
    late("an export as teacher", "export", teacher="{model: export}"),
    late(
        "a teacher of other labels",
        r"the model answers \['no', 'yes'\]",
        OTHER,
        other_labels("other", "no", "yes"),
        teacher="{model: other}",
    ),
    late(
        "two teachers of other labels",
        "other",
        OTHER,
        other_labels("other", "no", "yes"),
        teacher="{model: [model, other]}",
    ),
    *(
        bad(f"teacher with {value}", says, teacher=f"{{model: model, {value}}}")
        for value, says in {
            "finetune: {learning_rate: .inf}": "learning_rate: got inf, must be a finite number",
            "finetune: {learning_rate: 0}": "learning_rate: got 0",
            "finetune: {epochs: 0}": "epochs: got 0",
            "finetune: {epochs: .nan}": "epochs: got nan",
            "finetune: {seed: []}": "seed",
            "finetune: {seed: -1}": "seed",
            "finetune: {sweep: {}}": "sweep",
            "finetune: {sweep: {nosuch: [1]}}": "nosuch",
            "finetune: {sweep: {learning_rate: [.inf]}}": "learning_rate",
            "finetune: {loss: nosuch}": "loss",
            "finetune: {head: nosuch}": "head",
            "finetune: {per_task: {epochs: 1}}": "per_task",
            "finetune: 5": "finetune: got 5",
            "shape: {layers: 1}": "add finetune",
            "pretrain: {text: a}": "'stages' is missing",
            "accept_incomplete: perhaps": "accept_incomplete: got 'perhaps'",
        }.items()
    ),
    late(
        "a head for pairs on single texts",
        "answer_network: is for classes of pairs",
        teacher="{model: model, finetune: {head: answer_network, max_steps: 1}}",
    ),
    late(
        "a shape that cannot be",
        "teacher.shape: .*heads",
        teacher="{model: model, shape: {hidden_size: 30, heads: 4}, finetune: {max_steps: 1}}",
    ),
]
STUDENTS = [
    late(f"student {value}", says, student=value)
    for value, says in {
        "{from: teacher, layers: [0, 9]}": "layers",
        "{from: teacher, layers: 7}": "layers",
        "{from: teacher, hidden_size: 30, init: random}": "hidden_size|heads",
        "{from: teacher, family: nosuch}": "nosuch",
        "{from: ./nowhere}": "nowhere",
        "{from: data}": "data",
    }.items()
]
TOGETHER = Case(
    "everything is said at once",
    "check recipe.yaml",
    (
        recipe(
            steps="[prune.layers: {keep: [0]}, prune.layers: {keep: [1]}]",
            export="[onnx, openvino]",
            evaluate="{split: nosuch, against: ./nowhere, latency: {lengths: 99}}",
        ),
        absent("openvino"),
    ),
    says=r":8: evaluate\.split: .*:6: step 2, prune\.layers .*:7: export 2, openvino: .*:8: evaluate\.against: ",
)


def unclaimed(scene: Path, _: Ending) -> None:
    assert not [
        path for path in scene.rglob("*") if path.name in ("steps", "teachers") or path == scene / "out/recipe.yaml"
    ]


def runs(cases: list[Case], *names: str) -> list[Case]:
    """The same recipes, run: they end as they do in ``check``, before anything is trained, and claim no folder."""
    chosen = [case for case in cases if case.name in names]
    assert len(chosen) == len(names)
    return [
        Case(f"run: {case.name}", "run recipe.yaml --out out", case.damage, says=case.says, after=unclaimed)
        for case in chosen
    ]


REFUSED = [
    *SPLITS,
    *AGAINST,
    *MARGINS,
    *LATENCIES,
    *EVALUATES,
    *EXPORTS,
    *STEPS,
    *TASKS,
    *TEACHERS,
    *STUDENTS,
    TOGETHER,
]
CASES = [
    *SOUND,
    *REFUSED,
    *runs(
        REFUSED,
        "a split that is not there",
        "a split without labels",
        "against no model",
        "against other labels",
        "longer than the task takes",
        "OpenVINO is not installed",
        "bitsandbytes before onnx",
        "a margin of .inf",
        "a second impossible step",
        "everything is said at once",
    ),
    Case(
        "run: a teacher is not fine-tuned for a recipe that cannot end",
        "run recipe.yaml --out out",
        recipe(teacher="{model: model, finetune: {max_steps: 1}}", **evaluate("split: nosuch")),
        says=r"recipe\.yaml:8: evaluate\.split: ",
        after=unclaimed,
    ),
    Case(
        "run: an export cannot take the place of something else",
        "run recipe.yaml --out out --resume",
        (
            recipe(),
            lambda scene: shutil.copytree(scene / "data", scene / "out" / "onnx") and None,
            write("out/recipe.yaml", ""),
        ),
        says="out/onnx: is there already and no export",
    ),
]
test_case = table(CASES, quick=14)
