"""What a step has pruned stays 0 through every technique that may follow it, or the technique says why it refuses."""

import re
from functools import cache

import pytest
import torch

from compress import load
from compress.artifact.artifact import Artifact
from compress.engine.steps import run
from compress.modules.masked import masked_parts
from compress.pairs import refusal
from compress.recipe import Recipe
from compress.registry import get, names
from compress.traits import UNPRUNED
from eval.cost.size import file_bytes
from eval.errors import UserError
from teachers.anatomy.encoder import layer_count
from tests.conformance.battery import OTHER_KIND, inputs_for, instance, task_of
from tests.tiny import in_turn, tiny_taskmodel

FIELDS = {"prune.magnitude": {"sparsity": 0.9, "schedule": "once", "recover": False}, "prune.movement": {"keep": 0.1}}
"""How each technique that prunes does so: nine weights of ten."""
PRUNING = [name for name in names() if get(name).removes & set(UNPRUNED.values())]
LEFT = 0.25
"""Most that may be left of a matrix of which rows or columns were cut: of a tenth it is by chance a little more."""
TRAINED_ON = {"classification": "distill.labels", "embedding": "distill.embedding"}


def matrices(network):
    """Return the weights of every matrix by path, whatever it is stored as; a shared one at each of its places."""
    found = {}
    for path, module in network.named_modules(remove_duplicate=False):
        weight = module.matrix() if hasattr(module, "matrix") else getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.dim() == 2:
            found[path] = weight.detach().float()
    return found


def place(path):
    """Return a path without the number of its layer, for layers may move."""
    return re.sub(r"\.\d+\.", ".N.", path.removeprefix("encoder."))


@cache
def pruned(first, kind, signals):
    task = task_of() if kind == "classification" else task_of(*OTHER_KIND)
    source = Artifact.from_model(tiny_taskmodel("bert", task.spec))
    fields = FIELDS[first]
    if kind == "embedding" and get(first)(**fields).needed():
        fields = {**fields, "objective": "distill.embedding"}
    result = run(
        Recipe(steps=(instance(first, **fields),)), source, inputs_for(task, source, signals), dry_run_first=False
    )
    known = {path: weight for path, weight in matrices(result.model).items() if (weight == 0).float().mean() > 0.8}
    assert len(known) >= 18
    return result, known


def test_every_technique_that_prunes_is_tested():
    assert sorted(FIELDS) == sorted(PRUNING)


@pytest.mark.parametrize(("second", "first"), in_turn(names(), PRUNING, len(PRUNING)))
def test_zeros_stay_through_every_technique(first, second, signals):
    task = task_of(second)
    source, known = pruned(first, task.spec.kind, signals)
    inputs = inputs_for(task, source, signals)
    technique = instance(second)
    needed = technique.required()
    reasons = [needed[UNPRUNED[part]] for part in masked_parts(source.model) if UNPRUNED[part] in needed]
    assert set(reasons) <= ({refusal(first, second).reason} if reasons else set()), "a recipe refuses what a model does"
    if reasons:
        with pytest.raises(UserError, match=re.escape(reasons[0])):
            run(Recipe(steps=(technique,)), source, inputs, dry_run_first=False)
        return
    try:
        result = run(Recipe(steps=(technique,)), source, inputs, dry_run_first=False)
    except UserError as error:
        if refusal(first, second) is None and task.spec.kind not in str(error):
            raise
        return
    if technique.makes and not layer_count(result.model):
        return  # a custom architecture, with nothing of the old one
    check_zeros(result, known)
    if not technique.freezes and not technique.last and not technique.makes:
        later = instance(TRAINED_ON[task.spec.kind], learning_rate=1e-2)
        check_zeros(run(Recipe(steps=(later,)), result, inputs, dry_run_first=False), known)


def check_zeros(result, known):
    """Every matrix that was pruned has the zeros of one that stood in such a place, or is one that was cut."""
    roles = {}
    for path, weight in known.items():
        roles.setdefault(place(path), []).append(weight == 0)
    found = {path: weight for path, weight in matrices(result.model).items() if place(path) in roles}
    assert found, "nothing is left to look at"
    for path, weight in found.items():
        same = [zeros for zeros in roles[place(path)] if zeros.shape == weight.shape]
        if same:
            assert any((weight[zeros] == 0).all() for zeros in same), path
        else:
            assert (weight != 0).float().mean() < LEFT, path


@pytest.mark.parametrize("second", [name for name in names() if name.startswith("quantize.")])
@pytest.mark.parametrize("first", PRUNING)
def test_a_saved_folder_is_smaller_for_its_zeros(first, second, signals, tmp_path):
    if refusal(first, second) is not None or "bytes" not in get(second).reduces:
        return
    source, known = pruned(first, "classification", signals)
    task = task_of(second)
    dense = Artifact.from_model(tiny_taskmodel("bert", task.spec))
    step = instance(second, **({"bits": 4} if second == "quantize.qbert" else {}))
    results = [
        run(Recipe(steps=(step,)), model, inputs_for(task, model, signals), dry_run_first=False)
        for model in (source, dense)
    ]
    results[0].save(tmp_path / "pruned")
    again = load(tmp_path / "pruned")
    assert (again.digest, again.size()) == (results[0].digest, results[0].size())
    bits = 8 if second == "quantize.q8bert" else 4
    weights = sum(w.numel() for path, w in matrices(again.model).items() if "layer." in path)
    assert results[1].size().bytes - results[0].size().bytes > 0.95 * weights * (0.9 * bits - 1) / 8
    assert file_bytes(tmp_path / "pruned") - again.size().bytes < 20_000, "the rest is the header"
    check_zeros(again, known)


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("share.layers", {}, "the mean of layers is 0 only where all of them are"),
        ("share.layers", {"stock": True, "init": "least"}, "standard ALBERT"),
        ("share.embeddings", {"size": 8}, "the factors of the table are new"),
        ("share.lowrank", {}, "the factors of a matrix are new"),
        ("replace.theseus", {"start": "elsewhere"}, "weights that are not pruned"),
    ],
)
def test_new_weights_are_refused_with_their_reason(name, fields, says):
    earlier, step = instance("prune.magnitude"), instance(name, **fields)
    model = tiny_taskmodel("bert", task_of().spec)
    inputs = inputs_for(task_of(), model, None)
    with pytest.raises(UserError, match=f"step 2, {name}: cannot follow step 1, prune.magnitude: .*({says})"):
        run(Recipe(steps=(earlier, step)), model, inputs)


def test_what_does_not_touch_the_zeros_is_not_refused(signals):
    task = task_of()
    model = tiny_taskmodel("bert", task.spec)
    inputs = inputs_for(task, model, signals)
    table = instance("prune.magnitude", parts=["embeddings"], schedule="once")
    layers = instance("prune.movement")
    run(Recipe(steps=(table, instance("share.lowrank"))), model, inputs, dry_run_first=False)
    run(Recipe(steps=(layers, instance("share.embeddings"))), model, inputs, dry_run_first=False)
    run(Recipe(steps=(layers, instance("share.layers", init="least"))), model, inputs, dry_run_first=False)
    plain = instance("prune.magnitude", stock=True)
    run(Recipe(steps=(plain, instance("share.layers"))), model, inputs, dry_run_first=False)
