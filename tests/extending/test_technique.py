"""The example package: a technique of somebody else works from the command line, from YAML, and when it is loaded."""

import json

import pytest

from tests.extending.conftest import EXAMPLE
from tests.tiny import tiny_task, tiny_taskmodel

RECIPE = """\
name: outside
task: {{kind: classification, data: {root}/data, max_length: 32}}
teacher: {{model: {root}/teacher}}
student: {{from: teacher, layers: [0, 2]}}
steps:
  - acme.half: {{parts: [layers, pooler]}}
evaluate: {{against: teacher, latency: null}}
"""
LOADED = """
import json, sys
import numpy as np
from compress import load
from eval.inference import predict
model = load(sys.argv[1])
kinds = sorted({type(part).__module__ for part in model.model.modules() if type(part).__name__ == "HalfLinear"})
logits = np.stack(predict(model, [{"text": "the film is good"}]).logits)
print(json.dumps([kinds, [[r.technique, r.package] for r in model.lineage], logits.tolist()]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with data, a teacher and a recipe."""
    from teachers.taskmodel import save_taskmodel

    folder, task = tmp_path_factory.mktemp("place"), tiny_task()
    for part in ("data", "teacher"):
        (folder / part).mkdir()
    for name, split in task.splits.items():
        lines = "".join(json.dumps(dict(item)) + "\n" for item in split)
        (folder / "data" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    save_taskmodel(tiny_taskmodel("bert", task.spec), folder / "teacher")
    (folder / "recipe.yaml").write_text(RECIPE.format(root=folder), encoding="utf-8")
    return folder


def test_it_is_listed_and_shown(example):
    (row,) = [each for each in json.loads(example.cli("list", "--json")) if each["name"] == "acme.half"]
    assert (row["package"], row["reduces"], row["freezes"]) == ("acme-half 1.0", ["bytes"], True)
    shown = example.cli("show", "acme.half")
    assert shown.startswith("acme.half (version 1)\nKeep the weights of linear layers in 16 bits.\n")
    assert shown.endswith("source: Micikevicius et al. 2018, arXiv 1710.03740\npackage: acme-half 1.0\n")


def test_an_error_in_a_recipe_has_its_line(example, place):
    recipe = place / "wrong.yaml"
    recipe.write_text(RECIPE.format(root=place).replace("acme.half: {parts: [layers, pooler]}", "acme.half: {part: 1}"))
    said = example.cli("check", recipe, code=2)
    assert said == f"{recipe}:6: step 1, acme.half: unknown field 'part'; did you mean 'parts'?\n"
    recipe.write_text(RECIPE.format(root=place).replace("acme.half", "acme.halve"))
    assert "unknown technique 'acme.halve'; did you mean 'acme.half'?" in example.cli("check", recipe, code=2)


def test_a_recipe_runs_and_its_result_loads_in_a_fresh_process(example, place):
    example.cli("check", place / "recipe.yaml")
    example.cli("run", place / "recipe.yaml", "--out", place / "run")
    structure = json.loads((place / "run" / "model" / "structure.json").read_text(encoding="utf-8"))
    assert {part["kind"] for part in structure["modules"].values()} == {"acme.half_linear"}
    assert len(structure["modules"]) == 2 * 6 + 1
    kinds, records, logits = json.loads(example.run(LOADED, place / "run" / "model"))
    assert kinds == ["acme_half"]
    assert records == [["source", ""], ["student", ""], ["acme.half", "acme-half 1.0"]]
    assert len(logits[0]) == 2


@pytest.mark.slow
def test_its_own_test_passes(example):
    example.run_fresh(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", EXAMPLE, EXAMPLE / "test_acme_half.py"
    )
