"""The JSON Schema for editors: every recipe of ours keeps to it, and what is wrong does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from compress.recipe.json_schema import recipe_json_schema
from compress.registry import describe, get, names
from tests.json_schema import faults

ROOT = Path(__file__).parents[3]
SCHEMA: dict[str, Any] = recipe_json_schema()


def faults_of(text: str) -> list[str]:
    """Return what an editor underlines; keys of YAML that are numbers are text, as in JSON."""
    return faults(json.loads(json.dumps(yaml.safe_load(text))), SCHEMA, SCHEMA)


@pytest.mark.parametrize("path", sorted((ROOT / "compress" / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_of_ours_keeps_to_it(path):
    assert faults_of(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("sed: 13", ".sed: unknown"),
        ("seed: yes", ".seed: type integer"),
        ("training: {epochs: 0}", ".training: fits no choice"),
        ("steps: [{distill.logits: {temprature: 2}}]", ".steps[0]: fits no choice"),
        ("steps: [{distill.logits: {temperature: 2, epochs: -1}}]", ".steps[0]: fits no choice"),
        ("steps: [{distill.logits: {}, distill.pkd: {}}]", ".steps[0]: fits no choice"),
        ("steps: [distil.logits]", ".steps[0]: fits no choice"),
        (
            "steps: [{share.layers: {objective: {distill.logits: {epochs: 1}}}}]",
            ".steps[0]: fits no choice",
        ),
        ("export: [tflite]", ".export[0]: fits no choice"),
    ],
)
def test_what_is_wrong_does_not(text, fault):
    assert faults_of(text) == [fault]


@pytest.mark.parametrize(
    "text",
    [
        "steps: [quantize.dynamic, {distill.logits: null}, {distill.logits: {epochs: 1, training: {batch_size: 8}}}]",
        "steps: [{share.layers: {objective: {distill.logits: {temperature: 2, weight: 3}, distill.pkd: {}}}}]",
        "steps: [{prune.movement: {objective: distill.logits}}]",
        "steps: [{prune.heads: {heads: {0: [1, 2]}}}]",
        "export: [onnx, {ort: null}, {openvino: {int8: true}}]",
        "teacher: {model: t, finetune: {epochs: 2, warmup: 0.1, loss: ranking}}",
    ],
)
def test_short_forms_and_old_names_do(text):
    assert faults_of(text) == []


def choices() -> dict[str, Any]:
    _, mapping = SCHEMA["properties"]["steps"]["items"]["anyOf"]
    return {name: resolved(choice["anyOf"][0]) for name, choice in mapping["properties"].items()}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")] if "$ref" in schema else schema


def test_it_holds_every_technique_with_every_field_described():
    found = choices()
    assert list(found) == list(names())
    for name in names():
        assert found[name]["description"] == describe(name).summary
        assert found[name]["additionalProperties"] is False
        for field in describe(name).fields:
            assert found[name]["properties"][field.name]["description"] == field.description != "", (name, field.name)
    movement = found["prune.movement"]["properties"]
    assert (movement["keep"]["exclusiveMinimum"], movement["keep"]["maximum"], movement["keep"]["default"]) == (
        0,
        1,
        0.15,
    )
    assert movement["epochs"]["default"] == get("prune.movement")().training.epochs == 10
    assert movement["training"]["default"]["batch_size"] == 16
    assert movement["warmup"]["deprecated"] is True
    assert movement["warmup"]["description"] == "Old name of warmup_steps."


def test_the_command_prints_and_writes_it(call, tmp_path):
    code, said, _ = call("schema")
    assert (code, json.loads(said)) == (0, SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    out = tmp_path / "recipe.schema.json"
    code, said, _ = call("schema", "--out", out)
    assert (code, json.loads(out.read_text(encoding="utf-8"))) == (0, SCHEMA)
    assert f"# yaml-language-server: $schema={out}" in said
    code, _, err = call("schema", "--out", out)
    assert code == 2
    assert "is there already; --force replaces it" in err
    assert call("schema", "--out", out, "--force")[0] == 0
    code, _, err = call("schema", "--out", tmp_path / "none" / "a.json")
    assert code == 2
    assert "its folder does not exist" in err
