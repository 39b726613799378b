"""PoWER-BERT against its formulas in numpy: significance, extraction, retention; then training, exports, refusals."""

import math
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import onnx
import pytest
import torch

from compress.architectures.token_pruning_network import (
    Retention,
    TokenPruningForSequenceClassification,
    counted,
    significance,
)
from compress.artifact.artifact import load
from compress.engine.steps import run
from compress.export import export_onnx
from compress.export.folder import export
from compress.export.runtime.answering import Runtime
from compress.modules.int8_scheme import Int8
from compress.prune.tokens import TokenPruning, learned_shares, mean_retention
from compress.recipe import Recipe
from compress.technique import Inputs
from eval.errors import UserError
from eval.inference import predict
from eval.task import Examples
from teachers.taskmodel import weights_digest
from tests.stopping import StopsAt
from tests.tiny import at_first, tiny_task, tiny_taskmodel

FAMILIES = ("bert", "roberta", "ernie", "distilbert", "albert", "electra")
"""Those that it works on."""
SHORT = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "checkpoint_seconds": 0}


def dropping(family="bert", keep=(700, 300), **changes):
    """Return a model whose layers drop tokens."""
    model = tiny_taskmodel(family, **changes)
    return replace(model, model=TokenPruningForSequenceClassification.around(model.model, keep).eval())


def texts():
    """Return examples of 1 to about 25 words."""
    task = tiny_task()
    return Examples(
        [{**e, "text": " ".join([e["text"], *["and very warm"] * (n % 5)])} for n, e in enumerate(task.validation)], "t"
    )


def tensors(model, examples, multiple_of=1):
    inputs = model.encoder.collate(model.encoder.encode(examples), multiple_of=multiple_of)
    return {name: torch.from_numpy(values) for name, values in inputs.items()}


# ---- the whole network in numpy, one text at a time


def softmax(x):
    return np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)


class SlowBert:
    """BERT of the tiny size in numpy, on one text; ``extract(layer, x, received, size)`` chooses what goes on."""

    def __init__(self, network):
        self.weights = {name: value.double().numpy() for name, value in network.state_dict().items()}
        self.config = network.config

    def linear(self, x, name):
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + self.config.layer_norm_eps)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def __call__(self, ids, extract):
        tables = "bert.embeddings.{}_embeddings.weight".format
        x = self.weights[tables("word")][ids] + self.weights[tables("position")][: len(ids)]
        x = self.norm(x + self.weights[tables("token_type")][0], "bert.embeddings.LayerNorm")
        for layer in range(self.config.num_hidden_layers):
            path = f"bert.encoder.layer.{layer}"
            query, key, value = (self.linear(x, f"{path}.attention.self.{part}") for part in ("query", "key", "value"))
            width, received, context = 32 // self.config.num_attention_heads, np.zeros(len(x)), np.zeros_like(x)
            for head in range(self.config.num_attention_heads):
                own = slice(head * width, (head + 1) * width)
                shares = softmax(query[:, own] @ key[:, own].T / math.sqrt(width))
                context[:, own] = shares @ value[:, own]
                for asking in shares:
                    received += asking
            x = self.norm(
                x + self.linear(context, f"{path}.attention.output.dense"), f"{path}.attention.output.LayerNorm"
            )
            x = extract(layer, x, received, len(ids))
            inner = self.linear(x, f"{path}.intermediate.dense")
            inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
            x = self.norm(x + self.linear(inner, f"{path}.output.dense"), f"{path}.output.LayerNorm")
        return self.linear(np.tanh(self.linear(x[0], "bert.pooler.dense")), "classifier")


def slow_logits(model, examples, extract):
    """Return the logits of each text by itself."""
    slow = SlowBert(model.model.inner)
    every = [model.encoder.collate([features])["input_ids"][0] for features in model.encoder.encode(examples)]
    return np.stack([slow(ids, extract) for ids in every])


def order_of(received):
    """Return the places of tokens, the most significant first; the first token before all others."""
    return [0, *sorted(range(1, len(received)), key=lambda place: -received[place])]


