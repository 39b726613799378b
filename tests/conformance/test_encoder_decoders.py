"""Every technique on an encoder with a decoder: it runs and gives a sound model, or refuses by name."""

import re
from pathlib import Path

import numpy as np
import pytest

from compress.artifact.artifact import load
from compress.engine.steps import problems, run
from compress.export import export
from compress.export.runtime import Runtime
from compress.registry import get, names
from compress.testing.case import Case
from eval.errors import UserError
from eval.inference import predict
from eval.measurement import measure
from tests.conformance.battery import instance
from tests.tiny import ENCODER_DECODERS, at_first

RUN = [name for name in names() if get(name).both_stacks]
QUICK = ("distill.sequence", "distill.logits", "prune.layers", "share.layers")
OWN = {
    ("distill.combined", None): {
        "objective": {"distill.logits": {"temperature": 4.0}, "distill.labels": {"weight": 0.1}}
    },
    ("distill.tinybert", "t5"): {"attention": 0.0, "cross_attention": 0.0},
}
"""Fields without which a technique does not fit these families, or one of them."""
REFUSED = {("quantize.weights", "t5"): "standard code of t5 reads a layer's weights"}


def case_of(name, signals, family="marian"):
    fields = {**OWN.get((name, None), {}), **OWN.get((name, family), {})}
    return Case(instance(name, **fields), signals, family, "seq2seq")


def test_all_others_refuse_before_anything_is_computed(signals):
    one = case_of("distill.logits", signals)
    for name in sorted(set(names()) - set(RUN)):
        found = problems(case_of(name, signals).recipe.steps, one.source, one.inputs)
        assert any(f"step 1, {name}: works on " in sentence for sentence in found), (name, found)


def test_the_documents_name_those_that_run():
    page = (Path(__file__).parents[2] / "docs" / "combining.md").read_text(encoding="utf-8")
    said = page.partition("An encoder with a decoder (`seq2seq`")[2].partition("; the others refuse it")[0]
    assert sorted(re.findall(r"`(\w+\.\w+)`", said)) == sorted(RUN)


@pytest.mark.parametrize("name", at_first(RUN, *QUICK))
@pytest.mark.parametrize("family", at_first(ENCODER_DECODERS, "marian"))
def test_a_technique_on_an_encoder_with_a_decoder(family, name, signals, tmp_path):
    case = case_of(name, signals, family)
    if (name, family) in REFUSED:
        with pytest.raises(UserError, match=f"step 1, {name}: {REFUSED[name, family]}"):
            run(case.recipe, case.source, case.inputs)
        return
    before = case.source.digest
    result = case.result
    assert case.source.digest == before
    inputs = result.encoder.collate(result.encoder.encode(case.task.test[:6]))
    assert np.isfinite(result.forward(inputs)).all()
    assert 0 <= measure(result, case.task).scores["chrf"] <= 1
    result.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert np.allclose(again.forward(inputs), result.forward(inputs), atol=1e-4)
    assert predict(again, case.task.test[:6]).answers == predict(result, case.task.test[:6]).answers
    longer = {**inputs, "decoder_input_ids": np.pad(inputs["decoder_input_ids"], ((0, 0), (0, 2)), constant_values=9)}
    length = inputs["decoder_input_ids"].shape[1]
    assert np.allclose(result.forward(longer)[:, :length], result.forward(inputs), atol=1e-4), "what comes later"


@pytest.mark.parametrize("name", ["prune.magnitude", "quantize.weights"])
def test_what_remains_of_both_stacks_is_exported(name, signals, tmp_path):
    case = case_of(name, signals)
    made = case.result
    export(made, tmp_path / "x", "generator", examples=case.task.validation[:4])
    examples = case.task.test[:6]
    assert Runtime(tmp_path / "x").predict(examples).answers == predict(made, examples).answers
    masked = made.lineage[-1].facts.get("masked", ["decoder"])
    assert any("decoder" in path for path in masked)


def test_a_step_that_comes_later_is_refused_too(signals):
    case = case_of("prune.layers", signals)
    recipe = case.recipe.model_copy(update={"steps": (*case.recipe.steps, instance("distill.minilm"))})
    with pytest.raises(UserError, match=r"step 2, distill.minilm: works on an encoder or a decoder by itself"):
        run(recipe, case.source, case.inputs)
