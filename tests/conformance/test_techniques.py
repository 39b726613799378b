"""One battery over every technique and every family; a new technique is picked up by its line in the list."""

import inspect
import json
from importlib import import_module

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from compress.artifact.artifact import load
from compress.engine.steps import run
from compress.recipe import Recipe, parse_recipe, recipe_to_yaml
from compress.registry import TECHNIQUES, get, names
from eval.errors import UserError
from eval.inference import predict
from teachers.training.precision import LAUNCHED
from tests.conformance.battery import (
    LEAST,
    REFUSED,
    SHARES_LAYERS,
    check_outputs,
    inputs_for,
    instance,
    task_of,
)
from tests.tiny import FAMILIES, at_first, tiny_taskmodel

made = {}
"""Results of the tests of single steps, for the test that saves and reloads them."""

SHARE = 5
"""By default a technique runs on BERT and, each in its turn, on one family of so many; slow tests run the others."""


def is_late(name, family):
    """Whether a technique on a family is left to the slow tests; those refused never are."""
    turn = names().index(name) + FAMILIES.index(family)
    return family != "bert" and family not in REFUSED.get(name, ()) and turn % SHARE > 0


STEPS = [
    pytest.param(name, family, marks=pytest.mark.slow if is_late(name, family) else ())
    for name in names()
    for family in FAMILIES
]
HEADINGS = ["Attributes:", "Needs:", "Reduces:", "Limits:", "Source:"]


@pytest.mark.parametrize("name", names())
def test_the_class_is_where_its_name_says_and_says_what_it_does(name):
    module, _, cls = TECHNIQUES[name].partition(":")
    technique = getattr(import_module(module), cls)
    assert technique.name == name
    assert module == f"compress.{name}"
    text = inspect.getdoc(technique)
    places = [text.find(heading) for heading in HEADINGS]
    assert -1 not in places, (
        f"{name}: its docstring lacks {[h for h, p in zip(HEADINGS, places, strict=True) if p < 0]}"
    )
    assert places == sorted(places), f"{name}: headings out of order"
    assert technique.source
    assert technique.source.split(";")[0] in " ".join(text.split())


@pytest.mark.parametrize("name", names())
def test_a_config_is_a_value(name):
    technique = instance(name)
    assert hash(technique) == hash(instance(name))
    assert technique == type(technique).model_validate(technique.model_dump())
    assert technique == type(technique).model_validate_json(technique.model_dump_json())
    with pytest.raises(ValidationError, match="frozen"):
        technique.training = None
    with pytest.raises(ValidationError, match="nonsense"):
        type(technique)(**LEAST.get(name, {}), nonsense=1)
    recipe = Recipe(steps=(technique,), teacher={"model": "t"}, task={"kind": "classification", "data": "d"})
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe


@pytest.mark.parametrize("name", names())
def test_missing_inputs_are_refused_before_any_work(name, monkeypatch):
    technique, task = instance(name), task_of(name)
    if not technique.needed():
        assert run(Recipe(steps=(technique,)), tiny_taskmodel("bert", task.spec)).lineage[-1].technique == name
        return
    monkeypatch.setattr("compress.engine.steps._apply", lambda *_: pytest.fail("something was computed"))
    with pytest.raises(UserError) as caught:
        run(Recipe(steps=(technique,)), tiny_taskmodel("bert", task.spec))
    missing = [problem for problem in caught.value.problems if problem.endswith("and there is none")]
    assert len(missing) == len(technique.needed())


