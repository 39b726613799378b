"""Fields under their old names: read with a warning; records and keys of caches stay those of before."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from compress.distill.distilbert import DistilBertDistillation
from compress.engine.run_folder import RECIPE_FILE, refuse_other_run
from compress.prune.structured import StructuredPruning
from compress.recipe import parse_recipe, recipe_to_yaml
from eval.errors import UserError
from teachers.finetuning.finetune import training_identity
from teachers.finetuning.sweep import checked
from teachers.pretraining.earlier_heads import HEADS, earlier_heads
from teachers.pretraining.objectives import Objectives
from teachers.pretraining.settings import Stage
from teachers.renamed import OLD_NAMES, recorded, recorded_json
from teachers.training.config import Training

TRAINING = {
    "epochs": 2.0,
    "max_steps": None,
    "learning_rate": 5e-5,
    "batch_size": 32,
    "accumulation": 2,
    "schedule": "linear",
    "warmup": 0.06,
    "weight_decay": 0.01,
    "betas": [0.9, 0.999],
    "eps": 1e-8,
    "max_grad_norm": 1.0,
    "group_by_length": True,
    "precision": "auto",
    "freeze": [],
    "keep": "best",
    "patience": None,
    "checkpoint_seconds": 120.0,
}
"""What a training was recorded as before its fields were renamed, in this order."""


def test_an_old_keyword_is_read_as_the_new_one_with_a_warning():
    with pytest.warns(DeprecationWarning, match="'warmup' is called 'warmup_steps' now") as caught:
        training = Training(warmup=0.2)
    assert training == Training(warmup_steps=0.2)
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="'accumulation' is called 'gradient_accumulation_steps' now"):
        assert DistilBertDistillation(accumulation=4).training.gradient_accumulation_steps == 4
    with pytest.warns(DeprecationWarning, match="'warmup' is called"):
        assert checked({"warmup": [0.1, 0.2]}) == {"warmup_steps": (0.1, 0.2)}


def test_a_validation_may_collect_old_names_instead():
    found: dict[str, str] = {}
    training = Training.model_validate({"warmup": 0.2, "epochs": 2}, context={OLD_NAMES: found})
    assert training == Training(epochs=2, warmup_steps=0.2)
    assert found == {"warmup": "warmup_steps"}


def test_a_field_under_both_names_is_refused():
    with pytest.raises(ValidationError, match="warmup is the old name of warmup_steps, and both are given"):
        Training(warmup=0.1, warmup_steps=0.2)


def test_records_and_keys_are_those_of_before():
    training = Training(epochs=2, gradient_accumulation_steps=2, warmup_steps=0.06)
    assert list(recorded(training).items()) == list(TRAINING.items())
    assert json.loads(recorded_json(training)) == TRAINING
    assert recorded_json(training).startswith('{"epochs":2.0,"max_steps":null,"learning_rate":0.00005,"batch_size":32,')
    assert training_identity(training, 3)["training"] == {"epochs": 2.0, "accumulation": 2, "warmup": 0.06}
    technique = DistilBertDistillation(warmup_steps=0.06, gradient_accumulation_steps=2)
    assert list(recorded(technique)) == [
        "training",
        "temperature",
        "alpha_soft",
        "alpha_task",
        "alpha_cos",
        "mlm_smoothing",
        "only_predicted",
    ]
    assert recorded(technique)["training"]["warmup"] == 0.06
    assert recorded(StructuredPruning(gradient_accumulation_steps=3))["training"]["accumulation"] == 3


def test_a_stage_of_pretraining_has_the_key_of_before():
    spans = {"mlm": {"units": "span"}, "span_boundary": {}}
    both = {"mlm": {}, "word_structural": {"size": 4}}
    tasks = {"a": {"objectives": spans}, "b": {"objectives": "rtd"}, "c": {"objectives": both}}
    stage = Stage.model_validate({"tasks": tasks, "training": {"warmup_steps": 0.05}})
    assert recorded(stage, exclude_defaults=True) == {
        "tasks": {
            "a": {"objectives": {"masked_words": {"units": "span"}, "span_boundary": {}}},
            "b": {"objectives": {"replaced_tokens": {}}},
            "c": {"objectives": {"masked_words": {}, "word_order": {"size": 4}}},
        },
        "training": {"warmup": 0.05, "group_by_length": False, "keep": "last"},
    }
    found: dict[str, str] = {}
    assert Stage.model_validate(recorded(stage, exclude_unset=True), context={OLD_NAMES: found}) == stage
    assert found == {"warmup": "warmup_steps"} | dict(Objectives.renamed)
    with pytest.warns(DeprecationWarning, match="'replaced_tokens' is called 'rtd' now"):
        assert Objectives.model_validate("replaced_tokens") == Objectives(rtd={})


def test_heads_of_before_go_on(tmp_path):
    save_file({"replaced_tokens.judge.0.bias": torch.ones(2)}, tmp_path / HEADS)
    head = torch.nn.ModuleDict({"judge": torch.nn.Sequential(torch.nn.Linear(2, 2))})
    earlier_heads(str(tmp_path)).hand_over(head, "rtd")
    assert head["judge"][0].bias.tolist() == [1.0, 1.0]


def test_what_a_user_writes_down_has_the_new_names():
    training = Training(gradient_accumulation_steps=2, warmup_steps=3)
    assert training.model_dump(exclude_unset=True) == {"gradient_accumulation_steps": 2, "warmup_steps": 3.0}
    assert Training.model_validate_json(training.model_dump_json()) == training


OLD = """\
task: {kind: classification, data: d, label_map: {warmup: a}}
teacher:
  model: t
  finetune: {epochs: 1, warmup: 0.2, sweep: {accumulation: [1, 2]}}
