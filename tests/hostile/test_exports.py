"""``verify`` and ``export``: what did not run has not been verified, and what cannot be exported is said beforehand."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from compress.export.runtime.manifest import with_digest
from tests.forking import ROOT, Ending
from tests.hostile.case import Case, table
from tests.hostile.damage import Damage, flip, json_drop, json_set, link, remove, truncate, write

VERIFY, EXPORT = "verify export", "export model --out out"


def conformance(change: Callable[[dict[str, Any]], Any], known: bool = True) -> Damage:
    """Change the conformance file of the export, and its digest in the manifest, so that it seems to be as written."""

    def act(scene: Path) -> None:
        file = scene / "export" / "conformance.json"
        values = json.loads(file.read_text(encoding="utf-8"))
        change(values)
        file.write_text(json.dumps(values), encoding="utf-8")
        if known:
            found = {"bytes": file.stat().st_size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
            manifest = scene / "export" / "export.json"
            told = json.loads(manifest.read_text(encoding="utf-8"))
            told["files"]["conformance.json"] = found
            manifest.write_text(json.dumps(with_digest(told)), encoding="utf-8")

    return act


def no_rows(known: dict[str, Any]) -> None:
    known["rows"] = []


def other_ids(known: dict[str, Any]) -> None:
    for row in known["rows"]:
        row["inputs"]["input_ids"][0] += 1


def other_answers(known: dict[str, Any]) -> None:
    for row in known["rows"]:
        row["logits"] = [-5 * value for value in row["logits"]]


def no_limit(known: dict[str, Any]) -> None:
    known["limit"] = 0.0


def broken(package: str) -> Damage:
    """Put a package of the same name before the one that is installed, which cannot be loaded."""
    return write(f"broken/{package}.py", "raise ImportError('its library is missing')\n")


def absent(package: str) -> Damage:
    def act(scene: Path) -> None:
        del scene
        if find_spec(package) is not None:
            pytest.skip(f"{package} is installed")

    return act


def nothing_written(scene: Path, _: Ending) -> None:
    assert not (scene / "out").exists()
    assert not [path for path in scene.rglob("*") if path.name.endswith((".writing", ".old"))]


def told_as_json(_: Path, ending: Ending) -> None:
    assert not any(each["passed"] for each in json.loads(ending.out))


CASES = [
    Case("all is well", VERIFY, code=0),
    Case("all is well with its model", "verify export --against artifact --data data", code=0),
    Case("nothing to compare", VERIFY, conformance(no_rows), code=1, says="holds no inputs, so nothing was compared"),
    Case(
        "nothing to compare, as JSON",
        f"{VERIFY} --json",
        conformance(no_rows),
        code=1,
        says="no inputs",
        after=told_as_json,
    ),
    Case("every input is another", VERIFY, conformance(other_ids), code=1, says="gives other tokens"),
    Case("every answer is another", VERIFY, conformance(other_answers), code=1, says="logits differ by up to"),
    Case("no difference is allowed", VERIFY, conformance(no_limit), code=(0, 1)),
    Case(
        "no runtime can be loaded",
        VERIFY,
        (broken("onnxruntime"), broken("onnx")),
        env={"PYTHONPATH": f"broken:{ROOT}"},
        fresh=True,
        code=1,
        says="not verified, for no runtime could run it.*its library is missing",
        slow=True,
    ),
    Case("conformance that was changed", VERIFY, conformance(no_rows, known=False), says="conformance.json"),
    Case("no conformance", VERIFY, remove("export/conformance.json"), says="conformance.json"),
    Case("conformance of another format", VERIFY, conformance(lambda known: known.update(format=9)), says="format 9"),
    Case("no manifest", VERIFY, remove("export/export.json"), says="export.json is missing"),
    Case("an empty manifest", VERIFY, write("export/export.json", ""), says="not JSON"),
    Case("a manifest that is a list", VERIFY, write("export/export.json", "[]"), says="not the manifest"),
    Case("a manifest without files", VERIFY, json_drop("export/export.json", "files"), says="files missing"),
    Case("a manifest of a later version", VERIFY, json_set("export/export.json", "format", 99), says="format 99"),
    Case("an unknown target", VERIFY, json_set("export/export.json", "target", "tensorrt"), says="tensorrt"),
    Case("a graph with a flipped bit", VERIFY, flip("export/model.onnx", 1000), says="model.onnx"),
    Case("a graph cut off", VERIFY, truncate("export/model.onnx", 1000), says="model.onnx"),
    Case("no graph", VERIFY, remove("export/model.onnx"), says="model.onnx"),
    Case("a tokenizer with a flipped bit", VERIFY, flip("export/tokenizer.json", 99), says="tokenizer.json"),
    Case("no tokenizer", VERIFY, remove("export/tokenizer.json"), says="tokenizer.json"),
    Case("no settings of the inputs", VERIFY, remove("export/encoder.json"), says="encoder.json"),
    Case("a model instead of an export", "verify model", says="model: no export.json here"),
    Case("data instead of an export", "verify data", says="data: no export.json here"),
    Case("nothing instead of an export", "verify nowhere", says="nowhere"),
    Case("against other weights", "verify export --against model", says="was made from other weights"),
    Case("against no model", "verify export --against nowhere", says="nowhere"),
    Case("data without a model", "verify export --data data", says="add --against"),
    Case("against data that is not there", "verify export --against artifact --data nowhere", says="nowhere"),
    Case("to an unknown target", f"{EXPORT} --to onxx", says="did you mean 'onnx'", after=nothing_written),
    Case(
        "to OpenVINO, which is not installed",
        f"{EXPORT} --to openvino",
        absent("openvino"),
        says="openvino is not installed.*pip install",
        after=nothing_written,
    ),
    Case(
        "to ExecuTorch, which is not installed",
        f"{EXPORT} --to executorch",
        absent("executorch"),
        says="executorch is not installed.*pip install",
        after=nothing_written,
    ),
    Case("an export of an export", "export export --out out", says="is an export already", after=nothing_written),
    Case("an export of data", "export data --out out", says="data: no config.json", after=nothing_written),
    Case("an export of nothing", "export nowhere --out out", says="nowhere", after=nothing_written),
    Case("agreement above 1", f"{EXPORT} --int8 --agreement 2", says="agreement", after=nothing_written),
    Case("agreement of no number", f"{EXPORT} --int8 --agreement much", says="agreement", after=nothing_written),
    Case("a score to reach without tuning", f"{EXPORT} --least-score 0.5", says="--least-score", after=nothing_written),
    Case("tuning without data", f"{EXPORT} --tune latency", says="add --data", after=nothing_written),
    Case("tuning for an unknown goal", f"{EXPORT} --tune beauty --data data", says="--tune", after=nothing_written),
    Case("packages for a page that is none", f"{EXPORT} --assets data", says="--assets", after=nothing_written),
    Case("packages that are not there", f"{EXPORT} --to web --assets data", says="lacks", after=nothing_written),
    Case("an export over data", "export model --out data", says="data: is there already and no export"),
    Case("an export over its model", "export model --out model", says="model: is there already and no export"),
    Case("an export over a file", "export model --out recipe.yaml", says="recipe.yaml"),
    Case("an export over an earlier one", "export model --out export", code=0, changes=("export",)),
    Case(
        "an export over a link to something else",
        "export model --out linked",
        link("linked", "data"),
        says="linked: is there already and no export",
    ),
    Case(
        "an export that cannot be read anew stays",
        "export nowhere --out export",
        says="nowhere",
    ),
    Case(
        "what a killed export left is removed",
        "export model --out out/new",
        lambda scene: shutil.copytree(scene / "export", scene / "out" / ".new.0123abcd.writing") and None,
        code=0,
        after=lambda scene, _: _holds(scene / "out", "new"),
    ),
]


def _holds(folder: Path, *names: str) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


test_case = table(CASES, quick=10)