def test_dropped_tokens_are_those_of_the_slow_network():
    model, examples = dropping(keep=(700, 300)), texts()
    sizes = set()

    def extract(layer, x, received, size):
        if layer == 2:
            return x
        kept = math.ceil((0.7, 0.3)[layer] * size - 1e-9)
        sizes.add((layer, size, kept))
        return x[order_of(received)[:kept]]

    expected = slow_logits(model, examples, extract)
    with torch.no_grad():
        padded = model.model(**tensors(model, examples, multiple_of=8)).logits
    np.testing.assert_allclose(padded, expected, atol=1e-5)
    np.testing.assert_allclose(np.stack(predict(model, examples, batch_size=1).logits), expected, atol=1e-5)
    assert len(sizes) > 8
    with torch.no_grad():
        plain = model.model.inner(**tensors(model, examples)).logits
    assert np.abs(plain.numpy() - expected).max() > 1e-3, "something was dropped"


def test_soft_extraction_is_that_of_the_slow_network():
    model, examples = dropping(), texts()
    retention = model.model.retention = Retention(2, 6, 1e-2)
    with torch.no_grad():
        retention.values.copy_(torch.rand(2, 6, generator=torch.Generator().manual_seed(1)))

    def extract(layer, x, received, size):
        if layer == 2:
            return x
        factors = np.ones(size)
        for rank, place in enumerate(order_of(received)):
            factors[place] = retention.values[layer, rank * 6 // size].item() if rank else 1
        return x * factors[:, None]

    expected = slow_logits(model, examples, extract)
    with torch.no_grad():
        found = model.model(**tensors(model, examples, multiple_of=8)).logits
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_significance_by_hand():
    probabilities = torch.tensor([[[[0.2, 0.3, 0.5], [0.1, 0.8, 0.1], [0.9, 0.05, 0.05]]]]).expand(1, 2, 3, 3)
    found = significance(probabilities, torch.tensor([[1, 1, 1]]))
    torch.testing.assert_close(found, torch.tensor([[2.4, 2.3, 1.3]]))
    found = significance(probabilities, torch.tensor([[1, 1, 0]]))
    torch.testing.assert_close(found, torch.tensor([[0.6, 2.2, 1.2]]))  # what padding attends to does not count


def test_counts_are_shares_rounded_up():
    assert [counted(10, keep) for keep in (1000, 999, 901, 900, 1)] == [10, 10, 10, 9, 1]
    assert counted(torch.tensor([[256], [7]]), 500).tolist() == [[128], [4]]


def test_shares_are_the_papers_counts_where_ranks_are_places():
    values = torch.rand(3, 200, generator=torch.Generator().manual_seed(2)) * torch.tensor([[0.9], [1.0], [0.3]])
    counts = [math.ceil(sum(row)) for row in values.double().tolist()]
    paper = [min(counts[: layer + 1]) for layer in range(3)]
    assert abs(counted(200, learned_shares(values)[0]) - paper[0]) <= 1  # a share has thousandths, of 200 tokens
    assert learned_shares(torch.ones(2, 5)) == [1000, 1000]
    assert learned_shares(torch.tensor([[0.5, 0.25], [1.0, 1.0], [0.0, 0.0]])) == [375, 375, 1]
    assert mean_retention(torch.tensor([[1.0, 0.5], [0.25, 0.25]])).item() == pytest.approx((0.75 + 2 * 0.25) / 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_tokens_kept_is_the_standard_network(family):
    model, examples = dropping(family, keep=(1000, 1000)), texts()
    inputs = tensors(model, examples, multiple_of=8)
    with torch.no_grad():
        torch.testing.assert_close(model.model(**inputs).logits, model.model.inner(**inputs).logits, atol=1e-6, rtol=0)
        model.model.retention = Retention(2, 8, 1e-2)
        torch.testing.assert_close(model.model(**inputs).logits, model.model.inner(**inputs).logits, atol=1e-6, rtol=0)


def test_later_layers_see_fewer_tokens():
    model, seen = dropping(keep=(500, 250)), []
    for layer in model.model.inner.bert.encoder.layer:
        layer.intermediate.register_forward_hook(lambda _module, args, _output: seen.append(args[0].shape[1]))
    with torch.no_grad():
        model.model(input_ids=torch.full((2, 21), 5))
    assert seen == [11, 6, 1]
    assert model.size().macs < 0.8 * tiny_taskmodel("bert").size().macs


# ---- training


def applied(technique, folder=None, task=None):
    task = task or tiny_task()
    inputs = Inputs(train=task.train, validation=task.validation, folder=folder)
    torch.manual_seed(0)
    return technique.apply(tiny_taskmodel("bert", task.spec), inputs, torch.Generator().manual_seed(3))


def test_the_search_learns_shares_that_fall_and_the_penalty_decides_how_far():
    kept = {}
    for penalty in (0.0, 20.0):
        technique = TokenPruning(penalty=penalty, retention_rate=0.1, ranks=4, search=SHORT, max_steps=1)
        outcome = applied(technique)
        kept[penalty] = outcome.facts["keep"]
        assert kept[penalty] == sorted(kept[penalty], reverse=True)
        assert outcome.model.model.config.keep == [round(1000 * share) for share in kept[penalty]]
        assert "tokens" in outcome.facts["search"][-1]["terms"]
        assert not any("retention" in name for name, _ in outcome.model.model.named_parameters())
    assert sum(kept[20.0]) < 0.9 * sum(kept[0.0])
    assert kept[20.0][-1] < 0.8


def test_training_learns_with_dropped_tokens():
    task = tiny_task(examples=64)
    outcome = applied(TokenPruning(keep=(0.5, 0.3), epochs=8, batch_size=8, learning_rate=5e-3), task=task)
    losses = [entry["loss"] for entry in outcome.facts["history"]]
    assert losses[-1] < 0.5 * losses[0]
    answers = predict(outcome.model, task.validation).answers
    assert np.mean([a["label"] == e["label"] for a, e in zip(answers, task.validation, strict=True)]) > 0.8


@pytest.mark.parametrize("update", [3, 8])
def test_a_stopped_pruning_goes_on_to_the_same_weights(update, tmp_path, monkeypatch):
    technique = TokenPruning(search=SHORT, retention_rate=0.05, **SHORT)
    whole = applied(technique)
    with monkeypatch.context() as patched:
        stopping = StopsAt(update)
        patched.setattr(TokenPruning, "make_objective", lambda *_: stopping)
        with pytest.raises(KeyboardInterrupt):
            applied(technique, tmp_path)
    again = applied(technique, tmp_path)
    assert again.facts["keep"] == whole.facts["keep"]
    assert min(whole.facts["keep"]) < 1
    assert weights_digest(again.model.model) == weights_digest(whole.model.model)


# ---- saving and exports


def test_a_saved_model_answers_the_same_and_is_trained_on(tmp_path):
    task = tiny_task()
    inputs = Inputs(train=task.train)
    steps = (TokenPruning(keep=(0.6, 0.3), max_steps=2),)
    result = run(Recipe(steps=steps), tiny_taskmodel("bert", task.spec), inputs, dry_run_first=False)
    result.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.digest == result.digest
    assert again.model.config.keep == [600, 300]
    assert np.array_equal(predict(again, texts()).logits, predict(result, texts()).logits)


@pytest.mark.parametrize("family", at_first(FAMILIES, "bert", "albert"))
def test_an_export_answers_like_the_model(family, tmp_path):
    model, examples = dropping(family), texts()
    expected = np.stack(predict(model, examples).logits)
    export_onnx(model, tmp_path / "onnx", examples=examples)
    runtime = Runtime(tmp_path / "onnx")
    for batch_size in (1, 7, 32):
        np.testing.assert_allclose(np.stack(predict(runtime, examples, batch_size).logits), expected, atol=1e-5)
    nodes = onnx.load(str(tmp_path / "onnx" / "model.onnx")).graph.node
    assert sum(node.op_type == "TopK" for node in nodes) == 2
    assert not [node for node in nodes if node.op_type == "If"]
    assert len({node.name for node in nodes}) == len(nodes)


def test_shares_of_which_short_texts_keep_as_many_tokens_are_counted_in_an_export(tmp_path):
    """Of 7 and of 13 tokens 15% are two and 7% are one; the exporter took these for constants."""
    model, examples = dropping(keep=(150, 70)), texts()
    assert {counted(length, 150) for length in (7, 13)} == {2} != {counted(32, 150)}
    expected = np.stack(predict(model, examples).logits)
    export_onnx(model, tmp_path / "onnx", examples=examples)
    np.testing.assert_allclose(np.stack(predict(Runtime(tmp_path / "onnx"), examples, 1).logits), expected, atol=1e-5)


def test_an_8_bit_export_answers_like_the_model(tmp_path):
    model, examples = dropping(), texts()
    scheme = Int8(exclude=("inner.bert.encoder.layer.1",))
    report = export_onnx(model, tmp_path / "int8", examples=examples, int8=scheme, agreement=0.9)
    assert "inner.bert.encoder.layer.1.output.dense" in report.quantized["float"]
    assert "inner.bert.encoder.layer.0.output.dense" not in report.quantized["float"]
    runtime = Runtime(tmp_path / "int8")
    together, alone = (np.stack(predict(runtime, examples, size).logits) for size in (32, 1))
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is not installed")
def test_openvino_answers_like_the_model(tmp_path):
    model, examples = dropping(), texts()
    expected = np.stack(predict(model, examples).logits)
    export(model, tmp_path / "out", "openvino", examples=examples)
    runtime = Runtime(tmp_path / "out")
    for batch_size in (1, 7, 32):
        np.testing.assert_allclose(np.stack(predict(runtime, examples, batch_size).logits), expected, atol=1e-5)


# ---- what is refused


@pytest.mark.parametrize("kind", ["tagging", "qa", "multiple-choice", "masked-lm", "embedding"])
def test_heads_that_read_other_tokens_are_refused(kind):
    task = tiny_task(kind)
    fields = {"objective": "distill.embedding"} if kind == "embedding" else {}
    found = TokenPruning(**fields).check(tiny_taskmodel("bert", task.spec), Inputs(train=task.train))
    assert any("the head reads the first token alone" in problem and problem.endswith(kind) for problem in found)


def test_what_does_not_fit_is_named():
    model = tiny_taskmodel("bert")
    assert TokenPruning().check(model, Inputs()) == []
    (problem,) = TokenPruning(keep=(0.5,)).check(model, Inputs())
    assert "keep has 1 share, must have 2: one a layer but the last" in problem
    (problem,) = TokenPruning().check(tiny_taskmodel("bert", num_hidden_layers=1), Inputs())
    assert "needs a model of 2 layers or more" in problem
    found = TokenPruning(objective={"distill.logits": {}, "distill.pkd": {}}).check(model, Inputs())
    assert any("distill.pkd reads more than logits" in problem for problem in found)
    assert not any("distill.logits reads more" in problem for problem in found)
    with pytest.raises(ValueError, match="shares may not rise"):
        TokenPruning(keep=(0.3, 0.5))
    with pytest.raises(ValueError, match="penalty, ranks: for the search of keep, which is given"):
        TokenPruning(keep=(0.5, 0.3), penalty=1.0, ranks=8)
    with pytest.raises(UserError, match=r"step 1, prune\.tokens: .*not for modernbert"):
        run(Recipe(steps=(TokenPruning(),)), tiny_taskmodel("modernbert"), Inputs(train=tiny_task().train))


def test_attention_that_shows_no_probabilities_is_refused(monkeypatch):
    model = tiny_taskmodel("bert")
    monkeypatch.setattr(type(model.model), "_supports_attention_backend", False)
    (problem,) = TokenPruning().check(model, Inputs())
    assert problem.endswith("attention shows its probabilities; not for bert")