training: {warmup: 0.05}
steps:
  - distill.logits: {accumulation: 2, training: {warmup: 0.0}}
  - share.embeddings: {size: 8, objective: distill.logits}
"""


def test_a_recipe_with_old_names_runs_and_one_line_says_what_to_write(caplog):
    new = OLD.replace("warmup: 0", "warmup_steps: 0").replace("accumulation:", "gradient_accumulation_steps:")
    with caplog.at_level(logging.WARNING):
        old = parse_recipe(OLD, "r.yaml", ["steps.1.warmup=0.3"])
    assert old == parse_recipe(new, "r.yaml", ["steps.1.warmup_steps=0.3"])
    assert old.task.label_map == {"warmup": "a"}
    assert old.steps[0].training.warmup_steps == 0.0
    assert old.teacher.finetune.sweep == {"gradient_accumulation_steps": (1, 2)}
    (said,) = caplog.messages
    assert said.startswith("r.yaml: old names are still read; write warmup_steps for warmup (1, 4, 5, 7, --set steps.1")
    assert "gradient_accumulation_steps for accumulation (4, 7)" in said
    assert "warmup:" not in recipe_to_yaml(old).replace("label_map: {warmup:", "")
    assert parse_recipe(recipe_to_yaml(old)) == old


def test_what_is_wrong_with_a_field_under_its_old_name_has_its_line():
    with pytest.raises(UserError) as caught:
        parse_recipe("teacher: {model: t}\ntraining:\n  epochs: 1\n  warmup: -1\n  accumulation: true\n", "r.yaml")
    assert caught.value.problems == (
        "r.yaml:4: training: warmup_steps: got -1, must be a number of at least 0",
        "r.yaml:5: training: accumulation: got true or false, must be a number",
    )


def test_a_run_under_old_names_may_go_on(tmp_path):
    (tmp_path / RECIPE_FILE).write_text(OLD, encoding="utf-8")
    refuse_other_run(parse_recipe(recipe_to_yaml(parse_recipe(OLD))), tmp_path, resume=True)
    with pytest.raises(UserError, match="holds a run of another recipe"):
        refuse_other_run(parse_recipe(OLD.replace("warmup: 0.05", "warmup: 0.06")), tmp_path, resume=True)
