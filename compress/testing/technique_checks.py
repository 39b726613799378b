"""Small checks of a technique; each raises an AssertionError that says what is wrong."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Sequence
from unittest.mock import patch

import numpy as np
import torch
from pydantic import ValidationError

from compress.artifact.artifact import Artifact
from compress.engine.steps import run
from compress.recipe import Recipe, parse_recipe, recipe_to_yaml
from compress.registry import REGISTRY, package_of
from compress.technique import Technique
from compress.testing.case import Case
from eval.data.loading import Task
from eval.errors import UserError
from eval.inference import predict
from teachers.anatomy.encoder import layer_count
from teachers.number_format import LAUNCHED

Check = Callable[[Case], None]

HEADINGS = ("Attributes:", "Needs:", "Reduces:", "Limits:", "Source:")
"""What the docstring of a technique has after its summary and its formula, in this order."""
SHARES_LAYERS = frozenset({"albert"})
"""Families whose layers are one module: fewer of them are fewer multiply-accumulates, not fewer parameters."""


def found_by_its_name(case: Case) -> None:
    """Recipes and the command line find the technique by its name."""
    technique = type(case.technique)
    declared = f'"{technique.name}" = "{technique.__module__}:{technique.__qualname__}"'
    assert technique.name in REGISTRY, (
        f'no installed package declares it; write [project.entry-points."{REGISTRY.group}"] {declared} '
        "in its pyproject.toml and install the package anew"
    )
    found = REGISTRY.get(technique.name)
    assert found is technique, f"the name leads to {found.__module__}:{found.__qualname__}; declare {declared}"


def says_what_it_does(case: Case) -> None:
    """The docstring has its sections, and the source is named."""
    technique = type(case.technique)
    text = inspect.getdoc(technique) or ""
    places = [text.find(heading) for heading in HEADINGS]
    missing = [heading for heading, place in zip(HEADINGS, places, strict=True) if place < 0]
    assert not missing, f"its docstring lacks {missing}"
    assert places == sorted(places), f"the headings of its docstring are out of order; write {', '.join(HEADINGS)}"
    assert technique.source, "it has no source (authors, year, arXiv id, or who wrote it)"
    first = technique.source.split(";")[0]
    assert first in " ".join(text.split()), f"its docstring does not name the source {first!r}"


def is_a_value(case: Case) -> None:
    """A config is frozen and hashable, knows its fields, and comes back from JSON and from YAML."""
    technique, cls = case.technique, type(case.technique)
    assert hash(technique) == hash(technique.model_copy()), "equal configs have other hashes"
    assert cls.model_validate(technique.model_dump()) == technique, "it does not come back from model_dump()"
    assert cls.model_validate_json(technique.model_dump_json()) == technique, "it does not come back from JSON"
    changed = _refusal(lambda: setattr(technique, "training", None))
    assert "frozen" in " ".join(changed), "it can be changed; make it frozen"
    given = {name: getattr(technique, name) for name in technique.model_fields_set}
    unknown = _refusal(lambda: cls.model_validate({**given, "nonsense": 1}))
    assert "nonsense" in " ".join(unknown), "it takes unknown fields; forbid them"
    recipe = Recipe(steps=(technique,), teacher={"model": "t"}, task={"kind": case.kind, "data": "d"})
    assert parse_recipe(recipe_to_yaml(recipe)) == recipe, "it does not come back from a recipe in YAML"


def refuses_missing_inputs(case: Case) -> None:
    """Without its inputs it is refused before any work, a sentence for each that is missing."""
    with patch.object(type(case.technique), "apply", side_effect=AssertionError("it was run without its inputs")):
        said = _refusal(lambda: run(case.recipe, case.source))
    missing = [problem for problem in said if problem.endswith("and there is none")]
    needed = sorted(case.technique.needed())
    assert len(missing) == len(needed), f"it needs {needed}, and the refusal says {said}"


def runs_without_inputs(case: Case) -> None:
    """What declares no needs runs on a model alone."""
    assert run(case.recipe, case.source).lineage[-1].technique == case.technique.name


def is_refused(case: Case) -> None:
    """A family that it is not for is refused by name before any work."""
    begin = f"step 1, {case.technique.name}: "
    said = _refusal(lambda: run(case.recipe, case.source, case.inputs))
    assert said, "it runs on a family that it is said to refuse"
    named = [problem for problem in said if problem.startswith(begin) and case.family in problem]
    assert named, f"the refusal must begin with {begin!r} and name the family: {said}"


def repeats_itself(case: Case) -> None:
    """The same seed gives the same weights, after a dry run too, and the global random state stays."""
    digest, state = case.result.digest, torch.get_rng_state()
    again = run(case.recipe, case.source, case.inputs)
    assert again.digest == digest, "the same seed gives other weights; draw from the generator alone"
    assert torch.equal(torch.get_rng_state(), state), "it changes the global random state"


def leaves_its_source_alone(case: Case) -> None:
    """Neither weights nor gradients of the model that went in are changed."""
    assert case.result is not None
    before = case.new_source().model
    kept = before.state_dict()
    changed = [name for name, value in case.source.model.state_dict().items() if not torch.equal(value, kept[name])]
    assert not changed, f"it changes the weights that went in: {changed[:3]}"
    flags, own = ([(p.requires_grad, p.grad) for p in each.parameters()] for each in (before, case.source.model))
    assert own == flags, "it changes requires_grad or the gradients of the model that went in"


def is_recorded(case: Case) -> None:
    """One record says who made the result, in plain JSON."""
    record = case.result.lineage[-1]
    assert len(case.result.lineage) == 2, f"the lineage has {len(case.result.lineage)} records, not source and step"
    made = (record.technique, record.version, record.package)
    wanted = (case.technique.name, case.technique.version, package_of(case.technique.name))
    assert made == wanted, f"the record says {made}, not {wanted}"
    assert record.weights_after == case.result.digest, "the record is of other weights"
    assert json.loads(record.model_dump_json()) == record.model_dump(mode="json"), "its facts are not plain JSON"


def has_the_sizes_it_claims(case: Case) -> None:
    """What ``reduces`` names becomes smaller, and nothing else larger but for what ``adds`` names."""
    record, technique = case.result.lineage[-1], case.technique
    for measure in ("parameters", "nonzero", "bytes", "macs"):
        before, after = (record.size_before or {})[measure], record.size_after[measure]
        shared = case.family in SHARES_LAYERS and measure != "macs"
        if measure in technique.reduces and not shared:
            assert after < before, f"it claims to reduce {measure}, which went from {before} to {after}"
        elif measure not in technique.adds:
            assert after <= before * 1.001, f"it raises {measure} from {before} to {after} and does not say so"


def answers_soundly(case: Case) -> None:
    """Outputs are finite, and independent of padding and of the other examples of a batch."""
    check_outputs(case.result, case.task, case.tolerance)


def trains_in_bf16(case: Case) -> None:
    """It also trains in bf16, and its weights are float32 afterwards."""
    with patch.dict(os.environ, {LAUNCHED: "bf16"}):
        result = run(case.recipe, case.source, case.inputs, dry_run_first=False)
        left = sorted({str(p.dtype) for p in result.model.parameters()} - {"torch.float32"})
        assert not left, f"after training in bf16 it leaves weights of {left}"
        check_outputs(result, case.task, case.tolerance)


def check_outputs(result: Artifact, task: Task, tolerance: float) -> None:
    """Refuse outputs that are not finite, or that depend on padding or on the other examples of a batch."""
    examples = task.validation[:6]
    together = np.stack(predict(result, examples, batch_size=6).logits)
    alone = np.stack(predict(result, examples, batch_size=1).logits)
    assert np.isfinite(together).all(), "its outputs are not finite"
    _close(together, alone, tolerance, "the other examples of a batch")
    inputs = result.encoder.collate(result.encoder.encode(examples), multiple_of=8)
    _close(result.forward(inputs), together.reshape(len(examples), -1), tolerance, "padding")
    layers = layer_count(result.model)
    if not layers:
        return
    with torch.no_grad():
        tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
        hidden = result.model(**tensors, output_hidden_states=True).hidden_states
    assert len(hidden) == layers + 1, f"it has {layers} layers and gives {len(hidden)} hidden states"


CONFIG_CHECKS: tuple[Check, ...] = (found_by_its_name, says_what_it_does, is_a_value)
"""Those that look at the config alone."""
RESULT_CHECKS: tuple[Check, ...] = (
    repeats_itself,
    leaves_its_source_alone,
    is_recorded,
    has_the_sizes_it_claims,
    answers_soundly,
)
"""Those that look at what it makes of a model."""


def checks_for(technique: Technique) -> Sequence[Check]:
    """Return the checks that need no family in particular, by what a technique declares."""
    return (*CONFIG_CHECKS, refuses_missing_inputs if technique.needed() else runs_without_inputs)


def family_checks_for(technique: Technique) -> Sequence[Check]:
    """Return the checks of a technique on a family that it is for, by what it declares."""
    return (*RESULT_CHECKS, *((trains_in_bf16,) if technique.trains else ()))


def _close(found: np.ndarray, wanted: np.ndarray, tolerance: float, reason: str) -> None:
    difference = float(np.abs(found - wanted).max())
    close = np.allclose(found, wanted, atol=tolerance)
    assert close, f"its outputs depend on {reason}: they differ by {difference:.2g}, above {tolerance:.2g}"


def _refusal(call: Callable[[], object]) -> list[str]:
    """Return the sentences with which a call is refused; none if it is not."""
    try:
        call()
    except UserError as error:
        return list(error.problems)
    except ValidationError as error:
        return [str(error)]
    return []
