"""One battery over every technique and every family; a new technique is picked up by its line in the list."""

import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from compress.engine import run
from compress.recipe import Recipe, parse_recipe, recipe_to_yaml
from compress.technique import Inputs, TrainedTechnique
from compress.techniques import TECHNIQUES, get, names
from eval.errors import UserError
from eval.inference import predict
from teachers.config import Training
from teachers.signals import ModelTeacher
from tests.tiny import FAMILIES, tiny_task, tiny_taskmodel

ROOT = Path(__file__).parents[2]
HEADINGS = ["Attributes:", "Needs:", "Reduces:", "Limits:", "Source:"]
SHARES_LAYERS = {"albert"}
"""Families whose layers are one module: fewer of them are fewer multiply-accumulates, not fewer parameters."""


LEAST = {
    "quantize.qbert": {"portions": 2, "portion_examples": 4, "power_steps": 3},
    "distill.combined": {"objective": {"distill.logits": {"temperature": 4.0}, "distill.pkd": {"weight": 0.1}}},
    "distill.minilm": {"relation_heads": 4},
    "distill.bilstm": {"hidden_size": 8, "dense_size": 8},
    "distill.static": {"dense_size": 8},
    "share.embeddings": {"size": 8},
}
"""Fields without which a technique does not exist, or does not fit a tiny model."""

REFUSED = {
    "replace.theseus": ("albert", "modernbert"),
    "quantize.qbert": ("xlnet",),
    "prune.heads": ("xlnet",),
    "distill.minilm": ("xlnet",),
    "distill.tinybert": ("xlnet", "deberta-v2", "modernbert"),
    "distill.mobilebert": ("albert", "xlnet", "deberta-v2", "modernbert"),
    "distill.dual": FAMILIES,
    "share.layers": ("albert",),
    "quantize.q8bert": ("xlnet",),
    "distill.margin_mse": FAMILIES,
}
"""Families that a technique refuses by name, for what their attention lacks or adds, or for layers they share.

All of them if it is for another task than the classification of single texts; its parity test then runs it, and
reloads its result.
"""

REFUSED_AFTER = {
    ("prune.layers", "distill.mobilebert"): "layers must be as many",
    ("replace.theseus", "distill.mobilebert"): "layers must be as many",
    ("prune.heads", "distill.mobilebert"): "heads must be as many",
    ("prune.heads", "share.layers"): ".*differs in shape from layer to layer",
    ("quantize.qbert", "prune.heads"): "heads can only be cut while attention is made of ordinary linear layers",
    ("share.lowrank", "prune.heads"): "heads can only be cut while attention is made of ordinary linear layers",
}
"""Ordered pairs whose second step refuses the shape that the first one made."""


ROUNDING = {"quantize.q8bert": 0.05}
"""Largest change of a logit by padding and batch mates after a technique that rounds activations.

The last bit of a float, which depends on the shape of a batch, may then decide a whole step.
"""

OTHER_KIND = {"distill.embedding": "embedding"}
"""The kind of task of techniques that are not for classification."""


def instance(name, **fields):
    """Return the technique with the least work."""
    technique, fields = get(name), {**LEAST.get(name, {}), **fields}
    if issubclass(technique, TrainedTechnique):
        blocks = {name for name, value in technique(**fields) if isinstance(value, Training)} - {"training"}
        short = {"max_steps": 2, "batch_size": 8}
        fields = {**dict.fromkeys(blocks, short), **short, **fields}
    return technique(**fields)


def task_of(*chosen):
    """Return a task that all of these techniques are for, as far as there is one."""
    return tiny_task(next((OTHER_KIND[name] for name in chosen if name in OTHER_KIND), "classification"))


@pytest.fixture(scope="module")
def signals(tmp_path_factory):
    return tmp_path_factory.mktemp("signals")


def inputs_for(task, teacher, signals):
    return Inputs(
        train=task.train,
        validation=task.validation,
        calibration=task.train[:8],
        teacher=ModelTeacher(teacher, cache=signals),
    )


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
    monkeypatch.setattr("compress.engine._apply", lambda *_: pytest.fail("something was computed"))
    with pytest.raises(UserError) as caught:
        run(Recipe(steps=(technique,)), tiny_taskmodel("bert", task.spec))
    assert len(caught.value.problems) == len(technique.needed())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", names())
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
    result = run(Recipe(seed=7, steps=(technique,)), source, inputs)

    assert all(torch.equal(tensor, before[key]) for key, tensor in source.model.state_dict().items())
    assert [(p.requires_grad, p.grad) for p in source.model.parameters()] == flags
    assert torch.equal(torch.get_rng_state(), state)
    assert run(Recipe(seed=7, steps=(technique,)), source, inputs).digest == result.digest

    assert len(result.lineage) == 2
    record = result.lineage[-1]
    assert (record.technique, record.version) == (name, technique.version)
    assert record.weights_after == result.digest
    assert json.loads(record.model_dump_json()) == record.model_dump(mode="json")
    check_sizes(technique, record, family)
    check_outputs(result, task)


