"""Every runtime against the answers that an export carries, for every family; and runtimes that answer otherwise."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from compress.cli import main
from compress.export import export
from compress.export.check import verification as module
from compress.export.check.golden_vectors import FILE, INT8_MARGIN, LEAST_LIMIT, write_golden_vectors
from compress.export.check.verification import against_model, verify
from compress.export.runtime.manifest import with_digest
from eval.errors import UserError
from tests.tiny import FAMILIES, in_turn, tiny_task, tiny_taskmodel


def exported(tmp_path, family="bert", kind="classification", int8=False, target="onnx"):
    task = tiny_task(kind)
    model = tiny_taskmodel(family, task.spec)
    export(model, tmp_path / "x", target, int8=int8, examples=task.validation, agreement=0.0)
    return tmp_path / "x", model, task


def ran(results):
    return {each.runtime: each for each in results if each.ran}


@pytest.mark.parametrize(("family", "int8"), in_turn(FAMILIES, [False, True], 2))
def test_runtimes_agree_on_every_family(family, int8, tmp_path):
    found = ran(verify(exported(tmp_path, family, int8=int8)[0]))
    assert {"ONNX Runtime", "onnx's reference"} <= set(found)
    for each in found.values():
        assert each.passed, each
        assert each.rows >= 20
        assert each.largest <= each.limit


@pytest.mark.parametrize("kind", ["tagging", "qa", "regression", "embedding", "masked-lm"])
def test_runtimes_agree_on_every_kind_of_task(kind, tmp_path):
    found = ran(verify(exported(tmp_path, kind=kind)[0]))
    assert all(each.passed for each in found.values()), found
    assert found["onnx's reference"].torch == 1.0


@pytest.mark.parametrize("kind", ["embedding", "regression"])
def test_8_bits_may_differ_as_far_as_rounding_moves_them(kind, tmp_path):
    """Answers may be small beside their noise, and one step that is rounded the other way moves all of them."""
    _, model, task = exported(tmp_path, kind=kind)
    moved = SimpleNamespace(encoder=model.encoder, forward=lambda inputs: 1.5 * model.forward(inputs))
    write_golden_vectors(tmp_path, moved, model, task.validation, exact=False)
    known = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    largest = max(np.abs(row["torch"]).max() for row in known["rows"])
    assert known["limit"] == pytest.approx(0.5 * largest, rel=1e-2)
    near = SimpleNamespace(encoder=model.encoder, forward=lambda inputs: 1.001 * model.forward(inputs))
    write_golden_vectors(tmp_path, near, model, task.validation, exact=False)
    known = json.loads((tmp_path / FILE).read_text(encoding="utf-8"))
    assert known["limit"] == pytest.approx(max(INT8_MARGIN * largest, LEAST_LIMIT), rel=1e-2)


@pytest.mark.parametrize("how", [{}, {"family": "gpt2", "kind": "causal-lm", "target": "generator"}], ids=str)
def test_the_file_is_enough_for_any_runtime(how, tmp_path):
    folder, *_ = exported(tmp_path, **how)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    start = readme.index("    import json, numpy, onnxruntime")
    program = "\n".join(line[4:] for line in readme[start : readme.index("\nBefore")].splitlines())
    program = program.replace('"model.onnx"', repr(str(folder / "model.onnx")))
    names = {}
    exec(program.replace('"conformance.json"', repr(str(folder / FILE))), names)
    assert 0 <= names["worst"] < 1e-5


def test_a_runtime_that_answers_otherwise_fails(tmp_path, monkeypatch):
    folder, *_ = exported(tmp_path)

    def shifted(export):
        return lambda inputs: -5 * export.forward(inputs)

    def mixed(export):
        return lambda inputs: export.forward(inputs) + 0.1 * (len(inputs["input_ids"]) > 1)

    def broken(export):
        raise RuntimeError("no such operator\nand a long trace")

    engines = {"shifted": ("numpy", shifted), "mixed": ("numpy", mixed), "broken": ("numpy", broken)}
    monkeypatch.setattr(module, "ENGINES", {**engines, "absent": ("no_such_package", broken)})
    found = {each.runtime: each for each in verify(folder)}
    assert any(p.startswith("logits differ by up to") for p in found["shifted"].problems)
    assert any("of the predictions are those of the export" in p for p in found["shifted"].problems)
    assert found["mixed"].problems[0].startswith("a row in a batch differs from itself alone by up to 0.1")
    assert found["broken"].problems == ("cannot run it: no such operator",)
    assert found["absent"].problems == ("not installed; pip install no_such_package",)
    assert not any(each.passed for each in found.values())


def test_another_tokenizer_is_noticed(tmp_path):
    folder, *_ = exported(tmp_path)
    known = json.loads((folder / FILE).read_text())
    known["rows"][0]["inputs"]["input_ids"][1] += 1
    (folder / FILE).write_text(json.dumps(known))
    manifest = json.loads((folder / "export.json").read_text())
    del manifest["files"][FILE]
    (folder / "export.json").write_text(json.dumps(with_digest(manifest)))
    assert "the tokenizer gives other tokens" in ran(verify(folder))["ONNX Runtime"].problems[0]


def test_exports_of_another_version_are_refused(tmp_path):
    folder, *_ = exported(tmp_path)
    manifest = json.loads((folder / "export.json").read_text())
    del manifest["files"][FILE]
    (folder / "export.json").write_text(json.dumps(with_digest(manifest)))
    (folder / FILE).write_text(json.dumps({"format": 9}))
    with pytest.raises(UserError, match="format 9; this version knows format 1"):
        verify(folder)
    (folder / FILE).unlink()
    with pytest.raises(UserError, match="was written by an earlier version, so export it again"):
        verify(folder)


def test_the_torch_model_is_compared_once_more(tmp_path):
    folder, model, task = exported(tmp_path)
    found = against_model(folder, model, task.validation)
    assert (found.passed, found.rows, found.agreement) == (True, len(task.validation), 1.0)
    with pytest.raises(UserError, match="was made from other weights"):
        against_model(folder, tiny_taskmodel("bert", task.spec, seed=9))


def test_the_library_of_the_export_may_be_missing(tmp_path, monkeypatch):
    folder, *_ = exported(tmp_path)
    monkeypatch.setitem(module.ENGINES, "ONNX Runtime", ("no_such_package", module._own))
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = {each.runtime: each for each in verify(folder)}
    assert found["ONNX Runtime"].problems == ("not installed; pip install no_such_package",)
    assert found["onnx's reference"].passed


def forget(folder, **changes):
    """Change the conformance file of an export, and take its digest out of the manifest."""
    known = json.loads((folder / FILE).read_text()) | changes
    (folder / FILE).write_text(json.dumps(known))
    manifest = json.loads((folder / "export.json").read_text())
    del manifest["files"][FILE]
    (folder / "export.json").write_text(json.dumps(with_digest(manifest)))


def absent(export):
    raise AssertionError("it is not installed")


def broken(export):
    raise RuntimeError("no such operator")


NONE = {"one": ("no_such_package", absent), "two": ("another_package", absent)}


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_what_did_not_run_has_not_been_verified(tmp_path, monkeypatch, capsys, json_flag):
    folder, *_ = exported(tmp_path)
    monkeypatch.setattr(module, "ENGINES", NONE)
    assert main(["verify", str(folder), *json_flag]) == 1
    assert capsys.readouterr().err == (
        f"{folder}: not verified, for no runtime could run it\n"
        "one: not installed; pip install no_such_package\n"
        "two: not installed; pip install another_package\n"
    )


def test_a_runtime_that_is_not_installed_is_no_failure_beside_one_that_agrees(tmp_path, monkeypatch, capsys):
    folder, *_ = exported(tmp_path)
    monkeypatch.setattr(module, "ENGINES", NONE | {"own": ("onnxruntime", module._own)})
    assert main(["verify", str(folder)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("others", [{}, {"own": ("onnxruntime", module._own)}])
def test_an_installed_runtime_that_cannot_run_it_is_a_failure(tmp_path, monkeypatch, capsys, others):
    folder, *_ = exported(tmp_path)
    monkeypatch.setattr(module, "ENGINES", others | {"bad": ("numpy", broken)})
    assert main(["verify", str(folder)]) == 1
    assert "bad: cannot run it: no such operator" in capsys.readouterr().err


@pytest.mark.parametrize(("changes", "says"), [({"rows": []}, "holds no inputs"), (None, "gives other tokens")])
def test_an_export_of_which_nothing_was_compared_fails(tmp_path, capsys, changes, says):
    folder, *_ = exported(tmp_path)
    if changes is None:
        rows = json.loads((folder / FILE).read_text())["rows"]
        for row in rows:
            row["inputs"]["input_ids"][1] += 1
        changes = {"rows": rows}
    forget(folder, **changes)
    assert main(["verify", str(folder)]) == 1
    assert says in capsys.readouterr().err
