"""A family from another package: one module and one entry point, and techniques work on it."""

import json

import pytest

CHECKED = """
import json
from compress.registry import get
from compress.testing import check_technique
found = {name: check_technique(get(name)(), families=["acme-former"]) for name in ("prune.heads", "distill.logits")}
print(json.dumps(found))
"""
SAVED = """
import sys
from compress import Artifact, Student
from compress.testing import tiny_taskmodel
teacher = Artifact.from_model(tiny_taskmodel("acme-former"))
Student(layers=(0, 2)).build(teacher).save(sys.argv[1])
"""
LOADED = """
import sys, json
import compress
model = compress.load(sys.argv[1])
config = json.load(open(sys.argv[1] + "/config.json"))
print(json.dumps([type(model.model).__module__, len(model.model.trunk.stack), config["model_type"], config["depth"]]))
"""
SHARED = {"repeats_itself", "leaves_its_source_alone", "is_recorded", "has_the_sizes_it_claims", "answers_soundly"}


@pytest.fixture
def process(outside):
    return outside("acme_former", "compress.families", {"acme-former": "FAMILY"})


@pytest.mark.slow
def test_techniques_keep_their_rules_on_it(process):
    ran = json.loads(process.run(CHECKED).splitlines()[-1])
    for name, more in (("prune.heads", set()), ("distill.logits", {"trains_in_bf16"})):
        assert {check for check in ran[name] if ":" in check} == {f"acme-former: {check}" for check in SHARED | more}
        assert ran[name][-2:] == ["claims_of_files_hold", "reload_in_a_fresh_process"]


def test_a_student_of_it_loads_in_a_fresh_process(process, tmp_path):
    process.run(SAVED, tmp_path / "student")
    loaded = json.loads(process.run(LOADED, tmp_path / "student").splitlines()[-1])
    assert loaded == ["acme_former", 2, "acme-former", 2]