@pytest.mark.parametrize(("name", "family"), STEPS)
def test_a_step_on_a_family(name, family, signals):
    task = task_of(name)
    source = tiny_taskmodel(family, task.spec)
    inputs = inputs_for(task, tiny_taskmodel(family, task.spec, seed=1), signals)
    before = {key: tensor.clone() for key, tensor in source.model.state_dict().items()}
    flags = [(p.requires_grad, p.grad) for p in source.model.parameters()]
    state = torch.get_rng_state()
    technique = instance(name)
    if family in REFUSED.get(name, ()):
        with pytest.raises(UserError, match=f"step 1, {name}: .*{family}"):
            run(Recipe(steps=(technique,)), source, inputs)
        return
    result = made[name, family] = run(Recipe(seed=7, steps=(technique,)), source, inputs)

    assert all(torch.equal(tensor, before[key]) for key, tensor in source.model.state_dict().items())
    assert [(p.requires_grad, p.grad) for p in source.model.parameters()] == flags
    assert torch.equal(torch.get_rng_state(), state)
    assert run(Recipe(seed=7, steps=(technique,)), source, inputs, rehearse=False).digest == result.digest

    assert len(result.lineage) == 2
    record = result.lineage[-1]
    assert (record.technique, record.version) == (name, technique.version)
    assert record.weights_after == result.digest
    assert json.loads(record.model_dump_json()) == record.model_dump(mode="json")
    check_sizes(technique, record, family)
    check_outputs(result, task)


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert"))
@pytest.mark.parametrize("name", [name for name in names() if get(name).trains])
def test_a_step_trains_in_bf16_and_leaves_float32(name, family, signals, monkeypatch):
    if family in REFUSED.get(name, ()):
        return
    monkeypatch.setenv(LAUNCHED, "bf16")
    task = task_of(name)
    inputs = inputs_for(task, tiny_taskmodel(family, task.spec, seed=1), signals)
    result = run(Recipe(seed=7, steps=(instance(name),)), tiny_taskmodel(family, task.spec), inputs, rehearse=False)
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    check_outputs(result, task)


def check_sizes(technique, record, family):
    for measure in ("parameters", "nonzero", "bytes", "macs"):
        before, after = record.size_before[measure], record.size_after[measure]
        shared = family in SHARES_LAYERS and measure != "macs"
        if measure in technique.reduces and not shared:
            assert after < before, f"{technique.name} claims to reduce {measure} of {family}"
        elif measure not in technique.adds:
            assert after <= before * 1.001, f"{technique.name} raises {measure} of {family}"


@pytest.fixture(scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["default", "late"])
def reloaded(request, forker, signals, tmp_path_factory):
    """Save the result of every technique on its families, and load all of them in another process."""
    root = tmp_path_factory.mktemp("saved")
    texts = [example["text"] for example in task_of().validation[:4]]
    own = {}
    for name in names():
        task = task_of(name)
        for family in FAMILIES:
            if family in REFUSED.get(name, ()) or is_late(name, family) != request.param:
                continue
            source = tiny_taskmodel(family, task.spec)
            result = made.get((name, family))
            if result is None:
                result = run(Recipe(steps=(instance(name),)), source, inputs_for(task, source, signals), rehearse=False)
            folder = result.save(root / f"{name}-{family}")
            assert load(folder).lineage == result.lineage  # so what was recorded is what was written
            own[f"{name}-{family}"] = np.stack(predict(result, [{"text": text} for text in texts]).logits)
    code = (
        "import sys, json, numpy as np\nfrom pathlib import Path\nfrom compress import load\n"
        "from eval.inference import predict\n"
        "texts = [{'text': t} for t in json.loads(sys.argv[2])]\n"
        "out = {f.name: np.stack(predict(load(f), texts).logits) for f in sorted(Path(sys.argv[1]).iterdir())}\n"
        "np.savez(sys.argv[1] + '.npz', **out)"
    )
    forker.program(code, str(root), json.dumps(texts), cwd=root.parent)
    with np.load(f"{root}.npz") as file:
        return own, dict(file)


@pytest.mark.parametrize("name", names())
def test_saved_results_reload_in_a_fresh_process(name, reloaded):
    own, loaded = reloaded
    assert own.keys() == loaded.keys()
    keys = [key for key in own if key.startswith(f"{name}-")]
    assert keys or "bert" in REFUSED.get(name, ()) or "prune.layers-bert" not in own
    for key in keys:
        assert np.allclose(own[key], loaded[key], atol=1e-6), key
