"""``compress list``, ``show`` and ``doctor``."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from compress.commands import doctor as doctor_command
from compress.registry import TECHNIQUES, get
from tests.unit.cli.conftest import ROOT, cells


class TestTechniques:
    def test_list(self, call):
        code, out, err = call("list")
        assert (code, err) == (0, "")
        assert cells(out, "technique") == ["technique", "what it does", "needs", "reduces", "source"]
        row = cells(out, "distill.logits")
        assert row[2:4] == ["teacher, train", "-"]
        assert row[4].startswith("Hinton, Vinyals, Dean 2015")  # the rest stands on the next line
        assert [line.split()[0] for line in out.splitlines()[1:] if not line.startswith(" ")] == list(TECHNIQUES)

    def test_list_as_json(self, call):
        code, out, _ = call("list", "--json")
        found = {each["name"]: each for each in json.loads(out)}
        assert code == 0
        assert set(found) == set(TECHNIQUES)
        assert set(found["prune.layers"]["reduces"]) == {"bytes", "export_bytes", "macs", "nonzero", "parameters"}
        assert found["quantize.dynamic"]["freezes"]

    def test_pairs_as_json(self, call):
        code, out, _ = call("list", "--pairs", "--json")
        found = json.loads(out)
        assert (code, set(found)) == (0, set(TECHNIQUES))
        assert "put it before" in found["prune.layers"]["distill.mobilebert"]
        assert "distill.logits" not in found["prune.layers"]

    @pytest.mark.parametrize("name", TECHNIQUES)
    def test_show_any(self, call, name):
        code, out, err = call("show", name)
        assert (code, err) == (0, "")
        assert out.startswith(f"{name} (version {get(name).version})\n")
        assert re.search(r"^source: .*\b(19|20)\d\d", out, flags=re.MULTILINE)

    def test_show_says_formula_fields_and_source(self, call):
        _, out, _ = call("show", "distill.logits")
        assert "loss = alpha · soft + (1" in out
        assert "`" not in out
        assert cells(out, "temperature")[1].startswith("a number above 0 and at most 1000 or a block")
        assert cells(out, "temperature")[2] == "2"
        assert cells(out, "temperature")[3].startswith("T, dividing both logits; a number, or a schedule")
        assert cells(out, "alpha")[1].startswith("a number between 0 and 1 or a block")
        assert cells(out, "alpha")[2] == "0.5"
        assert "one of 'kl', 'soft_cross_entropy', 'mse'" in out
        assert "needs: teacher, train\n" in out
        assert "trains: yes; can be trained afterwards: yes\n" in out
        assert out.endswith("source: Hinton, Vinyals, Dean 2015, arXiv 1503.02531\n")

    def test_every_field_of_every_technique_has_a_meaning(self, call):
        for name in TECHNIQUES:
            fields = json.loads(call("show", name, "--json")[1])["fields"]
            assert [field["name"] for field in fields if not field["description"]] == []

    def test_an_unknown_name(self, call):
        assert call("show", "prune.layer") == (2, "", "unknown technique 'prune.layer'; did you mean 'prune.layers'?\n")


class TestDoctor:
    def test_what_it_finds(self, call, tmp_path):
        code, out, err = call("doctor")
        assert (code, err) == (0, "")
        assert cells(out, "processor")[1].endswith("cores usable)")
        assert "int8" in cells(out, "advice")[1]
        assert "threads" in cells(out, "OpenMP")[1] or "as you set it" in cells(out, "OpenMP")[1]
        assert cells(out, "GPU")[1]
        assert str(tmp_path / "home") in out
        import torch

        # Without what follows the +, which wheels for CUDA leave out of their metadata.
        assert cells(out, "torch")[1].partition("+")[0] == torch.__version__.partition("+")[0]

    def test_json(self, call):
        found = json.loads(call("doctor", "--json")[1])
        assert set(found) == {"machine", "advice", "openmp", "extras", "home", "version"}
        assert found["extras"]["dev"]["installed"] is True
        assert found["extras"]["structured"]["install"] == "pip install 'nlp-compress[structured]'"

    def test_extras_are_those_of_the_distribution(self):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert set(doctor_command.extras()) == set(project["optional-dependencies"])

    @pytest.mark.parametrize(
        ("features", "words"),
        [
            (["avx2", "avx512_vnni"], "expect it to be much faster"),
            (["avx2", "avx512f"], "somewhat faster in ONNX Runtime, not in OpenVINO: the processor lacks VNNI"),
            (["asimddp"], "this ARM processor multiplies 8-bit numbers fast"),
            ([], "int8 saves size only"),
        ],
    )
    def test_advice(self, features, words):
        assert words in doctor_command.advice(features, None)
        assert doctor_command.advice(features, "some GPU").endswith("train on the GPU")
