"""Every technique on a decoder that predicts the next token: it runs and gives a sound model, or refuses by name."""

import numpy as np
import pytest

from compress.artifact.artifact import load
from compress.engine.steps import run
from compress.registry import names
from compress.testing.case import Case
from eval.errors import UserError
from eval.inference import predict
from eval.measurement import measure
from tests.conformance.battery import instance
from tests.tiny import DECODERS, at_first

OTHER_TASKS = {
    "prune.tokens",
    "distill.margin_mse",
    "distill.listwise",
    "distill.sequence",
    "distill.bilstm",
    "distill.static",
    "distill.embedding",
    "distill.contrastive",
    "distill.cross_view",
    "distill.early_exit",
    "distill.dual",
    "share.adaptive_depth",
}
"""Techniques for other kinds of task, or for networks that see what comes later."""
WORKING = [name for name in names() if name not in OTHER_TASKS]
QUICK = (
    "prune.heads",
    "prune.vocabulary",
    "distill.distilbert",
    "replace.theseus",
    "share.embeddings",
    "quantize.qbert",
)
OF_XLNET = {"distill.tinybert", "distill.mobilebert"}
"""Techniques that refuse the attention of every XLNet."""
REFUSED = {
    "opt": set(),
    "gpt_neo": {"distill.tinybert", "distill.mobilebert", "replace.theseus"},
    "gpt_neox": {"distill.tinybert", "distill.mobilebert"},
    "llama": {"distill.tinybert", "distill.mobilebert"},
}
"""Techniques that refuse the attention of a decoder, or the difference of its layers."""
QUICK_OF_XLNET = ("prune.heads", "distill.minilm", "quantize.qbert")


@pytest.mark.parametrize("name", at_first(names(), *QUICK, *sorted(OTHER_TASKS)))
def test_a_technique_on_a_decoder(name, signals, tmp_path):
    check(Case(instance(name), signals, "gpt2", "causal-lm"), OTHER_TASKS, tmp_path)


@pytest.mark.parametrize("name", at_first(WORKING, "prune.heads"))
@pytest.mark.parametrize("family", DECODERS)
def test_a_technique_on_further_decoders(family, name, signals, tmp_path):
    check(Case(instance(name), signals, family, "causal-lm"), REFUSED[family], tmp_path)


@pytest.mark.parametrize("name", at_first(WORKING, *QUICK_OF_XLNET))
def test_a_technique_on_transformer_xl(name, signals, tmp_path):
    check(Case(instance(name), signals, "xlnet", "causal-lm", changes={"attn_type": "uni"}), OF_XLNET, tmp_path)


def check(case, refused, tmp_path):
    name = case.technique.name
    if name in refused:
        with pytest.raises(UserError, match=rf"step 1, {name}: .*(causal-lm|{case.family})"):
            run(case.recipe, case.source, case.inputs)
        return
    before = case.source.digest
    result = case.result
    assert case.source.digest == before
    scores = measure(result, case.task).scores
    assert np.isfinite(scores["perplexity"])
    result.save(tmp_path / "model")
    again = load(tmp_path / "model")
    own, other = (predict(model, case.task.test[:6]).answers for model in (result, again))
    assert [one["loss"] for one in own] == pytest.approx([one["loss"] for one in other], abs=1e-4)
    texts = [{"text": example["text"] + " and then paris"} for example in case.task.test[:6]]
    longer = predict(result, texts).logits
    if name not in ("quantize.q8bert", "quantize.bitsandbytes"):  # which round activations by what else there is
        for one, more in zip(predict(result, case.task.test[:6]).logits, longer, strict=True):
            common = len(one) - 2  # a token at the end may be written together with what follows
            assert np.allclose(one[:common, 0], more[:common, 0], atol=1e-4), "what comes later changes nothing"
