"""A target that another package offers: exported to from a recipe and the command line, run, verified, measured."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from compress.export.targets.target_registry import REGISTRY, get_target, target_names, tuned_targets
from compress.recipe import parse_recipe, recipe_to_yaml
from compress.recipe.blocks import ExportBlock
from eval.errors import UserError

MODULE = '''
    """The ONNX graph, squeezed."""

    import zlib

    from pydantic import Field

    from compress.export import Library, Target, TargetBlock


    class ZippedEngine:
        """ONNX Runtime, over what was squeezed."""

        def __init__(self, file, threads, spinning):
            import zlib

            import onnxruntime

            graph = zlib.decompress(file.read_bytes())
            self.session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
            self.outputs = [output.name for output in self.session.get_outputs()]

        def run(self, inputs):
            """Return the outputs by name."""
            return {name: np.asarray(one) for name, one in zip(self.outputs, self.session.run(None, inputs))}


    class ZippedBlock(TargetBlock):
        level: int = Field(default=6, ge=0, le=9)


    class ZippedTarget(Target):
        name = "zipped"
        summary = "For slow networks."
        needs = ("onnxruntime",)
        library = Library("ONNX Runtime", "onnxruntime", ("model.onnx.z",), ZippedEngine)
        activations = ()

        def options(self):
            return ZippedBlock

        def refused(self, model, options):
            return [f"{model.name}: level 0 squeezes nothing"] if options.level == 0 else []

        def write(self, model, beside, scheme, options):
            from compress.export.targets.onnx import write_onnx

            plain = beside / "plain.onnx"
            written = write_onnx(model, plain, scheme)
            (beside / "model.onnx.z").write_bytes(zlib.compress(plain.read_bytes(), options.level))
            plain.unlink()
            return written


    import numpy as np
'''
ENTRIES = """\
[compress.targets]
zipped = other_targets.zipped:ZippedTarget
gone = other_targets.gone:GoneTarget
other = other_targets.zipped:ZippedTarget
onnx = other_targets.zipped:ZippedTarget
"""


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """A package as pip would install it: its folder, and its metadata beside it."""
    site = tmp_path / "site"
    (site / "other_targets").mkdir(parents=True)
    (site / "other_targets" / "__init__.py").write_text("")
    (site / "other_targets" / "zipped.py").write_text(textwrap.dedent(MODULE))
    (site / "other_targets-1.0.dist-info").mkdir()
    said = "Metadata-Version: 2.1\nName: other-targets\nVersion: 1.0\n"
    (site / "other_targets-1.0.dist-info" / "METADATA").write_text(said)
    (site / "other_targets-1.0.dist-info" / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(site)
    REGISTRY.reread()
    yield site
    REGISTRY.reread()
    for name in [name for name in sys.modules if name.partition(".")[0] == "other_targets"]:
        del sys.modules[name]


def test_it_stands_beside_the_others_and_none_of_theirs_is_replaced(caplog):
    assert target_names()[-3:] == ("gone", "other", "zipped")
    assert tuned_targets() == ("onnx", "openvino")
    assert [record.getMessage().partition(":")[0].partition(" (")[0] for record in caplog.records] == [
        f"target {name!r} of other-targets 1.0{rest}"
        for name, rest in (("onnx", " is not used"), ("gone", ""), ("other", ""))
    ]
    assert type(get_target("onnx")).__module__ == "compress.export.targets.onnx"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "gone",
            "target 'gone' of other-targets 1.0 (other_targets.gone:GoneTarget): cannot be loaded "
            "(ModuleNotFoundError: No module named 'other_targets.gone'); update other-targets or uninstall it",
        ),
        (
            "other",
            "target 'other' of other-targets 1.0 (other_targets.zipped:ZippedTarget): its class says name = 'zipped'; "
            "the entry point must have the same name",
        ),
        ("zip", "--to: unknown target 'zip'; did you mean 'zipped'?"),
    ],
)
def test_a_broken_one_is_told_when_it_is_named(name, said):
    with pytest.raises(UserError) as caught:
        get_target(name)
    assert str(caught.value) == said


def test_a_recipe_takes_its_options():
    text = "teacher: {model: x}\nexport:\n- zipped: {level: 9}\n- zipped\n- onnx: {int8: true}\n"
    recipe = parse_recipe(text)
    assert [(block.target, block.settings.own()) for block in recipe.export] == [
        ("zipped", {"level": 9}),
        ("zipped", {}),
        ("onnx", {}),
    ]
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe
    for short in ("zipped", {"zipped": None}, {"zipped": {}}):
        assert ExportBlock.model_validate(short) == recipe.export[1]
    wrong = "[zipped: {level: 12}, zipped: {lvl: 1}, zipt: {}, gone: {}]"
    with pytest.raises(UserError) as caught:
        parse_recipe(f"teacher: {{model: x}}\nexport: {wrong}\n", "r.yaml")
    assert [problem.partition("got")[0].partition("unknown")[0] for problem in caught.value.problems] == [
        "r.yaml:2: export 1: zipped.level: ",
        "r.yaml:2: export 2: zipped: ",
        "r.yaml:2: export 3: ",
        "r.yaml:2: export 4: target 'gone' of other-targets 1.0 (other_targets.gone:GoneTarget): cannot be loaded "
        "(ModuleNotFoundError: No module named 'other_targets.gone'); update other-targets or uninstall it",
    ]


def test_a_recipe_exports_to_it_and_measures_it(call, place, tmp_path):
    changes = ["--set", "steps=[]", "--set", "export=[{zipped: {level: 9}}]"]
    code, out, err = call("run", place / "recipe.yaml", "--out", tmp_path / "out", "--json", *changes)
    assert code == 0, err
    found = json.loads(out)
    assert found["exports"] == {"zipped": str(tmp_path / "out" / "zipped")}
    measured, model = (
        next(result for result in found["results"] if result["name"] == name) for name in ("zipped", "small")
    )
    assert measured["file_bytes"] == (tmp_path / "out" / "zipped" / "model.onnx.z").stat().st_size
    assert measured["scores"] == model["scores"]
    code, _, err = call("check", place / "recipe.yaml", "--set", "export=[{zipped: {level: 0}}]")
    assert (code, "export 1, zipped: small: level 0 squeezes nothing" in err) == (2, True)


def test_a_command_exports_to_it_runs_it_and_verifies_it(call, place, tmp_path, installed):
    out = tmp_path / "out"
    export = ("export", place / "teacher", "--to", "zipped", "--out", out)
    assert call(*export, "--option", "lvl=1")[::2] == (2, "zipped: unknown option 'lvl'; did you mean 'level'?\n")
    code, _, err = call(*export, "--int8", "--option", "level=x", "--option", "y")
    assert (code, err.count("\n")) == (2, 3)
    assert call(*export, "--int8")[2] == "teacher: zipped has no 8 bits; export it as float32\n"
    code, said, told = call(*export, "--option", "level=9")
    assert (code, said.startswith(f"wrote {out}: fp32, ")) == (0, True)
    assert told.endswith(f"next: compress predict {out} 'a text to predict'\n")
    answer = json.loads(call("predict", out, "the film is great")[1])
    code, table, _ = call("verify", out)
    assert (code, "ONNX Runtime" in table, "onnx's reference" in table) == (0, True, False)
    assert "pip install numpy tokenizers onnxruntime" in (out / "README.md").read_text(encoding="utf-8")
    # Its program needs neither the package nor the toolkit.
    block = "import sys, runpy\nsys.modules.update(dict.fromkeys(('torch', 'compress', 'eval', 'other_targets')))\n"
    run = f"{block}sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", run, str(out / "predict.py"), "the film is great"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)["label"] == answer["label"]
    # Without the package the folder is refused, and what is damaged in it is told first.
    (installed / "other_targets-1.0.dist-info" / "entry_points.txt").write_text("")
    REGISTRY.reread()
    assert "an export for 'zipped', which this cannot run" in call("verify", out)[2]
    (out / "model.onnx.z").write_bytes(b"")
    assert "damaged export for 'zipped': model.onnx.z has 0 bytes" in call("verify", out)[2]