def check_sizes(technique, record, family):
    for measure in ("parameters", "nonzero", "bytes", "macs"):
        before, after = record.size_before[measure], record.size_after[measure]
        shared = family in SHARES_LAYERS and measure != "macs"
        if measure in technique.reduces and not shared:
            assert after < before, f"{technique.name} claims to reduce {measure} of {family}"
        elif measure not in technique.adds:
            assert after <= before * 1.001, f"{technique.name} raises {measure} of {family}"


def check_outputs(result, task):
    """Finite, as many hidden states as layers and one, and independent of padding and batch mates."""
    from teachers.encoder import layer_count

    examples = task.validation[:6]
    together = predict(result, examples, batch_size=6).logits
    alone = predict(result, examples, batch_size=1).logits
    assert np.isfinite(np.stack(together)).all()
    atol = max(ROUNDING.get(record.technique, 1e-5) for record in result.lineage)
    assert np.allclose(together, alone, atol=atol)
    inputs = result.encoder.collate(result.encoder.encode(examples), multiple_of=8)
    assert np.allclose(result.forward(inputs), np.stack(together).reshape(len(examples), -1), atol=atol)
    tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
    if not layer_count(result.model):
        return
    with torch.no_grad():
        hidden = result.model(**tensors, output_hidden_states=True).hidden_states
    assert len(hidden) == layer_count(result.model) + 1


@pytest.fixture(scope="module")
def reloaded(signals, tmp_path_factory):
    """Save the result of every technique on every family, and load all of them in one fresh process."""
    root = tmp_path_factory.mktemp("saved")
    texts = [example["text"] for example in task_of().validation[:4]]
    own = {}
    for name in names():
        task = task_of(name)
        for family in FAMILIES:
            if family in REFUSED.get(name, ()):
                continue
            source = tiny_taskmodel(family, task.spec)
            result = run(Recipe(steps=(instance(name),)), source, inputs_for(task, source, signals), rehearse=False)
            result.save(root / f"{name}-{family}")
            own[f"{name}-{family}"] = np.stack(predict(result, [{"text": text} for text in texts]).logits)
    code = (
        "import sys, json, numpy as np\nfrom pathlib import Path\nfrom compress import load\n"
        "from eval.inference import predict\n"
        "texts = [{'text': t} for t in json.loads(sys.argv[2])]\n"
        "out = {f.name: np.stack(predict(load(f), texts).logits) for f in sorted(Path(sys.argv[1]).iterdir())}\n"
        "np.savez(sys.argv[1] + '.npz', **out)"
    )
    subprocess.run([sys.executable, "-c", code, str(root), json.dumps(texts)], check=True, cwd=ROOT)
    with np.load(f"{root}.npz") as file:
        return own, dict(file)


@pytest.mark.parametrize("name", names())
def test_saved_results_reload_in_a_fresh_process(name, reloaded):
    own, loaded = reloaded
    for family in FAMILIES:
        key = f"{name}-{family}"
        if family in REFUSED.get(name, ()):
            assert key not in loaded
            continue
        assert np.allclose(own[key], loaded[key], atol=1e-6), key


PAIRS = [(a, b) for a in names() for b in names()]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda name: str(name))
def test_every_ordered_pair_runs_or_is_refused(first, second, signals):
    check_pair(first, second, "bert", signals)


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "bert"])
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda name: str(name))
def test_every_ordered_pair_on_every_family(first, second, family, signals):
    check_pair(first, second, family, signals)


def check_pair(first, second, family, signals):
    task = task_of(first, second)
    source = tiny_taskmodel(family, task.spec)
    recipe = Recipe(steps=(instance(first), instance(second)))
    inputs = inputs_for(task, source, signals)
    refused = [name for name in (first, second) if family in REFUSED.get(name, ())]
    if refused:
        with pytest.raises(UserError, match="|".join(refused)):
            run(recipe, source, inputs, rehearse=False)
        return
    if get(first).freezes and get(second).trains:
        with pytest.raises(UserError, match=f"step 2, {second}: trains, but step 1, {first}"):
            run(recipe, source, inputs)
        return
    if get(first).last:
        with pytest.raises(UserError, match=f"step 2, {second}: comes after step 1, {first}, which must be the last"):
            run(recipe, source, inputs)
        return
    if get(first).makes and not get(second).takes_any:
        with pytest.raises(UserError, match=f"{second}: works on transformer layers, but step 1, {first}, makes"):
            run(recipe, source, inputs)
        return
    if (first, second) in REFUSED_AFTER:
        with pytest.raises(UserError, match=f"{second}: {REFUSED_AFTER[first, second]}"):
            run(recipe, source, inputs, rehearse=False)
        return
    try:
        result = run(recipe, source, inputs, rehearse=False)
    except UserError as error:  # the other of the two has nothing to learn from on this kind of task
        if first == second or task.spec.kind not in OTHER_KIND.values() or task.spec.kind not in str(error):
            raise
        return
    assert [record.technique for record in result.lineage] == ["source", first, second]
    check_outputs(result, task)
